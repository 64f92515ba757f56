"""Run asynchronous code in virtual time: a sleep takes none, and deadlines are reached in their order."""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

_T = TypeVar("_T")


class _Jumping(selectors.DefaultSelector):
    """Reports the ready files; if there are none, the clock jumps to the next deadline instead of waiting for it."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready and timeout is None:
            raise RuntimeError("every task waits, and none for a time: what they wait for does not come")
        if not ready and timeout is not None:
            self.now += timeout
        return ready


class _Loop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._clock = _Jumping()
        super().__init__(self._clock)

    def time(self) -> float:
        return self._clock.now


def run(work: Coroutine[Any, Any, _T]) -> _T:
    """Run the coroutine, from second 0 of ``loop.time()``, and return its result.

    It must not wait for other threads or processes: the clock does not wait for them. Raises RuntimeError when all its
    tasks wait for events that cannot come.
    """
    with asyncio.Runner(loop_factory=_Loop) as runner:
        return runner.run(work)


async def passes(seconds: float) -> None:
    """Let virtual time pass, which takes none. Fails outside ``run``: tests do not wait by the real clock."""
    assert isinstance(asyncio.get_running_loop(), _Loop)
    await asyncio.sleep(seconds)
