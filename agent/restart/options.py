"""What a pod asks for in its ``kubemend.io/`` annotations. Pure."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from agent.restart import intents
from agent.restart.budget import Budget

PREFIX = "kubemend.io/"
RESTART = PREFIX + "restart"
IN_PLACE = "InPlace"
STRATEGY = PREFIX + "strategy"
CONTAINERS = PREFIX + "containers"
GRACE_PERIOD = PREFIX + "grace-period"
MAX_RESTARTS = PREFIX + "max-restarts"

_DURATION = re.compile(r"(?P<amount>\d+(?:\.\d+)?)(?P<unit>ms|s|m)?")
_UNIT_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, None: 1.0}


class BadAnnotationError(ValueError):
    """An annotation cannot be understood; nothing is restarted on a guess. The text names it and the mend."""


@dataclass(frozen=True, slots=True)
class Options:
    """One pod's wishes. ``max_restarts`` None means the default budget.

    ``containers`` are swapped together when a fault hits one of them, and no other ones are; empty means that the
    container that was hit, whichever it is, is swapped alone.
    """

    opted_in: bool = False
    strategy: intents.Strategy = intents.Strategy.AUTO
    containers: frozenset[str] = frozenset()
    grace_seconds: float = 0.0
    max_restarts: int | None = None

    def budget(self) -> Budget:
        """Return the budget of each of the pod's containers."""
        return Budget() if self.max_restarts is None else Budget(limit=self.max_restarts)


def parse(annotations: Mapping[str, str]) -> Options:
    """Return the wishes in a pod's annotations. Raises BadAnnotationError."""
    mode = annotations.get(RESTART)
    if mode not in (None, IN_PLACE):
        raise BadAnnotationError(f"annotation {RESTART} is {mode!r}; the only value is {IN_PLACE!r}")
    return Options(
        opted_in=mode == IN_PLACE,
        strategy=_strategy(annotations.get(STRATEGY, "auto")),
        containers=frozenset(name.strip() for name in annotations.get(CONTAINERS, "").split(",") if name.strip()),
        grace_seconds=_seconds(annotations.get(GRACE_PERIOD, "0")),
        max_restarts=_count(annotations.get(MAX_RESTARTS)),
    )


def _strategy(text: str) -> intents.Strategy:
    try:
        return intents.Strategy(text)
    except ValueError:
        known = ", ".join(strategy.value for strategy in intents.Strategy)
        raise BadAnnotationError(f"annotation {STRATEGY} is {text!r}; use one of {known}") from None


def _seconds(text: str) -> float:
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise BadAnnotationError(f"annotation {GRACE_PERIOD} is {text!r}; write seconds, such as 10s or 500ms")
    return float(match["amount"]) * _UNIT_SECONDS[match["unit"]]


def _count(text: str | None) -> int | None:
    if text is None:
        return None
    if not text.strip().isdecimal():
        raise BadAnnotationError(f"annotation {MAX_RESTARTS} is {text!r}; write a whole number")
    return int(text)
