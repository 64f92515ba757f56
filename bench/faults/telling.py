"""What is told of one fault: what was tried, what was measured, what was lost."""

import enum
from dataclasses import dataclass, field
from typing import Any


class Kind(enum.Enum):
    """What can be lost."""

    VERDICT = "verdict"
    RESTART = "restart"
    ROUND = "round"
    CONDITION = "condition"
    DECISION = "decision"
    UNASKED = "unasked"
    """A restart that nothing asked for: work is lost by it."""
    PROCESS = "process"
    DATA = "data"
    OTHERS = "others"
    """What others were promised while one misbehaves."""
    UNTOLD = "untold"
    """The trial itself did not come to its end: what was to be seen did not come."""


class NotTriedError(Exception):
    """This machine does not let a fault be tried. The text says why."""


@dataclass(frozen=True, slots=True)
class Loss:
    """One thing that was lost."""

    kind: Kind
    what: str

    def __str__(self) -> str:
        return f"{self.kind.value}: {self.what}"


@dataclass(slots=True)
class Told:
    """Taken down while a fault is tried. ``checks`` counts what could have been found lost.

    ``not_tried`` says why it was not tried, where it was not.
    """

    tried: list[str] = field(default_factory=list)
    measured: dict[str, Any] = field(default_factory=dict)
    lost: list[Loss] = field(default_factory=list)
    checks: int = 0
    seconds: float = 0.0
    not_tried: str = ""

    def tries(self, what: str) -> None:
        """Take down what is done now."""
        self.tried.append(what)

    def measures(self, name: str, value: Any) -> None:
        """Take down a figure; one that is told twice becomes a list."""
        if name not in self.measured:
            self.measured[name] = value
        elif isinstance(self.measured[name], list):
            self.measured[name].append(value)
        else:
            self.measured[name] = [self.measured[name], value]

    def keeps(self, kind: Kind, what: str, *, holds: bool) -> None:
        """Check one thing; ``what`` says what is lost when it does not hold."""
        self.checks += 1
        if not holds:
            self.lost.append(Loss(kind, what))

    def figures(self, *, fault: str, promised: str) -> dict[str, Any]:
        """Return what is printed."""
        why = {"not_tried": self.not_tried} if self.not_tried else {}
        return {
            "fault": fault,
            "promised": promised,
            **why,
            "tried": self.tried,
            "measured": self.measured,
            "checks": self.checks,
            "seconds": round(self.seconds, 1),
            "lost": [str(each) for each in self.lost],
        }
