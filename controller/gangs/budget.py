"""How often a gang may be restarted, and whether it gets anywhere. Pure.

As for a single container (``common.budgets``): the first rounds are immediate, a gang that dies young again and again
is slowed down, and one that spent its budget is left to its owner. On top of that it is told apart whether rounds help
at all: when the last ones all failed young in the same slot, or with the same code, the reason says so.
"""

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field

from common import budgets
from common.budgets import Backoff, Closed, Window


@dataclass(frozen=True, slots=True)
class Past:
    """One round that was begun, as the budget counts it. Times are Unix seconds.

    ``at`` is when its members ran again (when it began, where they never did), ``fault_at`` when that happened for
    which it was begun, ``slot`` and ``code`` are the fault's (empty for a request).
    """

    at: float
    fault_at: float
    slot: str = ""
    code: str = ""


class Verdict(enum.Enum):
    """SPENT: no round until the window opens again. BACKOFF: a wait, for the last rounds did not last."""

    SPENT = "Spent"
    BACKOFF = "Backoff"


@dataclass(frozen=True, slots=True)
class Shut:
    """No round now: ``closed`` says until when and why, ``in_vain`` what the last rounds failed of, all alike."""

    verdict: Verdict
    closed: Closed
    in_vain: str = ""


@dataclass(frozen=True, slots=True)
class GangBudget:
    """A gang's: ``limit`` rounds per ``window`` seconds, and waits once ``backoff.free`` in a row died young."""

    limit: int = 10
    window: float = 3600.0
    backoff: Backoff = field(default_factory=Backoff)

    def shut(self, history: Sequence[Past], *, fault: Past, now: float) -> Shut | None:
        """Return why no round may begin for a fault (its ``at`` does not matter); None when one may. Oldest first."""
        past = budgets.noted_by(history, now=now)
        in_vain = self._in_vain(past, fault)
        if (spent := self._rounds.closed(past, now=now)) is not None:
            return Shut(Verdict.SPENT, spent, in_vain)
        if (wait := self.backoff.closed(past, now=now, died_at=fault.fault_at)) is not None:
            return Shut(Verdict.BACKOFF, wait, in_vain)
        return None

    def left(self, history: Sequence[Past], *, now: float) -> int:
        """Return how many rounds it allows now."""
        return self._rounds.left(budgets.noted_by(history, now=now), now=now)

    @property
    def _rounds(self) -> Window:
        return Window(self.limit, self.window, what="rounds")

    def _in_vain(self, past: Sequence[Past], fault: Past) -> str:
        streak = [*self.backoff.streak(past, died_at=fault.fault_at), fault]
        if len(streak) <= self.backoff.free:
            return ""
        lived = f"and none lived {budgets.span(self.backoff.young)}"
        if fault.slot and all(each.slot == fault.slot for each in streak):
            return f"the last {len(streak)} faults were all in {fault.slot}, {lived}: look at it and its node"
        if fault.code and all(each.code == fault.code for each in streak):
            return f"the last {len(streak)} faults were all {fault.code}, {lived}: restarts do not mend it"
        return ""
