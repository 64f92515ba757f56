"""Limit how often a gang may be restarted, and detect restarts without effect. Pure.

As for a single container (``common.budgets``): the first rounds are immediate, a gang that repeatedly fails early is
slowed down, and one that has used up its budget is left to its owner. In addition, rounds without effect are detected:
if the last ones all failed early in the same slot, or with the same code, the reason names that.
"""

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field

from kubemend.common import budgets
from kubemend.common.budgets import Backoff, Closed, Window


@dataclass(frozen=True, slots=True)
class Past:
    """A round that was begun, as the budget counts it. Times are Unix seconds.

    ``at`` is when it ended, and its members ran again; while it is under way, when it began. ``fault_at`` is when its
    cause occurred. ``slot`` and ``code`` are the fault's (empty for a request).
    """

    at: float
    fault_at: float
    slot: str = ""
    code: str = ""


class Verdict(enum.Enum):
    """SPENT: no round until the window opens again. BACKOFF: a wait, because the last rounds failed early."""

    SPENT = "Spent"
    BACKOFF = "Backoff"


@dataclass(frozen=True, slots=True)
class Shut:
    """A refusal for now. ``closed`` has its end and reason; ``common_cause`` is what the last failures share."""

    verdict: Verdict
    closed: Closed
    common_cause: str = ""


@dataclass(frozen=True, slots=True)
class GangBudget:
    """A gang's budget: ``limit`` rounds per ``window`` seconds, and waits after ``backoff.free`` early failures."""

    limit: int = 10
    window: float = 3600.0
    backoff: Backoff = field(default_factory=Backoff)

    def shut(self, history: Sequence[Past], *, fault: Past, now: float) -> Shut | None:
        """Return why no round may begin for a fault (its ``at`` is not used); None if one may.

        ``history`` is oldest first.
        """
        past = budgets.noted_by(history, now=now)
        common_cause = self._common_cause(past, fault)
        if (spent := self._rounds.closed(past, now=now)) is not None:
            return Shut(Verdict.SPENT, spent, common_cause)
        if (wait := self.backoff.closed(past, now=now, died_at=fault.fault_at)) is not None:
            return Shut(Verdict.BACKOFF, wait, common_cause)
        return None

    def left(self, history: Sequence[Past], *, now: float) -> int:
        """Return how many rounds are allowed now."""
        return self._rounds.left(budgets.noted_by(history, now=now), now=now)

    @property
    def _rounds(self) -> Window:
        return Window(self.limit, self.window, what="rounds")

    def _common_cause(self, past: Sequence[Past], fault: Past) -> str:
        streak = [*self.backoff.streak(past, died_at=fault.fault_at), fault]
        if len(streak) <= self.backoff.free:
            return ""
        lived = f"and none lived {budgets.span(self.backoff.healthy_after)}"
        if fault.slot and all(each.slot == fault.slot for each in streak):
            return f"the last {len(streak)} faults were all in {fault.slot}, {lived}. Check the member and its node"
        if fault.code and all(each.code == fault.code for each in streak):
            return f"the last {len(streak)} faults were all {fault.code}, {lived}. Restarts do not fix it"
        return ""
