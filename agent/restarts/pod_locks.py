"""Run one restart at a time per pod."""

import asyncio
import contextlib
from collections import Counter, defaultdict
from collections.abc import AsyncIterator

from kubemend.agent.model.workloads import PodUid


class PodLocks:
    """Hold a lock for each pod that a restart holds or waits for."""

    def __init__(self) -> None:
        self._locks: defaultdict[PodUid, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._here: Counter[PodUid] = Counter()

    def is_taken(self, pod: PodUid) -> bool:
        """Return whether a restart holds the pod or waits for it."""
        return self._here[pod] > 0

    @contextlib.asynccontextmanager
    async def turn(
        self, pod: PodUid, *, waiting: contextlib.AbstractContextManager[object] | None = None
    ) -> AsyncIterator[None]:
        """Wait for the pod, within the context ``waiting``, and hold it during the block."""
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
            if not self._here[pod]:  # a lock that is free may still have waiters
                del self._here[pod], self._locks[pod]
