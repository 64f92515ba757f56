"""Hold a container at its first instruction: started for runtime and kubelet, but not yet running its own code.

A container's root is an overlay of its own: containerd mounts it at the start, at a place with the container's id;
CRI-O has mounted it before, at a place that only CRI-O knows (``Roots``). A fanotify mark for FAN_OPEN_EXEC_PERM on it
(fanotify_mark(2), Linux 5.0) makes the kernel ask the agent before it executes any file of that overlay; the process
blocks inside execve(2) until the agent answers. So the runtime reports the container as running although no instruction
of its image has been executed. If the agent dies the kernel allows everything: a hold can be lost, but never stays.
"""

import asyncio
import contextlib
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

import structlog

from kubemend.agent.actuator.hold import cgroups, fanotify
from kubemend.agent.actuator.hold.oci_runtimes import OciRuntimes
from kubemend.agent.actuator.hold.rootfs_mount_watch import RootfsMountWatcher
from kubemend.agent.clients.cri.errors import CriError
from kubemend.agent.model.workloads import ContainerId
from kubemend.common import kernel_files, root_mounts, unix_sockets

log = structlog.get_logger(__name__)

NEEDS_OVERLAYS = "use a snapshotter that makes overlays (containerd's overlayfs)"
"""The hint where a container's root is no file system of its own, so that it cannot be marked alone."""

MOST_WAITING: Final = 64
"""Processes of one container that are blocked at once: its first one, probes, and programs that people run in it. Each
takes a descriptor. Further ones are refused: none may run before the release."""

_MOST_THREADS = 32  # they remove marks, which waits for the kernel: as many as are released at once on a big node


class HoldError(Exception):
    """A container cannot be held on this node; the text contains the reason and the hint."""


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Timeouts in seconds.

    ``at_most`` ends every hold. It exceeds the time that a restart waits for its old container to die and to leave its
    devices (``context.LONGEST``), because a container that is released earlier runs next to the old one. ``hook``: a
    process that asks to execute for so long, while the runtime has not reported the start, is not the container but an
    OCI hook inside its root, which the start itself waits for. This does not apply to the first process of a PID
    namespace: that is the container, and the runtime is slow. ``engaged`` bounds the wait for the first exec after the
    start.
    """

    at_most: float = 660.0
    hook: float = 0.5
    engaged: float = 0.25


class Roots(Protocol):
    """A runtime that returns where containers' roots are mounted (``clients.cri.client.CriClient``)."""

    async def root_of(self, container_id: ContainerId) -> str | None:
        """Return the place, for a runtime that mounts it when it creates the container; else None. Raises CriError."""


