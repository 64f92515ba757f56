"""Hold a container at its first instruction: started for runtime and kubelet, but running nothing of its own yet.

A container's root is an overlay of its own. A fanotify mark for FAN_OPEN_EXEC_PERM on it (fanotify_mark(2), Linux 5.0)
makes the kernel ask us before any file of it is executed, and the asking process stands still inside execve(2) until we
answer. So the runtime reports the container as running while not one instruction of its image has been executed. When
the agent dies the kernel lets everything through: a hold can be lost, but never stay.
"""

import asyncio
import contextlib
import ctypes
import os
import select
import struct
from dataclasses import dataclass
from pathlib import Path

import structlog

from agent.health import cgroup_paths
from agent.model.workloads import ContainerId
from common import unix_sockets

log = structlog.get_logger(__name__)


class HoldError(Exception):
    """A container cannot be held here; the text says why, and the mend."""


_CLASS_CONTENT, _CLOEXEC = 0x4, 0x1  # linux/fanotify.h
_MARK_ADD, _MARK_FLUSH, _MARK_FILESYSTEM = 0x1, 0x80, 0x100
_OPEN_EXEC_PERM = 0x40000
_ALLOW = 0x1
_AT_FDCWD = -100
_EVENT = struct.Struct("=IBBHQii")  # struct fanotify_event_metadata
_ANSWER = struct.Struct("=iI")  # struct fanotify_response
_libc = ctypes.CDLL(None, use_errno=True)

_LOOK_AGAIN_MS = 1000


@dataclass(frozen=True, slots=True)
class Patience:
    """Seconds. ``at_most`` ends every hold. ``hook``: who asks to execute while the runtime has not said "started" for
    so long is no container but an OCI hook inside its root, which the start itself waits for."""

    at_most: float = 10.0
    hook: float = 0.5
    engaged: float = 0.25


class ExecHolds:
    """Makes holds on one runtime's containers.

    ``socket_path`` is the runtime's socket: the mounts are looked up where the process behind it sees them.
    """

    def __init__(self, *, socket_path: str, proc: Path, patience: Patience | None = None) -> None:
        self._socket_path = socket_path
        self._proc = proc
        self._patience = patience if patience is not None else Patience()

    async def check(self) -> None:
        """Raises HoldError when no container can be held on this node."""
        os.close(_new_group())
        await self._runtime_process()

    async def arm(self, container_id: ContainerId) -> "Hold":
        """Return the hold of a container that is about to be started. Release it in any case. Raises HoldError."""
        runtime = await self._runtime_process()
        return Hold(container_id, proc=self._proc, runtime=runtime, patience=self._patience)

    async def _runtime_process(self) -> Path:
        try:
            pid = await asyncio.to_thread(unix_sockets.listener, self._socket_path)
            process = self._proc / str(pid)
            (process / "mountinfo").open().close()
        except OSError as error:
            raise HoldError(
                f"cannot see the mounts of the runtime behind {self._socket_path}: {error.strerror or error}; "
                "the agent needs the host's PID namespace and CAP_SYS_PTRACE"
            ) from error
        return process


