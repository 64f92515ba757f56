"""Blocking work beside the event loop, which may hang for ever: file systems of dead servers do."""

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


async def in_thread(work: Callable[[], T]) -> T:
    """Run ``work`` in a thread of its own and return its result, or raise what it raises.

    The thread is a daemon, unlike those of ``asyncio.to_thread``: whoever stops waiting for it can also exit.
    """
    outcome: concurrent.futures.Future[T] = concurrent.futures.Future()

    def run() -> None:
        if not outcome.set_running_or_notify_cancel():
            return
        try:
            outcome.set_result(work())
        except BaseException as error:  # noqa: BLE001 - raised where the result is awaited
            outcome.set_exception(error)

    threading.Thread(target=run, name="doctor", daemon=True).start()
    return await asyncio.wrap_future(outcome)
