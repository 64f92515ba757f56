"""Detect which containers the runtime was asked to stop, from the signals that its OCI runtime sends.

CRI reports how a container has ended, but not whether a stop was requested. But a runtime that stops a container
executes ``runc kill ID SIGNAL`` (or crun's) before the signal is sent, and the kernel reports each execution of that
file (fanotify(7), FAN_OPEN_EXEC). A missed execution costs only this knowledge: it is used to doubt, never to act.
"""

import asyncio
import contextlib
import os
import select
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog

from kubemend.agent.actuator.hold import fanotify, oci_runtimes
from kubemend.agent.model.workloads import ContainerId
from kubemend.common import aio, contained, kernel_files, process, unix_sockets

log = structlog.get_logger(__name__)

_REFRESH_SECONDS: Final = 60.0
"""Seconds after which the OCI runtimes are looked up again: an upgrade replaces the file."""
_TRIES: Final = tuple(0.0005 * 2**doubled for doubled in range(12))
"""Seconds between reads of a process that is about to become the OCI runtime: the kernel notifies before it has become
that, and on a busy node it may wait long for a processor."""
_MOST_AT_ONCE: Final = 256
_SHORTEST_ID, _LONGEST_ID = 12, 128
_KILLS: Final = frozenset({"9", "SIGKILL", "KILL"})
_STOPS: Final = _KILLS | {"15", "SIGTERM", "TERM"}
_ALL: Final = frozenset({"-a", "--all"})


def stopped_container(command: Sequence[str]) -> ContainerId | None:
    """Return the container that a command of an OCI runtime ends; None if it does something else. Pure.

    ``kill --all ID 9`` is no request: containerd executes it for each container that has ended by itself, to end its
    remaining processes (``WithProcessKill`` in its ``handleContainerExit``), before it reports the end.
    """
    if "kill" not in command[1:]:
        return None
    arguments = command[command.index("kill", 1) + 1 :]
    values = [value for value in arguments if not value.startswith("-")]
    if _ALL.intersection(arguments) and _KILLS.intersection(values[1:]):
        return None
    if len(values) < 2 or not _SHORTEST_ID <= len(values[0]) <= _LONGEST_ID:
        return None
    # A stop signal of the image's own (STOPSIGNAL) is a stop, too; no other signal ends a container.
    return ContainerId(values[0]) if values[1] in _STOPS or values[1].isdecimal() else None


class StopRequests:
    """Call ``stopped`` with each container that is asked to end. ``run`` does the work, if the kernel permits it."""

    def __init__(
        self,
        *,
        socket_path: str,
        proc: Path,
        stopped: Callable[[ContainerId], None],
        unread: Callable[[], None] = lambda: None,
        runtimes: oci_runtimes.OciRuntimes | None = None,
    ) -> None:
        """``socket_path`` is the container runtime's; its OCI ``runtimes`` are looked up where that process finds them.

        ``unread`` is called for an execution whose process ended before its command could be read.
        """
        self._socket_path = socket_path
        self._proc = proc
        self._stopped = stopped
        self._unread = unread
        self._runtimes = runtimes if runtimes is not None else oci_runtimes.OciRuntimes()

    async def run(self) -> None:
        """Follow the executions for as long as the agent runs. If that is not possible, log it once and do nothing."""
        logged = ""
        backoff = aio.Backoff(first=1.0, limit=_REFRESH_SECONDS)
        while True:
            try:
                await self._follow()
                backoff.reset()
            except OSError as error:
                if str(error) != logged:
                    logged = str(error)
                    log.warning("stop_requests.unavailable", socket=self._socket_path, error=logged)
                await backoff.wait()

    async def _follow(self) -> None:
        """Follow the executions of the OCI runtimes that are found now, for a while. Raises OSError."""
        pid = await asyncio.to_thread(unix_sockets.listener, self._socket_path)
        programs = await asyncio.to_thread(self._runtimes.programs, self._proc / str(pid))
        group = fanotify.new_listener()
        try:
            for program in programs:
                fanotify.report_file(group, program)
        except OSError:
            os.close(group)
            raise
        reader = _Reader(group, proc=self._proc, stopped=self._stopped, unread=self._unread)
        threading.Thread(target=reader.run, name="stop requests", daemon=True).start()
        try:
            async with asyncio.timeout(_REFRESH_SECONDS):  # the kernel reports no other file at the same path
                await asyncio.shield(reader.failed)
        except TimeoutError:
            return
        finally:
            reader.end()


