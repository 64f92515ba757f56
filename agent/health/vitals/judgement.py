"""What one poll says of one kind of fault, and all that a rule may look at to say it."""

from collections.abc import Callable
from dataclasses import dataclass

from agent.health.vitals.limits import Limits
from agent.health.vitals.readings import Vital, Vitals
from agent.health.vitals.record import Record


@dataclass(frozen=True, slots=True)
class Judgement:
    """It holds, or it is seen not to; ``after`` is for how many seconds that must be so until it is told.

    ``mark`` is what must differ for ``text`` to be worth telling again. ``codes``: those that hold, for kinds that
    have codes.
    """

    holds: bool
    text: str = ""
    after: float = 0.0
    mark: object = None
    codes: tuple[str, ...] = ("",)


OVER = Judgement(holds=False)
"""Seen not to hold by evidence that needs no waiting: a flag that only a reset lowers, a window that stayed clean."""


@dataclass(frozen=True, slots=True)
class Look:
    """One poll of one GPU, with what is remembered (this poll included). ``held``: whether the kind is held now."""

    vitals: Vitals
    record: Record
    now: float
    limits: Limits
    held: bool = False

    def get(self, vital: Vital) -> int | None:
        """Return a value of this poll, or None where it is not known."""
        return self.vitals.get(vital)

    @property
    def settled(self) -> Judgement:
        """Seen not to hold by a value that may change again: over when it has stayed so."""
        return Judgement(holds=False, after=self.limits.settle)


Rule = Callable[[Look], Judgement | None]
"""Judges one kind; None is "could not tell"."""
