"""Run calls that may never return and that no signal ends, such as those into a user's file system, in a process.

A thread in such a call (state D) keeps its whole process from ending, even after SIGKILL. So these calls run in a child
process, which is abandoned when they do not return: kubemend never waits for it.
"""

import asyncio
import contextlib
import os
import pickle
import socket
import subprocess
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Protocol, Self, TypeVar

import structlog

from kubemend.common import process, side_process_worker
from kubemend.common.side_process_worker import HEADER

log = structlog.get_logger(__name__)

T = TypeVar("T")

MOST_LEFT_BEHIND: Final = 4
"""Limit of abandoned processes that have not ended: at the limit, no new one is started."""

_MOST_OUT: Final = 512
"""More than the pods of a node, each of which can make one call hang; a hanging call takes some 40 KiB."""
_END_SECONDS = 1.0  # for the process to end by itself, and after SIGKILL if a call hangs in it
_KILL_SECONDS = 5.0

_left_behind: list["subprocess.Popen[bytes]"] = []


class ProcessEndedError(OSError):
    """The process has ended, or could not be started, before it could answer."""


class Calls(Protocol):
    """Define where calls run that may never return (``SideProcess``)."""

    async def call(self, work: Callable[[], T], *, owner: str, timeout: float) -> T:
        """Run ``work`` and return its result, or raise its exception; TimeoutError after ``timeout`` seconds."""

    async def close(self) -> None:
        """Accept no more calls."""


class SideProcess:
    """Run many concurrent calls in one process. The first call starts it, also after it has ended.

    ``most_out`` bounds the outstanding calls, including those that never return.
    """

    def __init__(self, name: str, *, cgroup_root: Path, most_out: int = _MOST_OUT) -> None:
        self._name = name
        self._cgroup_root = cgroup_root
        self._free = asyncio.Semaphore(most_out)
        self._turns: weakref.WeakValueDictionary[str, asyncio.Lock] = weakref.WeakValueDictionary()
        self._out_for: set[str] = set()  # owners of calls that have not returned, awaited or not
        self._child: _Child | None = None
        self._ending: set[asyncio.Task[None]] = set()

    async def call(self, work: Callable[[], T], *, owner: str, timeout: float) -> T:
        """Run ``work``, which must be picklable, in the process; return its result, or raise its exception.

        ``owner`` identifies what can make calls hang: one call at a time for each. Raises TimeoutError after
        ``timeout`` seconds, and at once while an earlier call for the same owner has not returned; ProcessEndedError.
        """
        pickled = pickle.dumps(work)
        async with asyncio.timeout(timeout), self._turns.setdefault(owner, asyncio.Lock()):
            if owner in self._out_for:
                raise TimeoutError("an earlier call has not returned yet")
            if self._free.locked():
                log.warning("side_process.busy", process=self._name, calls_for=owner)
            await self._free.acquire()
            result: T = await self._send(pickled, owner=owner)
        return result

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """End the process, or abandon it."""
        if self._child is not None:
            self._child.close()
        await asyncio.gather(*self._ending)

    def _send(self, work: bytes, *, owner: str) -> "asyncio.Future[Any]":
        def came_back() -> None:
            self._out_for.discard(owner)
            self._free.release()

        try:
            if self._child is None:
                self._child = _Child.started(self._name, cgroup_root=self._cgroup_root)
                ending = asyncio.create_task(self._follow(self._child), name=f"process for {self._name}")
                self._ending.add(ending)
                ending.add_done_callback(self._ending.discard)
        except BaseException:
            self._free.release()
            raise
        self._out_for.add(owner)
        return self._child.send(work, came_back)

    async def _follow(self, child: "_Child") -> None:
        """Receive its answers until it has ended or the socket is closed; then end it."""
        try:
            await child.answers()
        finally:
            if self._child is child:
                self._child = None
        await child.end()


