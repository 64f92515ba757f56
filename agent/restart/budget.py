"""How often may be restarted in place: one container, its pod, on one device, on the whole node. Pure.

The first restarts are immediate: that is the point of the project. Only a container that dies young again and
again is slowed down, and only one that spent its whole budget is left to its owner. A device on which nothing lasts is
suspect itself, whoever uses it; and a node on which everything is restarted has a trouble that restarts do not mend.

A time that lies in the future was noted by a clock that has been set back since: it says nothing
(``budgets.noted_by``).
"""

import enum
from collections.abc import Sequence
from dataclasses import dataclass

from agent.restart.counts import Begun, History
from agent.restart.device_budget import ON_DEVICE, DeviceBudget
from common import budgets
from common.budgets import Backoff, Closed, Window


class Scope(enum.Enum):
    """Whose budget it is."""

    CONTAINER = "container"
    POD = "pod"
    DEVICE = "device"
    NODE = "node"


@dataclass(frozen=True, slots=True)
class Budget:
    """One container's: ``limit`` restarts per ``window`` seconds, and its pod twice as many.

    After ``free`` young deaths in a row come waits of ``first_wait`` x 2^n. A successor that lived ``young`` seconds or
    longer, from its start to the next fault, starts the backoff over.
    """

    limit: int = 10
    window: float = 3600.0
    free: int = 3
    young: float = 60.0
    first_wait: float = 10.0
    longest_wait: float = 300.0

    @property
    def restarts(self) -> Window:
        """How many restarts of the container are allowed."""
        return Window(self.limit, self.window)

    @property
    def of_pod(self) -> Window:
        """How many restarts are allowed of all containers of its pod together."""
        return Window(2 * self.limit, self.window)

    def closed(self, past: Sequence[Begun], *, now: float, died_at: float) -> Closed | None:
        """Return until when the next restart is not allowed, None when it is now.

        ``past`` are earlier restarts of the same container, oldest first; ``died_at`` (Unix seconds) is when the fault
        came that the next one is for.
        """
        backoff = Backoff(self.free, self.young, self.first_wait, self.longest_wait)
        return budgets.later(self.restarts.closed(past, now=now), backoff.closed(past, now=now, died_at=died_at))


STORM = Window(limit=60, seconds=300.0)
"""The node's budget by default. One fault can hit every GPU container of a node at once (NVSwitch): it leaves room."""


@dataclass(frozen=True, slots=True)
class Spent:
    """The budget that keeps a restart waiting."""

    scope: Scope
    closed: Closed


def spent(
    history: History,
    *,
    container: Budget,
    device: DeviceBudget = ON_DEVICE,
    node: Window = STORM,
    now: float,
    died_at: float,
) -> Spent | None:
    """Return the budget that opens last, or None when all are open. Times are Unix seconds."""
    found = [
        Spent(scope, closed)
        for scope, closed in (
            (Scope.CONTAINER, container.closed(history.container, now=now, died_at=died_at)),
            (Scope.POD, container.of_pod.closed(history.pod, now=now)),
            (Scope.DEVICE, device.closed(history.device, now=now, died_at=died_at)),
            (Scope.NODE, node.closed(history.node, now=now)),
        )
        if closed is not None
    ]
    return max(found, key=lambda each: each.closed.until, default=None)
