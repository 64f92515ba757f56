"""Put a successor on standby: started next to its frozen predecessor, and held until that is dead."""

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import structlog

from kubemend.agent.actuator.hold import cgroups, pod_memory
from kubemend.agent.actuator.hold.cgroups import Cgroup, Mark
from kubemend.agent.actuator.hold.driver_hold import DriverHolds, NotHeldError
from kubemend.agent.actuator.hold.exec_hold import NEEDS_OVERLAYS, ExecHolds, HoldError
from kubemend.agent.health import cgroup_paths
from kubemend.agent.model.workloads import ContainerId
from kubemend.agent.restart import headroom
from kubemend.agent.restart.overlap import Obstacle

log = structlog.get_logger(__name__)

_STILL_SECONDS = 0.05
"""Seconds to wait until a container is frozen, which takes a millisecond unless a process hangs or ends."""

_MOST_THREADS = 32  # each waits for one container to end


class Held(Protocol):
    """The successor (``exec_hold.Hold``); ``asker`` is its process, once blocked at its first instruction."""

    asker: int | None

    async def engaged(self) -> bool: ...
    def release(self) -> None: ...


class Released(Protocol):
    """A hold of the openings of the successor's driver libraries (``driver_hold.DriverHold``)."""

    def release(self) -> None: ...


class Frozen(Protocol):
    """The old container (``cgroups.Cgroup``). Each call raises OSError."""

    def thaw(self) -> None: ...
    def kill(self) -> None: ...
    def wait_ended(self, *, timeout: float) -> bool: ...


class EndedError(HoldError):
    """The container to replace has no process any more: it has ended, though the runtime may still list it."""


@dataclass(slots=True)
class Standby:
    """One successor on standby. Either ``release_successor`` or ``give_up`` ends it; both may be called again.

    ``driver`` holds it at the GPU driver's libraries once it may import (``Standbys.overlap``).
    """

    hold: Held
    old: Frozen
    driver: Released | None = None

    async def engaged(self) -> None:
        """Verify the hold. Call when the runtime has started the successor."""
        if not await self.hold.engaged():
            log.warning("standby.not_held")  # it runs, next to a frozen one

    def release_successor(self, *, old_is_dead: bool) -> None:
        """Release the successor; kill the old one first if it is not dead."""
        if not old_is_dead:
            _try(self.old.kill)
        self.release()

    def release(self) -> None:
        """Release the successor, also if the old one still runs."""
        self.hold.release()
        if self.driver is not None:
            self.driver.release()

    def give_up(self) -> None:
        """Thaw the old one; the successor must be gone."""
        self.release()
        _try(self.old.thaw)


@dataclass(frozen=True, slots=True)
class _Old:
    """An old container that bears a mark while it is frozen, by which the next agent recognises it."""

    cgroup: Cgroup
    owner: str

    def freeze(self) -> None:
        """Freeze it. One that is already held for a round keeps that mark."""
        if self._state != cgroups.HELD:
            self._put(cgroups.REPLACED)
        self.cgroup.freeze()

    def thaw(self) -> None:
        """Thaw it; one that cannot be thawed keeps its mark."""
        self.cgroup.thaw()
        if self._state == cgroups.REPLACED:
            self._put(cgroups.RELEASED)

    def kill(self) -> None:
        self.cgroup.kill()

    def wait_ended(self, *, timeout: float) -> bool:
        return self.cgroup.wait_ended(timeout=timeout)

    @property
    def _state(self) -> str:
        return Mark.parse(self.cgroup.mark or "").state

    def _put(self, state: str) -> None:
        """Write a mark. If that fails, only the journal can end the container."""
        try:
            self.cgroup.put_mark(str(Mark(state, "-", self.owner)))
        except OSError as error:
            log.warning("standby.not_marked", cgroup=str(self.cgroup.path), error=str(error))


