"""Hold a container at its first instruction: started for runtime and kubelet, but running nothing of its own yet.

A container's root is an overlay of its own. A fanotify mark for FAN_OPEN_EXEC_PERM on it (fanotify_mark(2), Linux 5.0)
makes the kernel ask us before any file of it is executed, and the asking process stands still inside execve(2) until we
answer. So the runtime reports the container as running while not one instruction of its image has been executed. When
the agent dies the kernel lets everything through: a hold can be lost, but never stay.
"""

import asyncio
import contextlib
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import structlog

from agent.actuator import fanotify
from agent.actuator.roots import Roots
from agent.health import cgroup_paths
from agent.model.workloads import ContainerId
from common import kernel_files, root_mounts, unix_sockets

log = structlog.get_logger(__name__)

NEEDS_OVERLAYS = "use a snapshotter that makes overlays (containerd's overlayfs)"
"""The mend where the root of a container is no file system of its own, so that no mark can be put on it alone."""

_MOST_THREADS = 32  # to take marks away, which waits for the kernel: as many as are released at once on a big node


class HoldError(Exception):
    """A container cannot be held here; the text says why, and the mend."""


@dataclass(frozen=True, slots=True)
class Patience:
    """Seconds. ``at_most`` ends every hold: more than a restart waits for its old container to die and to leave its
    devices (``tools.LONGEST``), for what is let go before that runs beside it. ``hook``: who asks to execute while
    the runtime has not said "started" for so long is no container but an OCI hook inside its root, which the start
    itself waits for. Of the first process of a PID namespace that is not believed: it is the container, and the runtime
    is slow."""

    at_most: float = 660.0
    hook: float = 0.5
    engaged: float = 0.25


class ExecHolds:
    """Makes holds on one runtime's containers.

    ``socket_path`` is the runtime's socket: the mounts are looked up where the process behind it sees them. Nothing of
    it uses the event loop's own threads, which are few: many holds go side by side.
    """

    def __init__(self, *, socket_path: str, proc: Path, patience: Patience | None = None) -> None:
        self._socket_path = socket_path
        self._proc = proc
        self._patience = patience if patience is not None else Patience()
        self._threads = ThreadPoolExecutor(max_workers=_MOST_THREADS, thread_name_prefix="hold")
        self._roots: Roots | None = None

    async def check(self) -> None:
        """Raises HoldError when no container can be held on this node."""
        os.close(_new_group())
        runtime = await self._runtime_process()
        try:
            found = await asyncio.get_running_loop().run_in_executor(self._threads, Roots(runtime).kinds)
        except OSError as error:
            raise HoldError(f"cannot read the runtime's mounts: {error.strerror}") from error
        if found and root_mounts.OVERLAY not in found:
            raise HoldError(f"containers' roots are {', '.join(sorted(found))}, not overlays; {NEEDS_OVERLAYS}")

    async def could_have_held(self, container_id: ContainerId) -> bool:
        """Whether a container that runs now could have been held, and so its successor can be. Raises HoldError."""
        runtime = await self._runtime_process()
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, Roots(runtime).shows, container_id)
        except OSError as error:
            raise HoldError(f"cannot read the runtime's mounts: {error.strerror}") from error

    async def arm(self, container_id: ContainerId) -> "Hold":
        """Return the hold of a container that is about to be started. Release it in any case. Raises HoldError."""
        runtime = await self._runtime_process()
        if self._roots is None or self._roots.runtime != runtime:
            self._roots = Roots(runtime)
        return Hold(container_id, proc=self._proc, roots=self._roots, threads=self._threads, patience=self._patience)

    async def _runtime_process(self) -> Path:
        loop = asyncio.get_running_loop()
        try:
            pid = await loop.run_in_executor(self._threads, unix_sockets.listener, self._socket_path)
            process = self._proc / str(pid)
            (process / "mountinfo").open().close()
        except OSError as error:
            raise HoldError(
                f"cannot see the mounts of the runtime behind {self._socket_path}: {error.strerror or error}; "
                "the agent needs the host's PID namespace and CAP_SYS_PTRACE"
            ) from error
        return process


