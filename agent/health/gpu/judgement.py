"""The result of one rule for one poll, and the inputs of the rules."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kubemend.agent.health.gpu.limits import Limits
from kubemend.agent.health.gpu.readings import Vital, Vitals
from kubemend.agent.health.gpu.record import Record


@dataclass(frozen=True, slots=True)
class Judgement:
    """Whether a fault holds; ``after`` is for how many seconds that must be so before it is emitted.

    ``holds`` None: the value shows neither its beginning nor its end, and both take their whole time again. A changed
    ``mark`` makes a changed ``text`` worth emitting again. ``codes`` are the codes that hold, for kinds with codes.
    """

    holds: bool | None
    text: str = ""
    after: float = 0.0
    mark: object = None
    codes: tuple[str, ...] = ("",)


OVER = Judgement(holds=False)
"""The fault is absent, by evidence that needs no delay: a flag that only a reset lowers, a window that stayed clean."""


BETWEEN = Judgement(holds=None)
"""The fault remains as it is: the value is below the limit at which it begins, and above the one at which it ends."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One poll of one GPU, with the state kept so far (this poll included).

    ``held``: whether the kind holds now; ``mark``: that of the judgement which was last emitted for it.
    """

    vitals: Vitals
    record: Record
    now: float
    limits: Limits
    held: bool = False
    mark: Any = None

    def get(self, vital: Vital) -> int | None:
        """Return a value of this poll, or None where it is unknown."""
        return self.vitals.get(vital)

    @property
    def settled(self) -> Judgement:
        """The fault is absent by a value that may change again: over when it has stayed so."""
        return Judgement(holds=False, after=self.limits.settle)


Rule = Callable[[Sample], Judgement | None]
"""Judges one kind; None means unknown."""
