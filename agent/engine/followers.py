"""Those who follow one restart: the person who asked for it first, and whoever asked for the same meanwhile."""

import asyncio
from collections.abc import Callable

from agent.actuator.progress import Begun, Decided, Event, Joined, Progress
from agent.restart import admission


class Followers:
    """Passes on what is told of a restart. Who comes late is first told where it stands, and for what ``cause``."""

    def __init__(self, first: Progress, *, cause: Callable[[], admission.Cause]) -> None:
        self._all = [first]
        self._cause = cause
        self._latest: dict[type[Event], Event] = {}
        self._begun: Begun | None = None
        self._decided: Decided | None = None
        self._ended = asyncio.Event()

    @property
    def acting(self) -> bool:
        """Whether the restart has begun: then it will replace the container, whoever asked for it."""
        return self._begun is not None

    def settled(self, happened_at: float) -> bool:
        """Whether the restart, which has ended, was an answer to what happened at that Unix time, too.

        It was not to what hit the successor: what happened after it had begun, or after another restart (or kubelet)
        had been faster.
        """
        if self._begun is not None:
            return happened_at <= self._begun.at
        return self._decided is None or self._decided.decision.reason is not admission.Reason.ALREADY_REPLACED

    def tell(self, event: Event) -> None:
        """Pass an event on to all."""
        self._latest.pop(type(event), None)  # the latest goes last
        self._latest[type(event)] = event
        if isinstance(event, Begun):
            self._begun = event
        elif isinstance(event, Decided):
            self._decided = event
        for progress in self._all:
            progress.tell(event)

    async def join(self, progress: Progress) -> None:
        """Follow the restart to its end."""
        progress.tell(Joined(self._cause()))
        for event in self._latest.values():
            progress.tell(event)
        self._all.append(progress)
        try:
            await self._ended.wait()
        finally:
            self._all.remove(progress)

    def end(self) -> None:
        """Let all go: nothing more will be told."""
        self._ended.set()
