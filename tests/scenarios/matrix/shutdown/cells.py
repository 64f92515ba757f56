"""Define the column as data: the results of a pod on a node that shuts down."""

import enum
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from kubemend.agent.restart.intents import Strategy

STRATEGIES: Final = (Strategy.SWAP, Strategy.RERUN, Strategy.RESET)


class Moment(enum.Enum):
    """What the restart is about when the shutdown begins."""

    BEFORE = "restarted before"
    IN_GRACE = "the old container has its grace period"
    AT_REMOVAL = "the agent's call to remove a container is under way"
    AT_CREATION = "the agent's call to create a container is under way"
    AT_STOP = "the agent's call to stop the old container is under way"
    ASKED = "asked for after the shutdown has begun"
    CRASHED = "an error of its own after the shutdown has begun"

    @property
    def under_way(self) -> bool:
        """Return whether the restart is under way."""
        return self in (Moment.IN_GRACE, *METHODS)


METHODS: Final = {
    Moment.AT_REMOVAL: "RemoveContainer",
    Moment.AT_CREATION: "CreateContainer",
    Moment.AT_STOP: "StopContainer",
}
_CALLS: Final = {
    Strategy.SWAP: (Moment.AT_CREATION, Moment.AT_STOP),
    Strategy.RERUN: (Moment.AT_REMOVAL, Moment.AT_CREATION),
    Strategy.RESET: (Moment.AT_REMOVAL,),
}


class End(enum.Enum):
    """How the program ends at kubelet's SIGTERM."""

    COMPLETES = 0
    FAILS = 1
    DEAF = 137

    @property
    def code(self) -> int:
        """Return the exit code."""
        return self.value


@dataclass(frozen=True, slots=True)
class Cell:
    """One pod. ``critical``: kubelet ends it only after all pods that are not."""

    strategy: Strategy
    moment: Moment
    end: End
    critical: bool

    def __str__(self) -> str:
        values = (self.strategy.value, self.moment.value, self.end.name.lower(), "critical" * self.critical)
        return " | ".join(filter(None, values))

    @property
    def name(self) -> str:
        """Return the name of its pod."""
        parts = (self.strategy.value, self.moment.name, self.end.name, "critical" * self.critical)
        return "-".join(filter(None, parts)).lower().replace("_", "-")


def every(*, on_crio: bool = False) -> Iterator[Cell]:
    """Yield every valid cell. An error of its own is not asked for by a strategy: there is one of each kind.

    On CRI-O a rerun is refused, and so is a swap with a grace period.
    """
    for strategy, moment, end, critical in itertools.product(STRATEGIES, Moment, End, (False, True)):
        if moment in METHODS and moment not in _CALLS[strategy]:
            continue
        if on_crio and (strategy is Strategy.RERUN or (strategy is Strategy.SWAP and moment is Moment.IN_GRACE)):
            continue
        if moment is Moment.CRASHED and (strategy is not STRATEGIES[0] or end is not End.FAILS):
            continue
        yield Cell(strategy, moment, end, critical)


def selection(*, on_crio: bool = False) -> list[Cell]:
    """Return one cell of each strategy and moment, with all ends and both priorities."""
    found: dict[tuple[Strategy, Moment], list[Cell]] = {}
    for cell in every(on_crio=on_crio):
        found.setdefault((cell.strategy, cell.moment), []).append(cell)
    return [some[number % len(some)] for number, some in enumerate(found.values())]