class Standbys:
    """Put successors on standby. Call ``check`` first: not every node can. ``owner`` is part of each mark."""

    def __init__(self, *, holds: ExecHolds, proc: Path, cgroup_root: Path, owner: str = "") -> None:
        self._holds = holds
        self._proc = proc
        self._cgroup_root = cgroup_root
        self._owner = owner
        self._threads = ThreadPoolExecutor(max_workers=_MOST_THREADS, thread_name_prefix="standby")
        self._drivers = DriverHolds(at_most=holds.at_most, threads=self._threads)

    async def check(self) -> None:
        """Raise HoldError if this node cannot do it."""
        await self._holds.check()
        try:
            os.close(os.pidfd_open(os.getpid()))
        except OSError as error:
            raise HoldError(f"pidfd_open(2) is not available: {error.strerror}; the agent needs Linux 5.3") from error
        if not any((self._cgroup_root / name).exists() for name in cgroups.VERSION_2):
            raise HoldError(
                f"no cgroup version 2 hierarchy at {self._cgroup_root}; mount one, or the host's /sys there"
            )

    async def check_old(self, pid: int | None, *, of: ContainerId | None = None) -> Path:
        """Return the runtime's directory in /proc. Raises HoldError if no successor can be held next to the old one.

        ``of`` is the old one's id, here and below: the PID may have been read long ago, or a runtime may show that of a
        process that has ended, and the kernel may have given it to a process of another container. None: that is not
        checked.

        The successor's root will be of the old one's kind: of the same image, by the same snapshotter. Both are in the
        pod's memory limit until the old one is dead (``agent.restart.headroom``).
        """
        memory = pod_memory.of_process(pid, proc=self._proc, mounted_at=self._cgroup_root) if pid else None
        if reason := headroom.no_room_reason(memory):
            raise HoldError(reason)
        cgroup = self._cgroup(pid, of=of)
        old = cgroup_paths.container_id(cgroup.path.name) if cgroup is not None else None
        runtime = await self._holds.runtime_process()
        if old is not None and not await self._holds.could_have_held(old, runtime=runtime):
            raise HoldError(
                f"the container's root is not an overlay: its successor would run next to it; {NEEDS_OVERLAYS}"
            )
        return runtime

    async def prepare(
        self,
        successor: ContainerId,
        *,
        old_pid: int | None,
        old: ContainerId | None = None,
        checked: Path | None = None,
    ) -> Standby:
        """Freeze the old container and prepare the start of its successor. Raises HoldError.

        ``checked`` is what ``check_old`` has just returned; then the old one is frozen already.
        """
        hold = await self._holds.arm(successor, runtime=checked or await self.check_old(old_pid, of=old))
        try:
            frozen = self._old(old_pid, of=old) if checked else self._freeze(old_pid, of=old)
        except HoldError:
            hold.release()
            raise
        return Standby(hold=hold, old=frozen)

    async def overlap(self, standby: Standby) -> Obstacle | None:
        """Have a held successor run up to its first opening of the GPU driver; return why it does not, and stays held.

        Call it when the runtime has started the successor: OCI hooks may open the libraries, too.
        """
        pid = standby.hold.asker
        if pid is None:
            return Obstacle.NOT_HELD
        memory = pod_memory.of_process(pid, proc=self._proc, mounted_at=self._cgroup_root)
        if not headroom.has_room(memory, needed=headroom.IMPORTING_SUCCESSOR_BYTES):
            return Obstacle.NO_ROOM
        try:
            driver = await self._drivers.arm(self._proc / str(pid), runtime=await self._holds.runtime_process())
        except (NotHeldError, HoldError) as error:
            obstacle = error.obstacle if isinstance(error, NotHeldError) else Obstacle.NOT_MARKED
            log.info("standby.no_driver", reason=obstacle.value, error=str(error))
            return obstacle
        if standby.hold.asker != pid:  # its hold has ended in the meantime
            driver.release()
            return Obstacle.NOT_HELD
        standby.driver = driver
        standby.hold.release()
        return None

    async def kill(self, standby: Standby, *, timeout: float) -> bool:
        """Kill the old container of a standby; return whether all of its processes have ended within ``timeout``."""

        def kill() -> bool:
            standby.old.kill()
            return standby.old.wait_ended(timeout=timeout)

        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, kill)
        except OSError as error:
            log.error("standby.cgroup", error=str(error))
            return False

    def freeze(self, pid: int | None, *, of: ContainerId | None = None) -> None:
        """Freeze a container. Raises HoldError."""
        self._freeze(pid, of=of)

    async def is_frozen(self, pid: int | None, *, of: ContainerId | None = None) -> bool:
        """Return whether a container that must freeze has done so, with this process of it.

        It ends by nothing but a kill then. A process that is about to end never freezes: the kernel takes down its
        memory and its devices first, which takes long for a program on a GPU.
        """
        try:
            cgroup = self._cgroup(pid, of=of)
            if cgroup is None:
                return False
            frozen = cgroup.wait_frozen(timeout=0) or await asyncio.to_thread(
                cgroup.wait_frozen, timeout=_STILL_SECONDS
            )
            return frozen and pid in cgroup.pids()
        except (HoldError, OSError) as error:
            log.error("standby.cgroup", error=str(error))
            return False

    def thaw(self, pid: int | None, *, of: ContainerId | None = None) -> None:
        """Thaw a container that may be frozen, also by a previous agent. Raises HoldError."""
        if (cgroup := self._cgroup(pid, of=of)) is None:
            return
        try:
            _Old(cgroup, self._owner).thaw()
        except OSError as error:
            raise HoldError(f"cannot thaw {cgroup.path}: {error.strerror}") from error

    def _freeze(self, pid: int | None, *, of: ContainerId | None) -> _Old:
        old = self._old(pid, of=of)
        try:
            old.freeze()
        except OSError as error:
            raise HoldError(
                f"cannot freeze {old.cgroup.path}: {error.strerror}; mount /sys/fs/cgroup writable"
            ) from error
        return old

    def _old(self, pid: int | None, *, of: ContainerId | None) -> _Old:
        cgroup = self._cgroup(pid, of=of)
        if cgroup is None:
            if not pid or not (self._proc / str(pid)).exists() or self._cgroup(pid, of=None) is not None:
                raise EndedError(f"the container to replace has ended by itself (pid {pid})")
            raise HoldError(f"the cgroup of the container to replace (pid {pid}) cannot be found")
        return _Old(cgroup, self._owner)

    def _cgroup(self, pid: int | None, *, of: ContainerId | None) -> Cgroup | None:
        if not pid:
            return None
        try:
            cgroup = Cgroup.of_process(pid, proc=self._proc, mounted_at=self._cgroup_root)
        except OSError as error:
            raise HoldError(f"the cgroup of pid {pid} cannot be read: {error.strerror}") from error
        return None if cgroup is None or not (of is None or cgroup.is_of(of)) else cgroup


def _try(act: Callable[[], None]) -> None:
    try:
        act()
    except OSError as error:
        log.error("standby.cgroup", error=str(error))
