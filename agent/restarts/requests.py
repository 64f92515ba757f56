"""Describe a request to restart a container, and distribute the progress to all that requested it."""

import asyncio
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from kubemend.agent.actuator import progress
from kubemend.agent.actuator.progress import Begun, Decided, Event, Joined, Progress, Reported
from kubemend.agent.clients.cri.convert import Admit, admit_all
from kubemend.agent.model.devices import DeviceId
from kubemend.agent.model.outcomes import Result
from kubemend.agent.model.workloads import ContainerRef
from kubemend.agent.restart import admission, overrides
from kubemend.agent.restarts.budgets import Counted
from kubemend.agent.restarts.executor import RoundHooks
from kubemend.common.coordination import FaultKind

MOST_FOLLOWERS: Final = 256
"""Faults that wait for one restart at a time. A program that fails again and again while its budget is spent, in
processes of their own, would leave any number.
"""


async def _not_withdrawn() -> str:
    return ""


@dataclass(frozen=True, slots=True)
class SteppedDown:
    """A restart that its strategy could not carry out, and why: another strategy takes over, and counts in its place.

    ``not_alike``: a swap, whose successor would differ; otherwise a launcher has failed. ``intents`` stay open in the
    journal until the other one has begun, so that an agent's death in between loses nothing.
    """

    reason: str
    counted: Counted
    not_alike: bool = False
    intents: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Request:
    """Request the restart of one container.

    - ``cause`` is read again while the request is on hold.
    - ``devices`` must answer after the restart; None: it is unknown which devices the container holds.
    - ``asked`` is set for a manual request.
    - ``followed`` receives the progress.
    - ``withdrawn`` returns why the cause no longer holds, or "". It is called while the request is on hold and right
      before the first step.
    - ``lapsed`` returns the same, but is called only after a budget has put the request on hold: in the meantime the
      target may have ended by itself, and its program may have replaced it.
    - ``kind`` is the kind of the fault that led to the request.
    - ``round_hooks`` are set for a request of a gang's round.
    - ``gang_answered``: the hub has answered already, or need not be asked.
    - ``known_at`` is when the scheduler received it (Unix time).
    - ``admit`` admits the configs that the restart keeps; set by the scheduler.
    - ``stepped_down``: the restart for the same cause that could not be carried out; None if none was tried.
    """

    target: ContainerRef
    cause: Callable[[], admission.Cause]
    devices: frozenset[DeviceId] | None
    asked: overrides.RestartOverrides | None = None
    followed: progress.Progress = progress.NO_FOLLOWER
    withdrawn: Callable[[], Awaitable[str]] = _not_withdrawn
    lapsed: Callable[[], Awaitable[str]] = _not_withdrawn
    was_postponed: bool = False
    kind: FaultKind = FaultKind.OTHER
    round_hooks: RoundHooks | None = None
    gang_answered: bool = False
    known_at: float = math.inf
    admit: Admit = admit_all
    stepped_down: SteppedDown | None = None

    async def withdrawal(self) -> str:
        """Return why the cause no longer holds; "" while it does."""
        return await self.withdrawn() or (await self.lapsed() if self.was_postponed else "")


class ProgressFanout:
    """Pass on the progress of a restart. A late follower first gets the ``cause`` and the latest events."""

    def __init__(self, first: Progress, *, cause: Callable[[], admission.Cause]) -> None:
        self._all = [first]
        self._cause = cause
        self._latest: dict[type[Event], Event] = {}
        self.was_postponed = False
        """A budget has put it on hold, and with it the requests that have joined it (``Request.lapsed``)."""
        self._begun: Begun | None = None
        self._ended = asyncio.Event()

    @property
    def acting(self) -> bool:
        """Return whether the restart has started: then it replaces the container for any cause."""
        return self._begun is not None

    def settled(self, happened_at: float) -> bool:
        """Return whether the ended restart also handled what happened at that Unix time.

        It did not handle a fault of the successor: one after the restart had started. One that did not start, or was
        withdrawn before its first step, handled nothing: its own cause may have ended, been refused or timed out, which
        proves nothing about others.
        """
        return self._begun is not None and happened_at <= self._begun.at

    def notify(self, event: Event) -> None:
        """Pass an event on to all followers."""
        self._latest.pop(type(event), None)  # the latest goes last
        self._latest[type(event)] = event
        if isinstance(event, Begun):
            self._begun = event
        elif isinstance(event, Reported) and event.outcome.result is Result.WITHDRAWN:
            self._begun = None
        elif isinstance(event, Decided) and event.decision.retry_at is not None:
            self.was_postponed = True
        for each in self._all:
            each.notify(event)

    @property
    def is_full(self) -> bool:
        """Return whether ``MOST_FOLLOWERS`` have joined it."""
        return len(self._all) > MOST_FOLLOWERS

    async def join(self, follower: Progress) -> None:
        """Follow the restart to its end."""
        follower.notify(Joined(self._cause()))
        for event in self._latest.values():
            follower.notify(event)
        self._all.append(follower)
        try:
            await self._ended.wait()
        finally:
            self._all.remove(follower)

    def end(self) -> None:
        """End all followers; no more events come."""
        self._ended.set()