class Hold:
    """One container's hold, armed from the start and released once."""

    def __init__(self, container_id: ContainerId, *, proc: Path, runtime: Path, patience: Patience) -> None:
        self._container_id = container_id
        self._proc = proc
        self._runtime = runtime
        self._patience = patience
        self._loop = asyncio.get_running_loop()
        self._group = _new_group()
        self._waiting: list[int] = []
        self._asked = asyncio.Event()
        self._released = False
        self._started = False
        self._timers = [self._loop.call_later(patience.at_most, self.release)]
        self._wake = os.eventfd(0, os.EFD_CLOEXEC)
        self._loop.add_reader(self._group, self._on_events)
        self._marking = self._loop.run_in_executor(None, self._mark_when_mounted)

    async def engaged(self) -> bool:
        """Call when the runtime has started it. Whether it stands at its first instruction.

        False: it runs already, because what it executes lies on a volume or the mark came too late.
        """
        self._started = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._patience.engaged):
                await self._asked.wait()
        return self._asked.is_set() and not self._released

    def release(self) -> None:
        """Let it run. May be called again."""
        if self._released:
            return
        self._released = True
        for timer in self._timers:
            timer.cancel()
        self._answer_all()
        os.eventfd_write(self._wake, 1)
        self._marking.add_done_callback(self._take_mark_away)

    def _on_events(self) -> None:
        with contextlib.suppress(BlockingIOError):
            data = os.read(self._group, 4096)
            for size, _, _, _, _, file, pid in _EVENT.iter_unpack(data):
                assert size == _EVENT.size
                self._on_exec(file, pid)

    def _on_exec(self, file: int, pid: int) -> None:
        """Keep the container's own processes waiting; hooks that run outside its cgroup are none of them."""
        if self._released or not self._is_inside(pid):
            self._allow(file)
            return
        self._waiting.append(file)
        self._asked.set()
        self._timers.append(self._loop.call_later(self._patience.hook, self._unless_started))

    def _unless_started(self) -> None:
        if not self._started:
            log.info("hold.hook", container=self._container_id)
            self._asked.clear()
            self._answer_all()

    def _is_inside(self, pid: int) -> bool:
        try:
            cgroup = (self._proc / str(pid) / "cgroup").read_text()
        except OSError:
            return False
        return cgroup_paths.container_id(cgroup) == self._container_id

    def _answer_all(self) -> None:
        while self._waiting:
            self._allow(self._waiting.pop())

    def _allow(self, file: int) -> None:
        try:
            os.write(self._group, _ANSWER.pack(file, _ALLOW))
        except FileNotFoundError:  # who asked was killed meanwhile
            log.debug("hold.asker_gone", container=self._container_id)
        finally:
            os.close(file)

    def _mark_when_mounted(self) -> None:
        """Wait for the container's root to be mounted, and mark it: some 20 ms before anything of it is executed."""
        with (self._runtime / "mountinfo").open() as mounts:
            poll = select.poll()
            poll.register(mounts, select.POLLPRI | select.POLLERR)  # proc_pid_mountinfo(5): on every change
            poll.register(self._wake, select.POLLIN)
            while not self._released:
                if (root := _root_of(self._container_id, mounts.read())) is not None:
                    _mark(self._group, self._runtime / "root" / root.lstrip("/"))
                    return
                poll.poll(_LOOK_AGAIN_MS)
                mounts.seek(0)

    def _take_mark_away(self, marking: "asyncio.Future[None]") -> None:
        """Not on the event loop: it waits some 10 ms for the kernel, and what is asked meanwhile is let through."""
        if not marking.cancelled() and (error := marking.exception()) is not None:
            log.warning("hold.not_marked", container=self._container_id, error=str(error))
        self._loop.run_in_executor(None, _flush, self._group).add_done_callback(self._close)

    def _close(self, _: "asyncio.Future[None]") -> None:
        self._loop.remove_reader(self._group)
        os.close(self._wake)
        self._loop.run_in_executor(None, os.close, self._group)


def _new_group() -> int:
    """Return a new fanotify group. Raises HoldError."""
    group: int = _libc.fanotify_init(_CLASS_CONTENT | _CLOEXEC, os.O_RDONLY | os.O_CLOEXEC)
    if group < 0:
        reason = os.strerror(ctypes.get_errno())
        raise HoldError(f"fanotify is not to be had: {reason}; the agent needs CAP_SYS_ADMIN and Linux 5.0")
    os.set_blocking(group, False)
    return group


def _mark(group: int, root: Path) -> None:
    """Ask for every execution on the filesystem that is mounted there. Raises OSError."""
    path = os.fsencode(root)
    how = _MARK_ADD | _MARK_FILESYSTEM
    if _libc.fanotify_mark(group, how, ctypes.c_uint64(_OPEN_EXEC_PERM), ctypes.c_int(_AT_FDCWD), path) < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(root))


def _flush(group: int) -> None:
    """Take all marks of a group away."""
    _libc.fanotify_mark(group, _MARK_FLUSH | _MARK_FILESYSTEM, ctypes.c_uint64(0), ctypes.c_int(_AT_FDCWD), None)


def _root_of(container_id: ContainerId, mountinfo: str) -> str | None:
    """Return where a container's root is mounted, from the text of ``/proc/<pid>/mountinfo``.

    Overlays only: they are filesystems of their own. To mark what a bind mount shows would stop the whole node.
    """
    for line in mountinfo.splitlines():
        place, _, kind = line.partition(" - ")
        if kind.startswith("overlay ") and container_id in place:
            mount_point = place.split()[4]
            if mount_point.endswith(f"/{container_id}/rootfs"):
                return mount_point
    return None