class _Reader:
    """Reads the commands of the processes that execute an OCI runtime, in a real-time thread of its own.

    Such a process runs for some 10 ms. The event loop is often busy for longer, and so is each processor of a busy
    node: there, a thread that was not real-time missed one of ten.
    """

    def __init__(
        self, group: int, *, proc: Path, stopped: Callable[[ContainerId], None], unread: Callable[[], None]
    ) -> None:
        """``group`` is the listener, which the thread closes. The two others are called in the event loop's thread."""
        self._loop = asyncio.get_running_loop()
        self.failed: asyncio.Future[None] = self._loop.create_future()
        self._group = group
        self._proc = proc
        self._stopped = stopped
        self._unread = unread
        self._wake = os.eventfd(0, os.EFD_CLOEXEC)
        self._pending: dict[int, _PendingRead] = {}

    def end(self) -> None:
        """Have the thread end. It does not wait for it: a read of /proc may take its time."""
        self.failed.cancel()
        os.eventfd_write(self._wake, 1)

    def run(self) -> None:
        """Read until ``end`` is called (the body of the thread)."""
        process.wake_first()
        try:
            with contextlib.suppress(RuntimeError):  # the event loop has been closed
                self._read()
        finally:
            os.close(self._group)
            os.close(self._wake)

    def _read(self) -> None:
        poll = select.poll()
        for descriptor in (self._group, self._wake):
            poll.register(descriptor, select.POLLIN)
        while True:
            ready = {descriptor for descriptor, _ in poll.poll(self._milliseconds_left())}
            if self._wake in ready:
                return
            try:
                if self._group in ready:
                    self._note_executions()
            except OSError as error:  # ``end`` follows, which writes to a descriptor that must still be its own
                self._loop.call_soon_threadsafe(self._fail, error)
                poll.unregister(self._group)
            now = time.monotonic()
            for pending in [each for each in self._pending.values() if each.due <= now]:
                self._read_command(pending)

    def _milliseconds_left(self) -> float | None:
        if not self._pending:
            return None
        return max(0.0, min(each.due for each in self._pending.values()) - time.monotonic()) * 1000

    def _note_executions(self) -> None:
        with contextlib.suppress(BlockingIOError):
            for pid in fanotify.notified(self._group):
                if len(self._pending) < _MOST_AT_ONCE or pid in self._pending:
                    self._pending[pid] = _PendingRead(pid, due=0.0)

    def _read_command(self, pending: "_PendingRead") -> None:
        del self._pending[pending.pid]
        with contained.within(contained.Part.CONTAINER, f"pid {pending.pid}"):
            command = self._command(pending.pid)
            if command is None:
                self._loop.call_soon_threadsafe(self._unread)
                return
            if Path(command[0]).name in oci_runtimes.NAMES:
                if (container := stopped_container(command)) is not None:
                    self._loop.call_soon_threadsafe(self._stopped, container)
            elif pending.tries < len(_TRIES):
                due = time.monotonic() + _TRIES[pending.tries]
                self._pending[pending.pid] = _PendingRead(pending.pid, due=due, tries=pending.tries + 1)

    def _fail(self, error: OSError) -> None:
        if not self.failed.done():
            self.failed.set_exception(error)

    def _command(self, pid: int) -> list[str] | None:
        """Return the command line of a process; None if it has ended, or cannot be read."""
        try:
            line = kernel_files.read_bytes(self._proc / str(pid) / "cmdline")
        except OSError:
            return None
        return [kernel_files.text(each) for each in line.split(b"\0")[:-1]] or [""] if line is not None else None


@dataclass(frozen=True, slots=True)
class _PendingRead:
    """A process whose command is read at ``due`` (time.monotonic); ``tries`` reads came too early."""

    pid: int
    due: float
    tries: int = 0
