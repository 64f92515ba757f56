"""Keeps started containers from running, by the kernel's cgroup freezer, and lets them go.

The freezer outlives this agent, so each container that it stops bears a mark that says for whom: whoever comes next
knows it for ours. Where a hold at the first instruction can be had (``agent.actuator.exec_hold``) the freezer takes
over from it: it is set while the process stands in execve(2), and stops it before it is back in user mode.
"""

import asyncio
import time
import weakref
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import structlog

from agent.actuator import cgroups, occupants
from agent.actuator.cgroups import Cgroup, Mark
from agent.actuator.exec_hold import ExecHolds, Hold, HoldError
from agent.actuator.occupants import Processes
from agent.actuator.standby import Held
from agent.cri.answers import ContainerInfo
from agent.cri.errors import CriError, NotFound
from agent.model.workloads import ContainerId
from common import contained, kernel_files

log = structlog.get_logger(__name__)

_RUNC_INIT = "runc:[2:INIT]"
_STILL_SECONDS = 2.0
_MOST_THREADS = 32  # each waits for one container to stand still


class Infos(Protocol):
    """The one call of the runtime that is needed."""

    async def container_info(self, container_id: ContainerId) -> ContainerInfo: ...


class Freezer:
    """Freezes containers. ``holds`` None: this node cannot hold at the first instruction.

    ``owner`` (node and runtime's socket) is written on them, too: where nodes are simulated, a machine has several
    agents, and each knows its own.
    """

    def __init__(
        self,
        *,
        runtime: Infos,
        holds: ExecHolds | None,
        processes: Processes,
        proc: Path,
        cgroup_root: Path,
        owner: str,
    ) -> None:
        self._runtime = runtime
        self._holds = holds
        self._processes = processes
        self._proc = proc
        self._cgroup_root = cgroup_root
        self._owner = owner
        self._groups: dict[ContainerId, Cgroup] = {}
        self._turns: weakref.WeakValueDictionary[ContainerId, asyncio.Lock] = weakref.WeakValueDictionary()
        self._threads = ThreadPoolExecutor(max_workers=_MOST_THREADS, thread_name_prefix="freezer")

    @property
    def obstacle(self) -> str:
        """Why no container of this node can be frozen; empty when nothing is in the way."""
        if any((self._cgroup_root / name).exists() for name in cgroups.VERSION_2):
            return ""
        return f"no cgroup version 2 hierarchy at {self._cgroup_root}; mount one, or the host's /sys there"

    async def arm(self, container_id: ContainerId) -> Hold | None:
        """Be ready for the start of a container; None where it cannot be held at its first instruction."""
        if self._holds is None:
            return None
        try:
            return await self._holds.arm(container_id)
        except HoldError as error:
            log.warning("freezer.not_armed", container=container_id, error=str(error))
            return None

    def beside(self, pid: int | None) -> Cgroup | None:
        """Return the cgroup of the container that a process is in: those of its pod's others are beside it."""
        return self._group_of(pid) if pid else None

    async def freeze(
        self, container_id: ContainerId, *, mark: str, armed: Held | None = None, near: Cgroup | None = None
    ) -> float:
        """Stop a container that has been started; return for how many seconds at most it has run.

        ``armed`` is what holds it at its first instruction, and may let go afterwards; ``near`` is the cgroup of
        another container of its pod. Raises HoldError; harmless when it has ended.

        One after the other for each container: who has let it go meanwhile thaws it before the next one freezes it.
        """
        async with self._turns.setdefault(container_id, asyncio.Lock()):
            return await self._freeze(container_id, mark=mark, armed=armed, near=near)

    async def _freeze(self, container_id: ContainerId, *, mark: str, armed: Held | None, near: Cgroup | None) -> float:
        group = await self._find(container_id, asker=armed.asker if armed is not None else None, near=near)
        if group is None:
            return 0.0
        self._groups[container_id] = group
        stood = armed is not None and armed.asker is not None
        try:
            group.put_mark(str(Mark(cgroups.HELD, mark, self._owner)))
            group.freeze()
            return 0.0 if stood or not self._has_begun(group) else await self._ran_until_still(container_id, group)
        except OSError as error:
            raise HoldError(
                f"cannot freeze {group.path}: {error.strerror or error}; mount /sys/fs/cgroup writable"
            ) from error

    def thaw(self, container_id: ContainerId) -> bool:
        """Let a container go on; whether there is a process in it, which runs now.

        That it was let go is written on it first: whoever comes after us does not take it for one to be held.
        """
        group = self._groups.pop(container_id, None)
        if group is None:
            return False
        try:
            if (text := group.mark) is not None:
                group.put_mark(str(replace(Mark.parse(text), state=cgroups.LET_GO)))
        except OSError as error:
            log.error("freezer.not_marked", container=container_id, error=str(error))  # it must run all the same
        try:
            group.thaw()
            runs = group.populated
        except OSError as error:
            log.error("freezer.not_thawed", container=container_id, error=str(error))
            return False
        return runs

    def kill(self, container_id: ContainerId) -> None:
        """End a container that is frozen: it has not begun, or shall not go on."""
        group = self._groups.pop(container_id, None)
        if group is None:
            return
        try:
            group.kill()
        except OSError as error:
            log.error("freezer.not_killed", container=container_id, error=str(error))

    async def take_over(self, *, keep: Collection[str]) -> dict[str, dict[ContainerId, bool]]:
        """Find what an earlier agent has frozen, and let go what bears no mark of ``keep``.

        Return by mark all that was found, and whether each was still to be held.
        """
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._take_over, frozenset(keep))

    def left_frozen(self) -> frozenset[ContainerId]:
        """Find what agents of this node have frozen, for whatever, and nobody has let go; ``thaw`` or ``kill`` it."""
        found = set()
        for container_id, group, text in cgroups.marked(self._cgroup_root):
            with contained.within(contained.Part.CONTAINER, container_id):
                mark = Mark.parse(text)
                is_ours = mark.state in (cgroups.HELD, cgroups.REPLACED) and self._is_mine(mark.owner)
                if is_ours and group.frozen and group.populated:
                    self._groups[container_id] = group
                    found.add(container_id)
        return frozenset(found)

    def _take_over(self, keep: frozenset[str]) -> dict[str, dict[ContainerId, bool]]:
        found: dict[str, dict[ContainerId, bool]] = {}
        for container_id, group, text in cgroups.marked(self._cgroup_root):
            with contained.within(contained.Part.CONTAINER, container_id):
                self._take_over_one(container_id, group, text, keep=keep, found=found)
        return found

    def _take_over_one(
        self,
        container_id: ContainerId,
        group: Cgroup,
        text: str,
        *,
        keep: frozenset[str],
        found: dict[str, dict[ContainerId, bool]],
    ) -> None:
        mark = Mark.parse(text)
        if not self._is_mine(mark.owner) or mark.state == cgroups.REPLACED:
            return  # what is replaced is the journal's to end
        held = mark.state == cgroups.HELD
        if held and mark.text in keep and not group.frozen:
            return  # who marked it was killed before he froze it: it runs, and whoever looks at that freezes it
        found.setdefault(mark.text, {})[container_id] = held
        self._groups[container_id] = group
        if held and mark.text not in keep:
            log.warning("freezer.left_frozen", container=container_id, mark=mark.text)
        if not held or mark.text not in keep:
            self.thaw(container_id)

    def _is_mine(self, owner: str) -> bool:
        """Whether a mark was put by an agent of this node: by its old name, too, where the runtime's socket has moved.

        Nobody else would ever let go what that one has frozen.
        """
        node, _, socket = owner.partition(" ")
        return owner == self._owner or (node == self._owner.partition(" ")[0] and not Path(socket).exists())

    async def _find(self, container_id: ContainerId, *, asker: int | None, near: Cgroup | None) -> Cgroup | None:
        """Return its cgroup by the shortest way; None when it runs no more. Raises HoldError."""
        group = self._groups.get(container_id) or (self._group_of(asker) if asker else None)
        if group is None and near is not None:
            group = near.sibling(container_id)
        if group is not None:
            return group
        try:
            pid = (await self._runtime.container_info(container_id)).pid
        except NotFound:
            return None
        except CriError as error:
            raise HoldError(f"the runtime does not tell the process of {container_id}: {error}") from error
        if not pid or not self._is_there(pid):
            return None
        if (group := self._group_of(pid)) is None:
            raise HoldError(
                f"the cgroup of {container_id} cannot be found at {self._cgroup_root}; "
                "it takes cgroup version 2, and the host's /sys/fs/cgroup mounted there"
            )
        return group

    def _has_begun(self, group: Cgroup) -> bool:
        """Whether a container that has just been frozen may have executed anything of its own.

        The freezer lets nobody back into user mode, so a process that still bears the name of runc's first stage
        (libcontainer/nsenter/nsexec.c, libcontainer/init_linux.go) has not. Other runtimes have no such name: then it
        may have.
        """
        names = {self._name(pid) for pid in group.pids()}
        return bool(names - {None, _RUNC_INIT})

    def _name(self, pid: int) -> str | None:
        """Return a process's name; None when it is gone, and none at all when it cannot be told."""
        try:
            said = kernel_files.read(self._proc / str(pid) / "comm")
        except OSError:
            return ""
        return said.removesuffix("\n") if said is not None else None

    async def _ran_until_still(self, container_id: ContainerId, group: Cgroup) -> float:
        """Wait until it stands still; return for how long it can have run.

        Its first process began (as runc's own) before its first instruction, so this errs on the long side.
        """
        loop = asyncio.get_running_loop()
        began = self._began(group)
        if not await loop.run_in_executor(self._threads, lambda: group.stands_still(timeout=_STILL_SECONDS)):
            log.warning("freezer.not_still", container=container_id, seconds=_STILL_SECONDS)
        now = time.clock_gettime(time.CLOCK_BOOTTIME)
        return max(now - began, 0.0) if began is not None else 0.0

    def _began(self, group: Cgroup) -> float | None:
        """Return when the first of its processes began, in seconds since boot."""
        looks = (occupants.look(self._processes, pid) for pid in group.pids())
        return min((process.started for process in looks if process is not None), default=None)

    def _is_there(self, pid: int) -> bool:
        """Whether there is such a process: one that cannot be looked at is."""
        try:
            return self._processes.look(pid) is not None
        except OSError:
            return True

    def _group_of(self, pid: int) -> Cgroup | None:
        """Return the cgroup of the container that a process is in; None when it is in none, or that cannot be told."""
        try:
            return Cgroup.of_process(pid, proc=self._proc, mounted_at=self._cgroup_root)
        except OSError as error:
            log.warning("freezer.process_not_read", pid=pid, error=str(error))
            return None
