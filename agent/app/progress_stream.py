"""The progress of one restart, buffered for a client that may read slowly or not at all."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from typing import Any

from kubemend.agent.actuator.progress import Decided, Event, Reported
from kubemend.agent.control import events


class ProgressStream:
    """Accepts events without waiting; if the reader is too slow, the oldest are dropped and counted."""

    def __init__(self, *, capacity: int = 256) -> None:
        self._clock = asyncio.get_running_loop().time
        self._begun = self._clock()
        self._events: deque[tuple[float, Event]] = deque(maxlen=capacity)
        self._missed = 0
        self._last: Decided | Reported | None = None
        self._stopped = False
        self._ended = False
        self._news = asyncio.Event()

    def notify(self, event: Event) -> None:
        """Add an event."""
        self._missed += len(self._events) == self._events.maxlen
        self._events.append((self._clock(), event))
        if isinstance(event, Decided | Reported):
            self._last = event
        self._news.set()

    def end(self, *, stopped: bool) -> None:
        """End the stream; ``stopped`` means that the restart has not ended itself."""
        self._ended, self._stopped = True, stopped
        self._news.set()

    async def read(self, *, silence: float) -> AsyncGenerator[dict[str, Any] | None, None]:
        """Yield the events as objects, each with ``ms`` since the request, until the end.

        None is a sign of life, due after ``silence`` seconds without an event.
        """
        while True:
            try:
                async with asyncio.timeout(silence):
                    await self._news.wait()
            except TimeoutError:
                yield None
                continue
            self._news.clear()
            while self._events:
                if self._missed:
                    missed, self._missed = self._missed, 0
                    yield self._at(self._clock(), events.missed(missed))
                at, event = self._events.popleft()
                yield self._at(at, events.encode(event))
            if self._ended:
                yield self._at(self._clock(), events.done(self._last, stopped=self._stopped))
                return

    def _at(self, time: float, event: dict[str, Any]) -> dict[str, Any]:
        return events.at((time - self._begun) * 1000, event)
