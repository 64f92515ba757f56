"""A restart's turn on its node: which waits do not count as being at it.

Only so many restarts make their calls at once (``agent.engine.slots``). How long a program takes to end, a hook to
answer or a device to be left is for the pod to say, so a restart that waits for that lets others go meanwhile.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextvars import ContextVar
from typing import Any, Protocol, TypeVar

from common import aio

_T = TypeVar("_T")


class Turn(Protocol):
    """One restart's. It is at work as often as it has joined more than it has left."""

    def leave(self) -> None:
        """One of those who work for it waits from now on."""

    async def join(self) -> None:
        """One of those goes on; waits for the restart to be let go on, where all waited."""

    def count(self) -> None:
        """The same, without a wait: for who only clears up."""


_turn: ContextVar[Turn | None] = ContextVar("turn", default=None)


@contextlib.contextmanager
def within(turn: Turn) -> Iterator[None]:
    """Let the turn be that of all that is done in the block, by other tasks that it starts, too."""
    token = _turn.set(turn)
    try:
        yield
    finally:
        _turn.reset(token)


@contextlib.asynccontextmanager
async def waiting(*, wanted: bool = True) -> AsyncIterator[None]:
    """Give the turn to others for the length of the block, where there is one and it is ``wanted``."""
    turn = _turn.get()
    if turn is None or not wanted:
        yield
        return
    token = _turn.set(None)
    turn.leave()
    try:
        yield
    except asyncio.CancelledError:
        turn.count()  # who is being ended does not queue up for that
        raise
    except BaseException:
        await _go_on(turn)
        raise
    else:
        await _go_on(turn)
    finally:
        _turn.reset(token)


async def _go_on(turn: Turn) -> None:
    try:
        await turn.join()
    except asyncio.CancelledError:
        turn.count()
        raise


async def side_by_side(*works: Coroutine[Any, Any, _T]) -> list[_T]:
    """Do parts of one restart side by side (``common.aio.side_by_side``): it waits when all of them do."""
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
                turn.leave()  # the last one hands on to who waits for all

    for _ in works:
        turn.count()
    turn.leave()
    try:
        return await aio.side_by_side(*map(part, works))
    except BaseException:
        if left:  # some were cancelled before they began
            turn.count()
        raise
