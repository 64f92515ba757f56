"""Give up a restart's turn on its node during waits, and some of the waits for a round that needs the pod.

Only a limited number of restarts make their calls at once (``agent.restarts.slots``). The pod controls how long a
program takes to end, a hook to answer or a device to be released, so a restart that waits for these lets others run.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextvars import ContextVar
from typing import Any, Final, Protocol, TypeVar

from kubemend.common import aio

_T = TypeVar("_T")

SLOW: Final = 2.0
"""Seconds after which a call counts as a wait: nearly all killed containers have ended, and queries are answered."""


class Turn(Protocol):
    """The turn of one restart. It is at work while it has more joins than leaves."""

    def leave(self) -> None:
        """One of its workers waits from now on."""

    async def join(self) -> None:
        """One of its workers resumes; blocks until the restart is admitted again, if all of them waited."""

    def count(self) -> None:
        """Join without waiting, for a worker that only cleans up."""


_turn: ContextVar[Turn | None] = ContextVar("turn", default=None)


@contextlib.contextmanager
def within(turn: Turn) -> Iterator[None]:
    """Use this turn for all work in the block, including tasks that it starts."""
    token = _turn.set(turn)
    try:
        yield
    finally:
        _turn.reset(token)


_hurry: ContextVar[asyncio.Event | None] = ContextVar("hurry", default=None)


@contextlib.contextmanager
def hurried_by(round_waits: asyncio.Event) -> Iterator[None]:
    """Have ``unless_hurried`` end early in the block, and in tasks that it starts, once this event is set."""
    token = _hurry.set(round_waits)
    try:
        yield
    finally:
        _hurry.reset(token)


async def unless_hurried(work: Coroutine[Any, Any, _T]) -> _T | None:
    """Return the work's result; None if it was cancelled because a round waits for the pod: it ends its containers."""
    if (hurry := _hurry.get()) is None:
        return await work
    task = asyncio.ensure_future(work)
    await aio.first_of(task, hurry.wait())
    return None if task.cancelled() else task.result()


@contextlib.asynccontextmanager
async def waiting(*, after: float = 0.0) -> AsyncIterator[None]:
    """Give the turn to others for the block, if there is a turn: ``after`` seconds from now, or at once."""
    turn = _turn.get()
    if turn is None:
        yield
        return
    token = _turn.set(None)
    pause = _Pause(turn, after=after)
    try:
        try:
            yield
        finally:
            pause.end()
    except asyncio.CancelledError:
        if pause.has_left:
            turn.count()  # a cancelled task does not queue
        raise
    except BaseException:
        if pause.has_left:
            await _resume(turn)
        raise
    else:
        if pause.has_left:
            await _resume(turn)
    finally:
        _turn.reset(token)


class _Pause:
    """Leave a turn some seconds from now, unless the pause ends before."""

    def __init__(self, turn: Turn, *, after: float) -> None:
        self.has_left = False
        self._turn = turn
        self._timer = asyncio.get_running_loop().call_later(after, self._leave) if after else None
        if not after:
            self._leave()

    def end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _leave(self) -> None:
        self.has_left = True
        self._turn.leave()


async def _resume(turn: Turn) -> None:
    try:
        await turn.join()
    except asyncio.CancelledError:
        turn.count()
        raise


async def side_by_side(*works: Coroutine[Any, Any, _T]) -> list[_T]:
    """Run parts of one restart concurrently (``common.aio.side_by_side``): it waits when all of them do."""
    turn = _turn.get()
    if turn is None or len(works) == 1:
        return await aio.side_by_side(*works)
    left = len(works)

    async def part(work: Coroutine[Any, Any, _T]) -> _T:
        nonlocal left
        try:
            return await work
        finally:
            left -= 1
            if left:
                turn.leave()  # the last one hands its place to the caller, which waits for all

    for _ in works:
        turn.count()
    turn.leave()
    try:
        return await aio.side_by_side(*map(part, works))
    except BaseException:
        if left:  # some were cancelled before they began
            turn.count()
        for work in works:
            work.close()  # harmless after its end
        raise
