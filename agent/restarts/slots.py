"""Let restarts take turns: one at a time per pod, and on a node as many as may make calls at once, in fair order."""

import asyncio
import contextlib
from collections import Counter, defaultdict, deque
from collections.abc import AsyncIterator
from dataclasses import dataclass

from kubemend.agent.actuator import turns
from kubemend.agent.model.workloads import PodUid

_NAMESPACES_LEAVE = 8
"""One slot in this many is never given to the namespace that has all others, so calls that hang do not block a node."""


class _PodLock:
    """``users`` hold it or wait for it, ``rounds`` wait; ``hurry`` is set while one does (``turns.hurried_by``)."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.users = 0
        self.rounds = 0
        self.hurry = asyncio.Event()


class PodLocks:
    """One lock for each pod that has a restart or a waiting one."""

    def __init__(self) -> None:
        self._locks: defaultdict[PodUid, _PodLock] = defaultdict(_PodLock)

    def is_locked(self, pod: PodUid) -> bool:
        """Return whether a restart holds the pod or waits for it."""
        return pod in self._locks

    @contextlib.asynccontextmanager
    async def turn(self, pod: PodUid, *, for_round: bool = False) -> AsyncIterator[None]:
        """Wait for the pod, and hold it during the block, which is hurried when a round waits."""
        held = self._locks[pod]
        held.users += 1
        try:
            held.rounds += for_round
            if for_round:
                held.hurry.set()
            try:
                await held.lock.acquire()
            finally:
                held.rounds -= for_round
                if not held.rounds:
                    held.hurry.clear()
            try:
                with turns.hurried_by(held.hurry):
                    yield
            finally:
                held.lock.release()
        finally:
            held.users -= 1
            if not held.users:  # a lock that is free may still have waiters
                del self._locks[pod]


@dataclass(frozen=True, slots=True)
class _Place:
    """A place in a queue, for that many slots at once."""

    given: asyncio.Future[None]
    count: int


class Slots:
    """Hand out slots to namespaces in turn; first come, first served within a namespace.

    A restart that waits (``agent.actuator.turns.waiting``) has no slot. When it resumes it precedes restarts of its
    namespace that have not started, because its container may be down.
    """

    def __init__(self, count: int, *, first: int = 0) -> None:
        """``first``: a namespace that holds none gets so many at once, even if others hold all."""
        self._count = count
        self._first = first
        self.of_one = count - count // _NAMESPACES_LEAVE
        self._held: Counter[str] = Counter()
        self._queues: dict[str, deque[_Place]] = {}

    def is_full(self, namespace: str, count: int = 1) -> bool:
        """Return whether a restart of that namespace would have to wait now for that many slots."""
        if not self._held[namespace] and count <= self._first:
            return False
        return self._held.total() + count > self._count or self._held[namespace] + count > self.of_one

    @contextlib.asynccontextmanager
    async def turn(self, namespace: str) -> AsyncIterator[None]:
        """Wait for a slot and hold it during the block, except while the restart itself waits."""
        turn = _Turn(self, namespace)
        await turn.join()
        try:
            with turns.within(turn):
                yield
        finally:
            turn.end()

    def try_acquire(self, namespace: str, count: int = 1) -> bool:
        """Acquire that many slots if they are free; return whether they were."""
        if self.is_full(namespace, count):
            return False
        self._held[namespace] += count
        return True

    async def acquire(self, namespace: str, *, goes_on: bool, count: int = 1) -> None:
        """Wait for that many slots, at most ``of_one``.

        ``goes_on``: the restart has started already, and goes to the head of its queue.
        """
        if self.try_acquire(namespace, count):
            return
        queue = self._queues.setdefault(namespace, deque())
        place = _Place(asyncio.get_running_loop().create_future(), count)
        (queue.appendleft if goes_on else queue.append)(place)
        try:
            await place.given
        except asyncio.CancelledError:
            if place.given.cancelled():
                self._hand_out()  # the next one may need less
            else:
                self.release(namespace, count)
            raise

    def release(self, namespace: str, count: int = 1) -> None:
        """Return slots and hand them to the next in turn at once."""
        self._held[namespace] -= count
        if not self._held[namespace]:
            del self._held[namespace]
        self._hand_out()

    def _hand_out(self) -> None:
        while any(self._hand_to_first(namespace) for namespace in [*self._queues]):
            pass

    def _hand_to_first(self, namespace: str) -> bool:
        """Give the first place of a queue its slots, and put its namespace behind all others; return whether it fit."""
        queue = self._queues[namespace]
        while queue and queue[0].given.done():  # cancelled
            queue.popleft()
        if not queue:
            del self._queues[namespace]
            return False
        if not self.try_acquire(namespace, queue[0].count):
            return False
        queue.popleft().given.set_result(None)
        self._queues[namespace] = self._queues.pop(namespace)
        return True


class _Turn:
    """One restart's turn (``turns.Turn``). It holds a slot while any task of the restart works."""

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
            self._release()

    def count(self) -> None:
        self._at_work += 1

    async def join(self) -> None:
        async with self._joining:
            if not self._has and not self._over:
                await self._slots.acquire(self._namespace, goes_on=self._begun)
                self._has = self._begun = True
            self._at_work += 1
        if self._over:
            self._release()

    def end(self) -> None:
        """End the turn; tasks that still run need no slot."""
        self._over = True
        self._release()

    def _release(self) -> None:
        if self._has:
            self._has = False
            self._slots.release(self._namespace)
