"""Calls that may never return, in threads of the test's own process instead of one beside it."""

from collections.abc import Callable
from typing import TypeVar

from common.own_thread import OwnThread

T = TypeVar("T")


class OwnThreads:
    """In the place of ``common.own_process.OwnProcess``."""

    def __init__(self) -> None:
        self._threads: dict[str, OwnThread] = {}

    async def call(self, work: Callable[[], T], *, who: str, timeout: float) -> T:
        thread = self._threads.setdefault(who, OwnThread(who))
        return await thread.call(work, timeout=timeout)

    async def close(self) -> None:
        for thread in self._threads.values():
            thread.close()
