"""Freeze started containers by the kernel's cgroup freezer, and thaw them.

A frozen cgroup outlives the agent, so each one bears a mark with its purpose, by which the next agent recognises it.
Where the first instruction can be held (``agent.actuator.hold.exec_hold``) the freezer takes over from that hold: it is
set while the process is blocked in execve(2), and stops it before it returns to user mode.
"""

import asyncio
import errno
import time
import weakref
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import structlog

from kubemend.agent import ports
from kubemend.agent.actuator import device_processes
from kubemend.agent.actuator.hold import cgroups
from kubemend.agent.actuator.hold.cgroups import Cgroup, Mark
from kubemend.agent.actuator.hold.exec_hold import ExecHolds, Hold, HoldError
from kubemend.agent.actuator.hold.standby import Held
from kubemend.agent.clients.cri.errors import CriError, NotFound
from kubemend.agent.model.workloads import ContainerId
from kubemend.common import contained, kernel_files

log = structlog.get_logger(__name__)

_NOT_BEGUN = frozenset({"runc:[2:INIT]", "crun"})
"""Names of a container's first process before it executes the container's program: runc's
(libcontainer/nsenter/nsexec.c, libcontainer/init_linux.go) and crun's, which keeps its own."""
_MOST_BEFORE = 16
"""Processes that a container has at most before that; it has one or two."""

_STILL_SECONDS = 2.0
_THAWED_AGAIN = 1.0  # seconds until a thaw that has failed is repeated
_MOST_THREADS = 32  # each waits for one container to freeze


