"""Run calls that may never return in threads of the test's own process instead of a side process."""

from collections.abc import Callable
from typing import TypeVar

from kubemend.common.blocking import DedicatedThread

T = TypeVar("T")


class CallsInThreads:
    """Replace ``common.side_process.SideProcess``."""

    def __init__(self) -> None:
        self._threads: dict[str, DedicatedThread] = {}

    async def call(self, work: Callable[[], T], *, owner: str, timeout: float) -> T:
        thread = self._threads.setdefault(owner, DedicatedThread(owner))
        return await thread.call(work, timeout=timeout)

    async def close(self) -> None:
        for thread in self._threads.values():
            thread.close()