class ExecHolds:
    """Create holds on one runtime's containers.

    ``socket_path`` is the runtime's socket: mounts are looked up as the process behind it sees them. ``roots`` is that
    runtime; None: it is containerd. ``oci_runtimes`` are those that it executes. Blocking calls do not use the event
    loop's default threads, which are few, because many holds run concurrently.
    """

    def __init__(
        self,
        *,
        socket_path: str,
        proc: Path,
        timeouts: Timeouts | None = None,
        roots: Roots | None = None,
        oci_runtimes: OciRuntimes | None = None,
    ) -> None:
        self._socket_path = socket_path
        self._root_lookup = roots
        self._proc = proc
        self._timeouts = timeouts if timeouts is not None else Timeouts()
        self._threads = ThreadPoolExecutor(max_workers=_MOST_THREADS, thread_name_prefix="hold")
        self._oci_runtimes = oci_runtimes if oci_runtimes is not None else OciRuntimes()
        self._roots: RootfsMountWatcher | None = None

    @property
    def at_most(self) -> float:
        """Return the number of seconds after which every hold ends."""
        return self._timeouts.at_most

    async def check(self) -> None:
        """Raise HoldError if no container can be held on this node."""
        os.close(_new_group())
        await self.runtime_process()

    async def check_roots(self) -> None:
        """Raise HoldError if none of the containers' roots that are mounted now can be marked.

        That is no property of the node: the next container's snapshotter may be another one.
        """
        runtime = await self.runtime_process()
        try:
            found = await asyncio.get_running_loop().run_in_executor(self._threads, self._watcher(runtime).kinds)
        except OSError as error:
            raise HoldError(f"cannot read the runtime's mounts: {error.strerror}") from error
        if found and root_mounts.OVERLAY not in found:
            raise HoldError(f"containers' roots are {', '.join(sorted(found))}, not overlays; {NEEDS_OVERLAYS}")

    async def could_have_held(self, container_id: ContainerId, *, runtime: Path) -> bool:
        """Return whether a running container could have been held, and so its successor can be. Raises HoldError.

        ``runtime`` is ``runtime_process``.
        """
        return await self._has_overlay(container_id, runtime, await self._root(container_id))

    async def arm(self, container_id: ContainerId, *, runtime: Path | None = None) -> "Hold":
        """Return the hold of a container that is about to be started. Always release it. Raises HoldError.

        ``runtime`` is ``runtime_process``, if it has just been looked up.
        """
        runtime = runtime or await self.runtime_process()
        root = await self._root(container_id)
        if root is not None and not await self._has_overlay(container_id, runtime, root):
            raise HoldError(f"the container's root is not an overlay; {NEEDS_OVERLAYS}")
        if self._roots is None or self._roots.runtime != runtime:
            self._roots = self._watcher(runtime)
        hold = Hold(container_id, proc=self._proc, roots=self._roots, threads=self._threads, timeouts=self._timeouts)
        if root is None:
            hold.mark_once_mounted()
        else:
            await self._mark(hold, runtime / "root" / root[1:])
        return hold

    async def _mark(self, hold: "Hold", root: Path) -> None:
        marking = asyncio.get_running_loop().run_in_executor(self._threads, hold.mark, root)
        try:
            await asyncio.shield(marking)
        except asyncio.CancelledError:  # it would hold a later start, too, whatever that one's hold allows
            marking.add_done_callback(lambda _: hold.release())
            raise

    def _watcher(self, runtime: Path) -> RootfsMountWatcher:
        return RootfsMountWatcher(runtime, oci_runtimes=self._oci_runtimes)

    async def _root(self, container_id: ContainerId) -> str | None:
        if self._root_lookup is None:
            return None
        try:
            return await self._root_lookup.root_of(container_id)
        except CriError as error:
            raise HoldError(f"the runtime does not return the path of the container's root: {error}") from error

    async def _has_overlay(self, container_id: ContainerId, runtime: Path, root: str | None) -> bool:
        """Return whether the root is mounted, and is an overlay. Raises HoldError."""
        watcher = self._watcher(runtime)
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, watcher.shows, container_id, root)
        except OSError as error:
            raise HoldError(f"cannot read the runtime's mounts: {error.strerror}") from error

    async def runtime_process(self) -> Path:
        """Return the runtime's directory in /proc, whose mounts are those of the host. Raises HoldError."""
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
    """One container's hold, armed before the start and released once.

    ``asker`` is the first blocked process, once there is one.
    """

    def __init__(
        self,
        container_id: ContainerId,
        *,
        proc: Path,
        roots: RootfsMountWatcher,
        threads: ThreadPoolExecutor,
        timeouts: Timeouts,
    ) -> None:
        self.asker: int | None = None
        self._container_id = container_id
        self._proc = proc
        self._roots = roots
        self._threads = threads
        self._timeouts = timeouts
        self._loop = asyncio.get_running_loop()
        self._group = _new_group()
        self._waiting: list[fanotify.PermissionEvent] = []
        self._asked = asyncio.Event()
        self._released = False
        self._started = False
        self._timers = [self._loop.call_later(timeouts.at_most, self.release)]
        self._loop.add_reader(self._group, self._on_events)

    def mark_once_mounted(self) -> None:
        """Mark the root as soon as it is mounted, at the start. Raises HoldError, and is released then."""
        try:
            self._roots.wait_for(self._container_id, self.mark)
        except OSError as error:
            self.release()
            raise HoldError(f"the runtime's mounts cannot be followed: {error.strerror}") from error

    def mark(self, root: Path) -> None:
        """Have the kernel ask before it executes a file of the overlay that is mounted there.

        It may have been unmounted since, because the start has failed: then nothing is marked.
        """
        try:
            mounted = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                if os.fstat(mounted).st_dev != os.stat("..", dir_fd=mounted).st_dev:
                    fanotify.mark(self._group, Path(f"/proc/self/fd/{mounted}"))
            finally:
                os.close(mounted)
        except OSError as error:
            log.warning("hold.not_marked", container=self._container_id, error=str(error))

    async def engaged(self) -> bool:
        """Return whether the container is held at its first instruction. Call when the runtime has started it.

        False: it runs already, because its program lies on a volume or the mark came too late.
        """
        self._started = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._timeouts.engaged):
                await self._asked.wait()
        return self._asked.is_set() and not self._released

    def release(self) -> None:
        """Release the container. May be called again."""
        if self._released:
            return
        self._released = True
        self.asker = None
        for timer in self._timers:
            timer.cancel()
        self._answer_all()
        self._roots.forget(self._container_id)
        # Not on the event loop: flushing waits for the kernel. Requests in the meantime are allowed.
        self._loop.run_in_executor(self._threads, fanotify.flush, self._group).add_done_callback(self._close)

    def _on_events(self) -> None:
        try:
            for asked in fanotify.permission_events(self._group):
                self._on_exec(asked)
        except BlockingIOError:
            pass
        except OSError as error:  # no descriptor is free: the kernel refuses the execution
            log.error("hold.not_read", container=self._container_id, error=str(error))

    def _on_exec(self, asked: fanotify.PermissionEvent) -> None:
        """Block the container's own processes; allow hooks, which run outside its cgroup."""
        if self._released or not self._is_inside(asked.pid):
            self._answer(fanotify.allow, asked)
            return
        if len(self._waiting) >= MOST_WAITING:
            self._forget_the_dead()
        if len(self._waiting) >= MOST_WAITING:
            log.warning("hold.too_many_wait", container=self._container_id)
            self._answer(fanotify.deny, asked)
            return
        self._waiting.append(asked)
        self.asker = self.asker or asked.pid  # further ones are probes, which kubelet ends
        self._asked.set()
        if not (self._started or self._is_first(asked.pid)):
            self._timers.append(self._loop.call_later(self._timeouts.hook, self._unless_started))

    def _unless_started(self) -> None:
        if not self._started:
            log.info("hold.hook", container=self._container_id)
            self._asked.clear()
            self._answer_all()
            self.asker = None

    def _is_inside(self, pid: int) -> bool:
        return cgroups.container_of(self._proc / str(pid)) == self._container_id

    def _is_first(self, pid: int) -> bool:
        """Return whether a process is the first of a PID namespace; containers of most pods have one."""
        return _is_first_of_namespace(self._read(pid, "status"))

    def _read(self, pid: int, name: str) -> str:
        """Return a file of a process in /proc; empty if it cannot be read."""
        try:
            return kernel_files.read(self._proc / str(pid) / name) or ""
        except OSError:
            return ""

    def _forget_the_dead(self) -> None:
        """Probes time out, and are killed, again and again."""
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            if self._is_inside(each.pid):
                self._waiting.append(each)
            else:
                self._answer(fanotify.allow, each)

    def _answer_all(self) -> None:
        while self._waiting:
            self._answer(fanotify.allow, self._waiting.pop())

    def _answer(self, answer: Callable[[int, int], None], asked: fanotify.PermissionEvent) -> None:
        try:
            answer(self._group, asked.file)
        except FileNotFoundError:  # the process was killed in the meantime
            log.debug("hold.process_ended", container=self._container_id)

    def _close(self, _: "asyncio.Future[None]") -> None:
        self._loop.remove_reader(self._group)
        self._loop.run_in_executor(self._threads, os.close, self._group)


def _is_first_of_namespace(status: str) -> bool:
    """Read it from the text of ``/proc/<pid>/status`` (proc_pid_status(5)), independent of the process's name."""
    ids = next((line.split()[1:] for line in kernel_files.lines(status) if line.startswith("NSpid:")), [])
    return len(ids) > 1 and ids[-1] == "1"


def _new_group() -> int:
    """Return a new fanotify group. Raises HoldError."""
    try:
        return fanotify.new_group()
    except OSError as error:
        raise HoldError(
            f"fanotify is not available: {error.strerror}; the agent needs CAP_SYS_ADMIN and Linux 5.3"
        ) from error
