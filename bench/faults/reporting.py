"""Record one fault: the actions, the figures, and the losses."""

import enum
from dataclasses import dataclass, field
from typing import Any


class Kind(enum.Enum):
    """Name the kinds of losses."""

    VERDICT = "verdict"
    RESTART = "restart"
    ROUND = "round"
    CONDITION = "condition"
    DECISION = "decision"
    UNASKED = "unasked"
    """A restart without a cause: it loses work."""
    PROCESS = "process"
    DATA = "data"
    OTHERS = "others"
    """A promise to other clients while one misbehaves."""
    UNREPORTED = "unreported"
    """The trial itself did not finish: an expected event did not come."""


class NotTriedError(Exception):
    """A fault cannot be tried on this machine. The text has the reason."""


@dataclass(frozen=True, slots=True)
class Loss:
    """Describe one loss."""

    kind: Kind
    what: str

    def __str__(self) -> str:
        return f"{self.kind.value}: {self.what}"


@dataclass(slots=True)
class Reported:
    """Record a fault while it is tried. ``checks`` counts the checks.

    ``not_tried`` has the reason if it was not tried.
    """

    tried: list[str] = field(default_factory=list)
    measured: dict[str, Any] = field(default_factory=dict)
    lost: list[Loss] = field(default_factory=list)
    checks: int = 0
    seconds: float = 0.0
    not_tried: str = ""

    def tries(self, what: str) -> None:
        """Record the current action."""
        self.tried.append(what)

    def measures(self, name: str, value: Any) -> None:
        """Record a figure; a repeated one becomes a list."""
        if name not in self.measured:
            self.measured[name] = value
        elif isinstance(self.measured[name], list):
            self.measured[name].append(value)
        else:
            self.measured[name] = [self.measured[name], value]

    def keeps(self, kind: Kind, what: str, *, holds: bool) -> None:
        """Check one thing; ``what`` names the loss if it does not hold."""
        self.checks += 1
        if not holds:
            self.lost.append(Loss(kind, what))

    def figures(self, *, fault: str, promised: str) -> dict[str, Any]:
        """Return the printed figures."""
        reason = {"not_tried": self.not_tried} if self.not_tried else {}
        return {
            "fault": fault,
            "promised": promised,
            **reason,
            "tried": self.tried,
            "measured": self.measured,
            "checks": self.checks,
            "seconds": round(self.seconds, 1),
            "lost": [str(each) for each in self.lost],
        }
