"""Start nothing on a device that turns out to be faulty after its restart was decided.

A fault of a program is acted on at once. A graver finding that follows joins the same restart: the decision that the
devices' health allows (``agent.restart.admission.by_device``) is made again before each start.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from kubemend.agent.restart import admission, stuck
from kubemend.common import aio

Judge = Callable[[], admission.Decision | None]
"""Decides whether the devices' health allows a start now; None: it does."""


def no_obstacle() -> admission.Decision | None:
    """Judge devices as usable, where their health is not known."""
    return None


@dataclass(slots=True)
class DeviceHealth:
    """The health of one restart's devices. ``timeout`` is for how long a decision may be on hold, in seconds."""

    judge: Judge
    timeout: float
    _held: float = field(default=0.0, init=False)
    _judged_at: float | None = field(default=None, init=False)

    def unusable(self) -> str:
        """Return why nothing may start on the devices, for good; empty if something may, or that is undecided."""
        decision = self.judge()
        if decision is None or (decision.verb is admission.Verb.POSTPONE and not self._is_overdue()):
            return ""
        return decision.detail

    async def allows_start(self, *, timeout: float | None) -> bool:
        """Return whether something may start; wait at most ``timeout`` seconds while that is undecided."""
        clock = asyncio.get_running_loop().time
        until = clock() + timeout if timeout is not None else None
        backoff = aio.Backoff(first=0.005, limit=0.25)
        while (decision := self.judge()) is not None:
            if decision.verb is not admission.Verb.POSTPONE:
                return False
            if self._judged_at is None:
                self._judged_at = clock()
            if self._is_overdue() or (until is not None and clock() >= until):
                return False
            await backoff.wait()
        self._held, self._judged_at = 0.0, None
        return True

    def _is_overdue(self) -> bool:
        if self._judged_at is None:
            return False
        now = asyncio.get_running_loop().time()
        self._held, self._judged_at = self._held + stuck.watched(self._judged_at, now), now
        return self._held >= self.timeout
