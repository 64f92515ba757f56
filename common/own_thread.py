"""Calls that may never return, such as those into the file system of a dead server, beside the event loop."""

import asyncio
import contextlib
import functools
import queue
import threading
from collections.abc import Callable
from typing import TypeVar

import structlog

log = structlog.get_logger(__name__)

T = TypeVar("T")


class OwnThread:
    """One thread for one thing that may hang. It is made at the first call, and none of ours waits for it at exit.

    While a call that took too long is still out, further ones fail at once: what hangs never costs a second thread.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._busy = False

    async def call(self, work: Callable[[], T], *, timeout: float | None) -> T:
        """Run ``work`` and return its result, or raise what it raises; one call at a time.

        Raises TimeoutError after ``timeout`` seconds (None: whoever calls has a deadline of its own), and at once while
        an earlier call has not come back. An error that comes when nobody waits any more is logged.
        """
        if self._busy:
            raise TimeoutError("an earlier call has not come back yet")
        loop = asyncio.get_running_loop()
        outcome: asyncio.Future[T] = loop.create_future()

        def came_back(settle: Callable[[], None], error: BaseException | None) -> None:
            self._busy = False
            if not outcome.done():
                settle()
            elif error is not None:
                log.warning("own_thread.late_failure", thread=self._name, error=repr(error))

        def job() -> None:
            failed: BaseException | None = None
            try:
                settle = functools.partial(outcome.set_result, work())
            except BaseException as error:  # noqa: BLE001 - raised where the result is awaited
                settle, failed = functools.partial(outcome.set_exception, error), error
            with contextlib.suppress(RuntimeError):  # the event loop has ended meanwhile
                loop.call_soon_threadsafe(came_back, settle, failed)

        self._busy = True
        self._ensure_thread()
        self._jobs.put(job)
        async with asyncio.timeout(timeout):
            return await outcome

    def close(self, *, last: Callable[[], None] | None = None) -> None:
        """End the thread as soon as it comes back; ``last`` is what it does then, unless it was never made."""
        if self._thread is None:
            return
        if last is not None:
            self._jobs.put(last)
        self._jobs.put(None)

    def _ensure_thread(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
            self._thread.start()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()


async def once(work: Callable[[], T], *, name: str, timeout: float | None = None) -> T:
    """Run ``work`` in a thread of its own that ends with it; see ``OwnThread.call``."""
    thread = OwnThread(name)
    try:
        return await thread.call(work, timeout=timeout)
    finally:
        thread.close()