class Freezer:
    """Freeze and thaw containers. ``holds`` is None on a node that cannot hold at the first instruction.

    ``owner`` (node and runtime's socket) is part of each mark: where nodes are simulated, a machine runs several
    agents, and each recognises its own.
    """

    def __init__(
        self,
        *,
        runtime: ports.ContainerStatuses,
        holds: ExecHolds | None,
        processes: ports.DeviceProcesses,
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
        self._not_thawed: list[Cgroup] = []
        self._turns: weakref.WeakValueDictionary[ContainerId, asyncio.Lock] = weakref.WeakValueDictionary()
        self._threads = ThreadPoolExecutor(max_workers=_MOST_THREADS, thread_name_prefix="freezer")

    @property
    def obstacle(self) -> str:
        """Return why no container of this node can be frozen; empty if it can be done."""
        if any((self._cgroup_root / name).exists() for name in cgroups.VERSION_2):
            return ""
        return f"no cgroup version 2 hierarchy at {self._cgroup_root}; mount one, or the host's /sys there"

    async def arm(self, container_id: ContainerId) -> Hold | None:
        """Prepare the start of a container; return None if it cannot be held at its first instruction."""
        if self._holds is None:
            return None
        try:
            return await self._holds.arm(container_id)
        except HoldError as error:
            log.warning("freezer.not_armed", container=container_id, error=str(error))
            return None

    def container_cgroup(self, pid: int | None) -> Cgroup | None:
        """Return the cgroup of a process's container; the pod's other containers are its siblings."""
        return self._group_of(pid) if pid else None

    async def freeze(
        self, container_id: ContainerId, *, mark: str, armed: Held | None = None, near: Cgroup | None = None
    ) -> float:
        """Freeze a started container; return the maximum number of seconds for which it has run.

        ``armed`` is its hold at the first instruction, which may be released afterwards; ``near`` is the cgroup of
        another container of its pod. Raises HoldError; harmless if the container has ended.

        Calls for one container are serialized: a caller that no longer holds it thaws it before the next one freezes
        it.
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
            if stood or not self._has_begun(group):
                return 0.0
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._threads, self._ran_until_still, container_id, group)
        except OSError as error:
            raise HoldError(
                f"cannot freeze {group.path}: {error.strerror or error}; mount /sys/fs/cgroup writable"
            ) from error

    def thaw(self, container_id: ContainerId) -> bool | None:
        """Thaw a container; return whether it has a running process, None if that cannot be told.

        The mark is set to released first, with the time, so that the next agent does not hold the container again.
        """
        group = self._groups.pop(container_id, None)
        if group is None:
            return None  # it is being frozen, or has never been
        try:
            if (text := group.mark) is not None and (mark := Mark.parse(text)).state != cgroups.RELEASED:
                now = time.clock_gettime(time.CLOCK_BOOTTIME)
                group.put_mark(str(replace(mark, state=cgroups.RELEASED, at=now)))
        except OSError as error:
            log.error("freezer.not_marked", container=container_id, error=str(error))  # it must run in any case
        try:
            group.thaw()
            runs = group.populated
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENODEV):
                return False  # the cgroup of a container that has ended is removed
            log.error("freezer.not_thawed", container=container_id, error=str(error))
            self._thaw_later(group)
            return None
        return runs

    def _thaw_later(self, group: Cgroup) -> None:
        """Thaw it in a moment, unless it is held again by then: the agent may just have no free descriptor."""

        def again() -> None:
            try:
                if Mark.parse(group.mark or "").state == cgroups.RELEASED:
                    group.thaw()
            except OSError:
                self._thaw_later(group)

        try:
            asyncio.get_running_loop().call_later(_THAWED_AGAIN, again)
        except RuntimeError:  # in a thread of ``take_over``, which goes on with it
            self._not_thawed.append(group)

    def kill(self, container_id: ContainerId) -> None:
        """Kill a frozen container that has not begun, or must not continue."""
        group = self._groups.pop(container_id, None)
        if group is None:
            return
        try:
            group.kill()
        except OSError as error:
            log.error("freezer.not_killed", container=container_id, error=str(error))

    async def take_over(self, *, keep: Mapping[str, float]) -> dict[str, dict[ContainerId, bool]]:
        """Find the containers that previous agents have frozen, and thaw those whose mark is not in ``keep``.

        Return all that were found, by mark, and whether each must still be held. ``keep`` maps a mark to the time
        (seconds since boot) from which its hold counts. A container that was released before that time was held by an
        earlier round: it is not returned.
        """
        found = await asyncio.get_running_loop().run_in_executor(self._threads, self._take_over, dict(keep))
        while self._not_thawed:
            self._thaw_later(self._not_thawed.pop())
        return found

    def left_frozen(self, states: Collection[str] = (cgroups.HELD, cgroups.REPLACED)) -> frozenset[ContainerId]:
        """Return the containers that agents of this node have frozen and not released; ``thaw`` or ``kill`` them.

        ``states`` selects them by the state of the mark: for a round (HELD), or as the old one of a swap (REPLACED).
        """
        found = set()
        for container_id, group, text in cgroups.marked(self._cgroup_root):
            with contained.within(contained.Part.CONTAINER, container_id):
                mark = Mark.parse(text)
                is_ours = mark.state in states and self._is_mine(mark.owner)
                if is_ours and group.frozen and group.populated:
                    self._groups[container_id] = group
                    found.add(container_id)
        return frozenset(found)

    def _take_over(self, keep: Mapping[str, float]) -> dict[str, dict[ContainerId, bool]]:
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
        keep: Mapping[str, float],
        found: dict[str, dict[ContainerId, bool]],
    ) -> None:
        mark = Mark.parse(text)
        if not self._is_mine(mark.owner) or mark.state == cgroups.REPLACED:
            return  # the journal ends replaced ones
        held = mark.state == cgroups.HELD
        if held and mark.text in keep and not group.frozen:
            return  # the previous agent died between marking and freezing: it runs, and ``hold_running`` freezes it
        if not held and mark.at is not None and mark.at < keep.get(mark.text, 0.0):
            return  # an earlier round held it, and released it before this one began
        found.setdefault(mark.text, {})[container_id] = held
        self._groups[container_id] = group
        if held and mark.text not in keep:
            log.warning("freezer.left_frozen", container=container_id, mark=mark.text)
        if not held or mark.text not in keep:
            self.thaw(container_id)

    def _is_mine(self, owner: str) -> bool:
        """Return whether an agent of this node put the mark: by its old name, too, if the runtime's socket has moved.

        No other agent would ever thaw such a container.
        """
        node, _, socket = owner.partition(" ")
        return owner == self._owner or (node == self._owner.partition(" ")[0] and not Path(socket).exists())

    async def _find(self, container_id: ContainerId, *, asker: int | None, near: Cgroup | None) -> Cgroup | None:
        """Return the container's cgroup by the shortest way; None if it no longer runs. Raises HoldError."""
        group = self._groups.get(container_id) or (self._group_of(asker) if asker else None)
        if group is None and near is not None:
            group = near.sibling(container_id)
        if group is not None:
            return group
        try:
            pid = (await self._runtime.container_status(container_id)).pid
        except NotFound:
            return None
        except CriError as error:
            raise HoldError(f"the runtime did not return the process of {container_id}: {error}") from error
        if not pid or not self._is_there(pid):
            return None
        if (group := self._group_of(pid)) is None:
            raise HoldError(
                f"the cgroup of {container_id} cannot be found at {self._cgroup_root}; "
                "this needs cgroup version 2, and the host's /sys/fs/cgroup mounted there"
            )
        return group if group.is_of(container_id) else None

    def _has_begun(self, group: Cgroup) -> bool:
        """Return whether a container that has just been frozen may have executed anything of its own.

        A frozen process does not return to user mode, so one that still has the name that runc or crun gave it has not.
        Other runtimes' names are unknown: for them the answer is yes.
        """
        pids = group.pids()
        return len(pids) > _MOST_BEFORE or bool({self._name(pid) for pid in pids} - {None} - _NOT_BEGUN)

    def _name(self, pid: int) -> str | None:
        """Return a process's name; None if it has ended, empty if it cannot be read."""
        try:
            comm = kernel_files.read(self._proc / str(pid) / "comm")
        except OSError:
            return ""
        return comm.removesuffix("\n") if comm is not None else None

    def _ran_until_still(self, container_id: ContainerId, group: Cgroup) -> float:
        """Block until the container is frozen; return for how long it can have run.

        Its first process began (as the OCI runtime's) before its first instruction, so this overestimates.
        """
        began = self._began(group)
        if not group.wait_frozen(timeout=_STILL_SECONDS):
            log.warning("freezer.timed_out", container=container_id, seconds=_STILL_SECONDS)
        now = time.clock_gettime(time.CLOCK_BOOTTIME)
        return max(now - began, 0.0) if began is not None else 0.0

    def _began(self, group: Cgroup) -> float | None:
        """Return when the first of its processes began, in seconds since boot."""
        facts = (device_processes.read_facts(self._processes, pid) for pid in group.pids())
        return min((process.started for process in facts if process is not None), default=None)

    def _is_there(self, pid: int) -> bool:
        """Return whether a process exists. One that cannot be read does."""
        try:
            return self._processes.facts(pid) is not None
        except OSError:
            return True

    def _group_of(self, pid: int) -> Cgroup | None:
        """Return the cgroup of a process's container; None if it is in none, or that is unknown."""
        try:
            return Cgroup.of_process(pid, proc=self._proc, mounted_at=self._cgroup_root)
        except OSError as error:
            log.warning("freezer.process_not_read", pid=pid, error=str(error))
            return None
