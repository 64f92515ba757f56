"""How many restarts of a node make their calls at once, and whose turn it is."""

import asyncio
import contextlib
from collections import Counter, deque
from collections.abc import AsyncIterator

from agent.actuator import turns

_NAMESPACES_LEAVE = 8
"""Of so many slots one is never the same namespace's as all others: calls that hang do not stop the node's restarts."""


class Slots:
    """Slots that are given to namespaces in turn; within one namespace who came first goes first.

    A restart that waits (``agent.actuator.turns.waiting``) has none meanwhile. When it goes on it comes before those of
    its namespace that have not begun: its container may be down.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._of_one = count - count // _NAMESPACES_LEAVE
        self._held: Counter[str] = Counter()
        self._queues: dict[str, deque[asyncio.Future[None]]] = {}

    def is_full(self, namespace: str) -> bool:
        """Whether a restart of that namespace would have to wait now."""
        return self._held.total() >= self._count or self._held[namespace] >= self._of_one

    @contextlib.asynccontextmanager
    async def turn(self, namespace: str) -> AsyncIterator[None]:
        """Wait for a slot; have it for the length of the block, but while the restart itself waits."""
        turn = _Turn(self, namespace)
        await turn.join()
        try:
            with turns.within(turn):
                yield
        finally:
            turn.end()

    async def take(self, namespace: str, *, goes_on: bool) -> None:
        """Wait for a slot."""
        if not self.is_full(namespace):
            self._held[namespace] += 1
            return
        queue = self._queues.setdefault(namespace, deque())
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        (queue.appendleft if goes_on else queue.append)(place)
        try:
            await place
        except asyncio.CancelledError:
            if place.cancelled():
                self._forget(namespace, place)
            else:
                self.give(namespace)
            raise

    def give(self, namespace: str) -> None:
        """Give a slot back; whose turn it is has it at once."""
        self._held[namespace] -= 1
        if not self._held[namespace]:
            del self._held[namespace]
        self._hand_out()

    def _hand_out(self) -> None:
        for namespace in [*self._queues]:
            if self.is_full(namespace):
                continue
            queue = self._queues.pop(namespace)
            while queue and (place := queue.popleft()).done():  # cancelled, and not told of it yet
                pass
            if queue:
                self._queues[namespace] = queue  # behind all others
            if not place.done():
                self._held[namespace] += 1
                place.set_result(None)

    def _forget(self, namespace: str, place: asyncio.Future[None]) -> None:
        queue = self._queues.get(namespace)
        if queue is not None and place in queue:
            queue.remove(place)
            if not queue:
                del self._queues[namespace]


class _Turn:
    """One restart's (``turns.Turn``). It has a slot while anything of it is at work."""

    def __init__(self, slots: Slots, namespace: str) -> None:
        self._slots = slots
        self._namespace = namespace
        self._at_work = 0
        self._has = False
        self._begun = False
        self._over = False
        self._joining = asyncio.Lock()

    def leave(self) -> None:
        self._at_work -= 1
        if not self._at_work:
            self._give()

    def count(self) -> None:
        self._at_work += 1

    async def join(self) -> None:
        async with self._joining:
            if not self._has and not self._over:
                await self._slots.take(self._namespace, goes_on=self._begun)
                self._has = self._begun = True
            self._at_work += 1
        if self._over:
            self._give()

    def end(self) -> None:
        """It is over; what still runs of it needs no slot."""
        self._over = True
        self._give()

    def _give(self) -> None:
        if self._has:
            self._has = False
            self._slots.give(self._namespace)