class Hold:
    """One container's hold, armed from the start and released once.

    ``asker`` is the process that stands still, once there is one.
    """

    def __init__(
        self, container_id: ContainerId, *, proc: Path, roots: Roots, threads: ThreadPoolExecutor, patience: Patience
    ) -> None:
        self.asker: int | None = None
        self._container_id = container_id
        self._proc = proc
        self._roots = roots
        self._threads = threads
        self._patience = patience
        self._loop = asyncio.get_running_loop()
        self._group = _new_group()
        self._waiting: list[int] = []
        self._asked = asyncio.Event()
        self._released = False
        self._started = False
        self._timers = [self._loop.call_later(patience.at_most, self.release)]
        self._loop.add_reader(self._group, self._on_events)
        roots.wait_for(container_id, self._mark)

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
        self.asker = None
        for timer in self._timers:
            timer.cancel()
        self._answer_all()
        self._roots.forget(self._container_id)
        # Not on the event loop: it waits for the kernel, and what is asked meanwhile is let through.
        self._loop.run_in_executor(self._threads, fanotify.flush, self._group).add_done_callback(self._close)

    def _on_events(self) -> None:
        with contextlib.suppress(BlockingIOError):
            for asked in fanotify.asked(self._group):
                self._on_exec(asked)

    def _on_exec(self, asked: fanotify.Asked) -> None:
        """Keep the container's own processes waiting; hooks that run outside its cgroup are none of them."""
        if self._released or not self._is_inside(asked.pid):
            self._allow(asked.file)
            return
        self._waiting.append(asked.file)
        self.asker = asked.pid
        self._asked.set()
        if not self._is_first(asked.pid):
            self._timers.append(self._loop.call_later(self._patience.hook, self._unless_started))

    def _unless_started(self) -> None:
        if not self._started:
            log.info("hold.hook", container=self._container_id)
            self._asked.clear()
            self._answer_all()
            self.asker = None

    def _is_inside(self, pid: int) -> bool:
        return cgroup_paths.container_id(self._read(pid, "cgroup")) == self._container_id

    def _is_first(self, pid: int) -> bool:
        """Whether a process is the first of a PID namespace: containers of most pods have one."""
        return _is_first_of_namespace(self._read(pid, "status"))

    def _read(self, pid: int, name: str) -> str:
        """Return what is said of a process; nothing when that cannot be told."""
        try:
            return kernel_files.read(self._proc / str(pid) / name) or ""
        except OSError:
            return ""

    def _answer_all(self) -> None:
        while self._waiting:
            self._allow(self._waiting.pop())

    def _allow(self, file: int) -> None:
        try:
            fanotify.allow(self._group, file)
        except FileNotFoundError:  # who asked was killed meanwhile
            log.debug("hold.asker_gone", container=self._container_id)

    def _mark(self, root: Path) -> None:
        try:
            fanotify.mark(self._group, root)
        except OSError as error:
            log.warning("hold.not_marked", container=self._container_id, error=str(error))

    def _close(self, _: "asyncio.Future[None]") -> None:
        self._loop.remove_reader(self._group)
        self._loop.run_in_executor(self._threads, os.close, self._group)


def _is_first_of_namespace(status: str) -> bool:
    """Read it from the text of ``/proc/<pid>/status`` (proc_pid_status(5)), whatever the process calls itself."""
    ids = next((line.split()[1:] for line in kernel_files.lines(status) if line.startswith("NSpid:")), [])
    return len(ids) > 1 and ids[-1] == "1"


def _new_group() -> int:
    """Return a new fanotify group. Raises HoldError."""
    try:
        return fanotify.new_group()
    except OSError as error:
        raise HoldError(
            f"fanotify is not to be had: {error.strerror}; the agent needs CAP_SYS_ADMIN and Linux 5.3"
        ) from error
