"""Distribute one restart's progress to its first requester and to those that joined."""

import asyncio
from collections.abc import Callable

from kubemend.agent.actuator.progress import Begun, Decided, Event, Joined, Progress
from kubemend.agent.restart import admission
from kubemend.agent.restart.reasons import Reason


class ProgressFanout:
    """Pass on the progress of a restart. A late follower first gets the ``cause`` and the latest events."""

    def __init__(self, first: Progress, *, cause: Callable[[], admission.Cause]) -> None:
        self._all = [first]
        self._cause = cause
        self._latest: dict[type[Event], Event] = {}
        self._begun: Begun | None = None
        self._decided: Decided | None = None
        self._ended = asyncio.Event()

    @property
    def acting(self) -> bool:
        """Return whether the restart has started: then it replaces the container for any cause."""
        return self._begun is not None

    def settled(self, happened_at: float) -> bool:
        """Return whether the ended restart also handled what happened at that Unix time.

        It did not handle a fault of the successor: one after the restart had started, or after another restart (or
        kubelet) had replaced the container first.
        """
        if self._begun is not None:
            return happened_at <= self._begun.at
        return self._decided is None or self._decided.decision.reason is not Reason.ALREADY_REPLACED

    def notify(self, event: Event) -> None:
        """Pass an event on to all followers."""
        self._latest.pop(type(event), None)  # the latest goes last
        self._latest[type(event)] = event
        if isinstance(event, Begun):
            self._begun = event
        elif isinstance(event, Decided):
            self._decided = event
        for progress in self._all:
            progress.notify(event)

    async def join(self, progress: Progress) -> None:
        """Follow the restart to its end."""
        progress.notify(Joined(self._cause()))
        for event in self._latest.values():
            progress.notify(event)
        self._all.append(progress)
        try:
            await self._ended.wait()
        finally:
            self._all.remove(progress)

    def end(self) -> None:
        """End all followers; no more events come."""
        self._ended.set()