class _Child:
    """Hold the process and its outstanding calls."""

    def __init__(self, process: "subprocess.Popen[bytes]", ours: socket.socket, *, name: str) -> None:
        self._process = process
        self._socket = ours
        self._name = name
        self._out: dict[int, tuple[asyncio.Future[Any], Callable[[], None]]] = {}
        self._number = 0
        self._unsent = bytearray()
        self._hangs = False

    @classmethod
    def started(cls, name: str, *, cgroup_root: Path) -> "_Child":
        """Start a process. Raises ProcessEndedError, also when too many are abandoned."""
        _left_behind[:] = [each for each in _left_behind if each.poll() is None]
        if len(_left_behind) >= MOST_LEFT_BEHIND:
            raise ProcessEndedError(f"{len(_left_behind)} processes that read files of containers have not ended")
        ours, theirs = socket.socketpair()
        argv = process.helper_command(side_process_worker.__name__, str(cgroup_root))
        with theirs:
            try:
                child = subprocess.Popen(argv, stdin=theirs.fileno(), stdout=subprocess.DEVNULL)
            except OSError as error:
                ours.close()
                raise ProcessEndedError(error.errno, f"cannot start a process: {error.strerror}") from error
        ours.settimeout(0)
        return cls(child, ours, name=name)

    def send(self, work: bytes, came_back: Callable[[], None]) -> "asyncio.Future[Any]":
        """Send a call; ``came_back`` is called when it is no longer outstanding, even if the outcome is not awaited any
        more.
        """
        loop = asyncio.get_running_loop()
        outcome: asyncio.Future[Any] = loop.create_future()
        self._number += 1
        self._out[self._number] = outcome, came_back
        self._unsent += HEADER.pack(self._number, len(work)) + work
        self._write()
        return outcome

    async def answers(self) -> None:
        """Receive answers until the other side or ``close`` ends the connection; outstanding calls then fail."""
        loop = asyncio.get_running_loop()
        received = bytearray()
        try:
            while part := await loop.sock_recv(self._socket, 1 << 16):
                received += part
                while len(received) >= HEADER.size:
                    number, size = HEADER.unpack_from(received)
                    if len(received) < HEADER.size + size:
                        break
                    self._answered(number, bytes(received[HEADER.size : HEADER.size + size]))
                    del received[: HEADER.size + size]
        except OSError:
            pass  # the process has ended
        finally:
            self._hangs = bool(self._out)
            self._fail()
            loop.remove_writer(self._socket)
            self._socket.close()

    def close(self) -> None:
        """Ask the process to end."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    async def end(self) -> None:
        """Wait for the process to end, then kill it; abandon it if it does not end."""
        if await self._has_ended(within=_END_SECONDS):
            return
        self._process.kill()
        if not await self._has_ended(within=_END_SECONDS if self._hangs else _KILL_SECONDS):
            _left_behind.append(self._process)
            log.warning("side_process.abandoned", process=self._name, pid=self._process.pid)

    async def _has_ended(self, *, within: float) -> bool:
        """Wait by a pidfd: no child watcher, no signal handler, no other child affected."""
        loop, ended = asyncio.get_running_loop(), asyncio.Event()
        pidfd = os.pidfd_open(self._process.pid)
        loop.add_reader(pidfd, ended.set)
        try:
            async with asyncio.timeout(within):
                await ended.wait()
        except TimeoutError:
            return False
        finally:
            loop.remove_reader(pidfd)
            os.close(pidfd)
        self._process.wait()
        return True

    def _answered(self, number: int, pickled: bytes) -> None:
        outcome, came_back = self._out.pop(number)
        came_back()
        returned, what = pickle.loads(pickled)  # noqa: S301 - from the own child
        if outcome.done():
            return
        if returned:
            outcome.set_result(what)
        else:
            outcome.set_exception(what)

    def _fail(self) -> None:
        while self._out:
            _, (outcome, came_back) = self._out.popitem()
            came_back()
            if not outcome.done():
                outcome.set_exception(ProcessEndedError("the process for file access has ended"))

    def _write(self) -> None:
        """Send pending data without waiting; the rest when there is room."""
        loop = asyncio.get_running_loop()
        with contextlib.suppress(OSError):  # the process has ended: ``answers`` handles it
            while self._unsent:
                try:
                    del self._unsent[: self._socket.send(self._unsent)]
                except BlockingIOError:
                    loop.add_writer(self._socket, self._write)
                    return
        loop.remove_writer(self._socket)
