"""Define the restart matrix as data: the crossed dimensions, and the expected result of each cell.

A cell is one pod, one way its old container ends, one strategy, and one moment at which kubelet relists the runtime.
"""

import enum
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from hack.devnode.criproxy import When
from kubemend.agent.restart.intents import Strategy, SwapOrder
from kubemend.agent.restart.reasons import Reason

MAIN, SECOND, SIDECAR, INIT = "main", "second", "side", "init"


class Policy(enum.Enum):
    """The pod's restartPolicy; the last two have a rule on the main container (KEP-5307, KEP-5532)."""

    ALWAYS = "Always"
    ON_FAILURE = "OnFailure"
    NEVER = "Never"
    NEVER_BUT_137 = "Never, Restart on 137"
    NEVER_BUT_ALL_ON_137 = "Never, RestartAllContainers on 137"

    @property
    def is_never(self) -> bool:
        """Return whether an exit of the main container is final by its policy, rules aside."""
        return self not in (Policy.ALWAYS, Policy.ON_FAILURE)


class End(enum.Enum):
    """How the old container ends: by SIGKILL, on SIGTERM with grace (137: it ignores SIGTERM), or by itself before."""

    KILLED = "killed"
    TERM_0 = "0 on SIGTERM"
    TERM_1 = "1 on SIGTERM"
    TERM_137 = "deaf to SIGTERM"
    SELF_0 = "0 by itself"
    SELF_1 = "1 by itself"
    SELF_137 = "137 by itself"

    @property
    def by_itself(self) -> bool:
        """Return whether it has ended before the request."""
        return self in (End.SELF_0, End.SELF_1, End.SELF_137)

    @property
    def with_grace(self) -> bool:
        """Return whether it gets SIGTERM and some time first."""
        return self in (End.TERM_0, End.TERM_1, End.TERM_137)


class Look(enum.Enum):
    """The moment of kubelet's relist: before the first call, in the gap after the first or the second, after the last.

    For a swap the calls are stop, create and start, in the order that is safe. For a rerun the gaps are between the
    last removal and the first creation, and between that creation and its start; for a reset between the removal of the
    ended and of the running containers, and in the middle of the latter. ``ANY``: at any time.
    """

    BEFORE = "before"
    FIRST_GAP = "first gap"
    SECOND_GAP = "second gap"
    AFTER = "after"
    ANY = "any time"


class Acts(enum.Enum):
    """When kubelet acts on its relist: at once, while the restart is paused, or when the restart is done.

    ``BY_TIMER``: at once, although it has seen no change: as it does every 60 to 90 seconds, and whenever the pod's
    object changes.
    """

    AT_ONCE = "acts at once"
    LATE = "acts late"
    BY_TIMER = "acts by its timer"


PLACED: Final = (Look.BEFORE, Look.FIRST_GAP, Look.SECOND_GAP, Look.AFTER)


class Shape(enum.Enum):
    """The pod's containers in addition to its main container."""

    ALONE = "alone"
    INIT = "init container"
    SIDECAR = "init container and sidecar with startupProbe"
    POST_START = "postStart"
    PRE_STOP = "preStop"
    TWO_MAINS = "two mains"

    @property
    def inits(self) -> tuple[str, ...]:
        """Its init containers and sidecars, in order."""
        return {Shape.INIT: (INIT,), Shape.SIDECAR: (INIT, SIDECAR)}.get(self, ())

    @property
    def lasting(self) -> tuple[str, ...]:
        """Its containers that run on."""
        return (MAIN, *{Shape.SIDECAR: (SIDECAR,), Shape.TWO_MAINS: (SECOND,)}.get(self, ()))

    @property
    def names(self) -> tuple[str, ...]:
        """All of its containers."""
        return tuple(dict.fromkeys((*self.inits, *self.lasting)))


