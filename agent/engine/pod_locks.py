"""One restart at a time per pod."""

import asyncio
import contextlib
from collections import Counter, defaultdict
from collections.abc import AsyncIterator

from agent.model.workloads import PodUid


class PodLocks:
    """A lock for each pod that somebody is at or waits for."""

    def __init__(self) -> None:
        self._locks: defaultdict[PodUid, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._here: Counter[PodUid] = Counter()

    def is_taken(self, pod: PodUid) -> bool:
        """Whether somebody is at the pod, or waits for it."""
        return self._here[pod] > 0

    @contextlib.asynccontextmanager
    async def turn(
        self, pod: PodUid, *, waiting: contextlib.AbstractContextManager[object] | None = None
    ) -> AsyncIterator[None]:
        """Wait for the pod, within the context ``waiting``; have it for the length of the block."""
        lock = self._locks[pod]
        self._here[pod] += 1
        try:
            with waiting if waiting is not None else contextlib.nullcontext():
                await lock.acquire()
            try:
                yield
            finally:
                lock.release()
        finally:
            self._here[pod] -= 1
            if not self._here[pod]:  # a lock that is not held may still be waited for
                del self._here[pod], self._locks[pod]
