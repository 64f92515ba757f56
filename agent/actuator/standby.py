"""A successor on standby: started beside its frozen predecessor, and held until that is dead."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import structlog

from agent.actuator import cgroups
from agent.actuator.cgroups import Cgroup, Mark
from agent.actuator.exec_hold import NEEDS_OVERLAYS, ExecHolds, HoldError
from agent.health import cgroup_paths
from agent.model.workloads import ContainerId

log = structlog.get_logger(__name__)


class Held(Protocol):
    """The successor (``exec_hold.Hold``); ``asker`` is its process, once that stands at its first instruction."""

    asker: int | None

    async def engaged(self) -> bool: ...
    def release(self) -> None: ...


class Frozen(Protocol):
    """The old container (``cgroups.Cgroup``). Each call raises OSError."""

    def thaw(self) -> None: ...
    def kill(self) -> None: ...


@dataclass(slots=True)
class Standby:
    """One successor on standby. Exactly one of ``let_run`` and ``give_up`` ends it; both may be called again."""

    hold: Held
    old: Frozen

    async def engaged(self) -> None:
        """Call when the runtime has started the successor."""
        if not await self.hold.engaged():
            log.warning("standby.not_held")  # it runs, beside one that stands still

    def let_run(self, *, old_is_dead: bool) -> None:
        """Let the successor run; the old one must be dead before."""
        if not old_is_dead:
            _try(self.old.kill)
        self.hold.release()

    def give_up(self) -> None:
        """Let the old one go on; the successor must be gone."""
        self.hold.release()
        _try(self.old.thaw)


@dataclass(frozen=True, slots=True)
class _Old:
    """An old container that bears a mark while it stands still: whoever comes after us knows it for ours."""

    cgroup: Cgroup
    owner: str

    def freeze(self) -> None:
        """Keep it from running on. One that is held for a round already keeps that mark."""
        if self._state != cgroups.HELD:
            self._put(cgroups.REPLACED)
        self.cgroup.freeze()

    def thaw(self) -> None:
        if self._state == cgroups.REPLACED:
            self._put(cgroups.LET_GO)
        self.cgroup.thaw()

    def kill(self) -> None:
        self.cgroup.kill()

    @property
    def _state(self) -> str:
        return Mark.parse(self.cgroup.mark or "").state

    def _put(self, state: str) -> None:
        """Where nothing can be written on it, it is the journal's alone to end."""
        try:
            self.cgroup.put_mark(str(Mark(state, "-", self.owner)))
        except OSError as error:
            log.warning("standby.not_marked", cgroup=str(self.cgroup.path), error=str(error))


class Standbys:
    """Puts successors on standby. ``check`` first: not every node can. ``owner`` is written on what stands still."""

    def __init__(self, *, holds: ExecHolds, proc: Path, cgroup_root: Path, owner: str = "") -> None:
        self._holds = holds
        self._proc = proc
        self._cgroup_root = cgroup_root
        self._owner = owner

    async def check(self) -> None:
        """Raises HoldError when this node cannot do it."""
        await self._holds.check()
        try:
            os.close(os.pidfd_open(os.getpid()))
        except OSError as error:
            raise HoldError(f"pidfd_open(2) is not to be had: {error.strerror}; the agent needs Linux 5.3") from error
        if not any((self._cgroup_root / name).exists() for name in cgroups.VERSION_2):
            raise HoldError(
                f"no cgroup version 2 hierarchy at {self._cgroup_root}; mount one, or the host's /sys there"
            )

    async def prepare(self, successor: ContainerId, *, old_pid: int | None) -> Standby:
        """Freeze the old container, and be ready for the start of its successor. Raises HoldError.

        The successor's root will be what the old one's is: of the same image, by the same snapshotter.
        """
        old_cgroup = self._cgroup(old_pid)
        old_id = cgroup_paths.container_id(old_cgroup.path.name) if old_cgroup is not None else None
        if old_id is not None and not await self._holds.could_have_held(old_id):
            raise HoldError(f"its root is no overlay, and its successor would run beside it; {NEEDS_OVERLAYS}")
        hold = await self._holds.arm(successor)
        try:
            old = self._freeze(old_pid)
        except HoldError:
            hold.release()
            raise
        return Standby(hold=hold, old=old)

    def freeze(self, pid: int | None) -> None:
        """Keep a container from running on. Raises HoldError."""
        self._freeze(pid)

    def thaw(self, pid: int | None) -> None:
        """Let a container go on that an agent, dead since, may have frozen."""
        if (cgroup := self._cgroup(pid)) is not None:
            _try(_Old(cgroup, self._owner).thaw)

    def _freeze(self, pid: int | None) -> _Old:
        cgroup = self._cgroup(pid)
        if cgroup is None:
            raise HoldError(f"the cgroup of the container to replace (pid {pid}) cannot be found")
        old = _Old(cgroup, self._owner)
        try:
            old.freeze()
        except OSError as error:
            raise HoldError(f"cannot freeze {cgroup.path}: {error.strerror}; mount /sys/fs/cgroup writable") from error
        return old

    def _cgroup(self, pid: int | None) -> Cgroup | None:
        if not pid:
            return None
        return Cgroup.of_process(pid, proc=self._proc, mounted_at=self._cgroup_root)


def _try(act: Callable[[], None]) -> None:
    try:
        act()
    except OSError as error:
        log.error("standby.cgroup", error=str(error))