@dataclass(frozen=True, slots=True)
class Cell:
    """One combination."""

    policy: Policy
    strategy: Strategy
    end: End
    shape: Shape
    look: Look
    acts: Acts = Acts.AT_ONCE
    on_crio: bool = False
    """Whether the runtime returns no configs: the successor is created before anything is stopped."""

    def __str__(self) -> str:
        values = (self.policy, self.strategy, self.end, self.shape, self.look, self.acts)
        return " | ".join(value.value for value in values)

    @property
    def something_else_runs(self) -> bool:
        """Return whether the pod stays Running when its main container does not."""
        return len(self.shape.lasting) > 1

    @property
    def may_end(self) -> bool:
        """Return whether the exit could be final for kubelet."""
        return self.policy.is_never or (self.policy is Policy.ON_FAILURE and self.end.with_grace)

    @property
    def waits_created(self) -> bool:
        """Return whether kubelet relists while the successor waits CREATED next to the old container."""
        created_first = self.strategy is Strategy.SWAP and self.order is not SwapOrder.STOP_FIRST
        return created_first and self.look is Look.FIRST_GAP

    @property
    def needs_kubelet(self) -> bool:
        """Return whether the restart continues only after a report of kubelet.

        A rerun waits for a startup probe, and for kubelet's status where kubelet has started all of it. A reset removes
        containers that kubelet has started too early once they were seen to run; kubelet starts them where it finds the
        main container ended, or a part removed before all is.
        """
        if self.strategy is Strategy.RERUN and self.shape is Shape.SIDECAR:
            return True
        if self.acts is Acts.LATE:
            return False
        if self.strategy is Strategy.RERUN:
            return self.look is Look.FIRST_GAP and not self.shape.inits
        starts_too_early = self.end.by_itself or self.look in (Look.FIRST_GAP, Look.SECOND_GAP)
        return self.strategy is Strategy.RESET and INIT in self.shape.names and starts_too_early

    @property
    def order(self) -> SwapOrder:
        """The order of a swap's calls that keeps kubelet from ending the pod, on a node that can hold a container."""
        if self.may_end and not self.something_else_runs:
            return SwapOrder.START_FIRST
        order = SwapOrder.CREATE_FIRST if self.may_end or self.on_crio else SwapOrder.STOP_FIRST
        return order if self.end.with_grace or self.end.by_itself else order.with_start_first


@dataclass(frozen=True, slots=True)
class Place:
    """Where a call is held while kubelet relists: the ``nth`` call of a method (for a container, if named)."""

    method: str
    when: When = When.BEFORE
    nth: int = 1
    container: str | None = None


def refusal(cell: Cell, *, can_hold: bool) -> Reason | None:
    """Return the reason for which the cell is refused beforehand, or None: then it is restarted.

    ``can_hold``: whether the node can hold a container at its first instruction.
    """
    whole = cell.strategy in (Strategy.RERUN, Strategy.RESET)
    table: tuple[tuple[bool, Reason], ...] = (
        (cell.end is End.SELF_0 and cell.policy is not Policy.ALWAYS, Reason.COMPLETED),
        (cell.end.by_itself and cell.policy.is_never, Reason.ALREADY_TERMINATED),
        (
            cell.strategy is Strategy.RULES and cell.policy is not Policy.NEVER_BUT_ALL_ON_137,
            Reason.NO_RESTART_RULE,
        ),
        (cell.on_crio and cell.strategy is Strategy.RERUN, Reason.RUNTIME_HIDES_CONFIG),
        (whole and cell.policy.is_never, Reason.RESTART_POLICY_NEVER),
        (whole and cell.may_end, Reason.GRACE_COULD_COMPLETE),
        (
            cell.strategy is Strategy.SWAP
            and cell.order is SwapOrder.START_FIRST
            and not (can_hold and not cell.end.with_grace),
            Reason.NOTHING_ELSE_RUNS,
        ),
        (
            cell.strategy is Strategy.SWAP and cell.order is SwapOrder.CREATE_FIRST and cell.end.with_grace,
            Reason.GRACE_COULD_COMPLETE,
        ),
    )
    return next((reason for holds, reason in table if holds), None)


def place(cell: Cell) -> Place | None:
    """Return the moment of kubelet's relist in a cell that is restarted; None where it has no such gap."""
    match cell.strategy:
        case Strategy.SWAP:
            return _in_swap(cell)
        case Strategy.RERUN:
            return _in_rerun(cell)
        case Strategy.RESET:
            return _in_reset(cell)
        case _:
            return {Look.BEFORE: Place("StopContainer"), Look.AFTER: Place("StopContainer", When.AFTER)}.get(cell.look)


