"""Run calls that may never return, such as those into the file system of a dead server, outside the event loop."""

import asyncio
import contextlib
import errno
import functools
import queue
import threading
from collections.abc import Callable
from typing import TypeVar

import structlog

log = structlog.get_logger(__name__)

T = TypeVar("T")


class DedicatedThread:
    """Run calls in one thread that may hang. The first call creates it, and the process does not wait for it at exit.

    While a call that timed out has not returned, further calls fail at once: a hang never costs a second thread.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._busy = False

    async def call(self, work: Callable[[], T], *, timeout: float | None) -> T:
        """Run ``work`` and return its result, or raise its exception; one call at a time.

        Raises TimeoutError after ``timeout`` seconds (None: the caller has its own deadline), and at once while an
        earlier call has not returned; OSError when the node has no thread left. An error that arrives after the caller
        has stopped waiting is logged.
        """
        if self._busy:
            raise TimeoutError("an earlier call has not returned yet")
        loop = asyncio.get_running_loop()
        outcome: asyncio.Future[T] = loop.create_future()

        def came_back(settle: Callable[[], None], error: BaseException | None) -> None:
            self._busy = False
            if not outcome.done():
                settle()
            elif error is not None:
                log.warning("blocking.late_failure", thread=self._name, error=repr(error))

        def job() -> None:
            failed: BaseException | None = None
            try:
                settle = functools.partial(outcome.set_result, work())
            except BaseException as error:  # noqa: BLE001 - raised where the result is awaited
                settle, failed = functools.partial(outcome.set_exception, error), error
            with contextlib.suppress(RuntimeError):  # the event loop has ended in the meantime
                loop.call_soon_threadsafe(came_back, settle, failed)

        self._ensure_thread()
        self._busy = True
        self._jobs.put(job)
        async with asyncio.timeout(timeout):
            return await outcome

    def close(self, *, last: Callable[[], None] | None = None) -> None:
        """End the thread once its current call returns, after running ``last``.

        Without a thread, ``last`` is not run.
        """
        if self._thread is None:
            return
        if last is not None:
            self._jobs.put(last)
        self._jobs.put(None)

    def _ensure_thread(self) -> None:
        if self._thread is None:
            thread = threading.Thread(target=self._work, name=self._name, daemon=True)
            try:
                thread.start()
            except RuntimeError as error:
                raise OSError(errno.EAGAIN, str(error)) from error
            self._thread = thread

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()


async def once(work: Callable[[], T], *, name: str, timeout: float | None = None) -> T:
    """Run ``work`` in a thread of its own that ends with it; see ``DedicatedThread.call``."""
    thread = DedicatedThread(name)
    try:
        return await thread.call(work, timeout=timeout)
    finally:
        thread.close()