_CALLS: Final = {
    SwapOrder.STOP_FIRST: ("StopContainer", "CreateContainer", "StartContainer"),
    SwapOrder.CREATE_FIRST: ("CreateContainer", "StopContainer", "StartContainer"),
    SwapOrder.START_FIRST: ("CreateContainer", "StartContainer", "StopContainer"),
    SwapOrder.START_ELSE_STOP_FIRST: ("CreateContainer", "StartContainer", "StopContainer"),
    SwapOrder.START_ELSE_CREATE_FIRST: ("CreateContainer", "StartContainer", "StopContainer"),
}


def _in_swap(cell: Cell) -> Place | None:
    calls = _CALLS[cell.order]
    if cell.look is Look.AFTER:
        return Place(calls[-1], When.AFTER)
    if cell.end.by_itself:  # an ended container is not stopped
        return {Look.BEFORE: Place("CreateContainer"), Look.SECOND_GAP: Place("StartContainer")}.get(cell.look)
    return Place(calls[PLACED.index(cell.look)])


def _in_rerun(cell: Cell) -> Place | None:
    match cell.look:
        case Look.BEFORE:
            return _first_end(cell)
        case Look.FIRST_GAP:
            return Place("CreateContainer")
        case Look.SECOND_GAP:
            return Place("StartContainer")
        case _:
            # After a sidecar with a startup probe nothing is started before kubelet has relisted.
            last = cell.shape.names.index(SIDECAR) if SIDECAR in cell.shape.names else len(cell.shape.names) - 1
            return Place("StartContainer", When.AFTER, nth=last + 1)


def _in_reset(cell: Cell) -> Place | None:
    ended = [name for name in cell.shape.names if name == INIT or (name == MAIN and cell.end.by_itself)]
    match cell.look:
        case Look.BEFORE:
            return _first_end(cell)
        case Look.FIRST_GAP if ended and len(ended) < len(cell.shape.names):
            return Place("RemoveContainer", container=next(n for n in cell.shape.lasting if n not in ended))
        case Look.SECOND_GAP if len(cell.shape.lasting) - cell.end.by_itself > 1:
            return Place("RemoveContainer", container=cell.shape.lasting[-1])
        case Look.AFTER:
            return Place("RemoveContainer", When.AFTER, nth=len(cell.shape.names))
        case _:
            return None


def _first_end(cell: Cell) -> Place:
    """The first call of a restart of the whole pod: ended containers are removed, running ones may get SIGTERM."""
    ended = INIT in cell.shape.names or cell.end.by_itself
    return Place("StopContainer" if cell.end.with_grace and not ended else "RemoveContainer")


def every(*, can_hold: bool, looks: tuple[Look, ...] = PLACED, on_crio: bool = False) -> Iterator[Cell]:
    """Yield every valid cell. A refusal does not depend on kubelet: there is one of each."""
    strategies = (Strategy.SWAP, Strategy.RERUN, Strategy.RESET, Strategy.RULES)
    for values in itertools.product(Policy, strategies, End, Shape, looks, Acts):
        cell = Cell(*values, on_crio=on_crio)
        if refusal(cell, can_hold=can_hold) is not None:
            if (cell.look, cell.acts) == (looks[0], Acts.AT_ONCE):
                yield cell
        elif cell.look in (Look.ANY, Look.AFTER):
            if cell.acts is Acts.AT_ONCE:  # nothing comes after that it could be late for
                yield cell
        elif cell.acts is Acts.BY_TIMER and not cell.waits_created:
            continue  # elsewhere something has changed in any case, and it acts the same
        elif place(cell) is not None:
            yield cell


def covering(cells: list[Cell]) -> list[Cell]:
    """Return few cells in which every pair of values that occurs together in any cell occurs."""
    pairs = [(cell, _pairs(cell)) for cell in cells]
    left = set().union(*(each for _, each in pairs))
    chosen = []
    while left:
        best, covered = max(pairs, key=lambda each: len(each[1] & left))  # the first of several: deterministic
        left -= covered
        chosen.append(best)
    return chosen


def _pairs(cell: Cell) -> frozenset[tuple[object, object]]:
    values = (cell.policy, cell.strategy, cell.end, cell.shape, cell.look, cell.acts)
    return frozenset(itertools.combinations(values, 2))
