"""Limit how often a container, its pod, the containers of one device, and those of the node are restarted. Pure.

The first restarts are immediate: that is the point of the project. Only a container that repeatedly fails soon after
its start is slowed down, and only one that has used up its budget is left to its owner. A device on which no restart
lasts is suspect itself, whichever container uses it; and a node on which everything is restarted has a problem that
restarts do not fix.

A time in the future was recorded before the clock was set back, and is ignored (``budgets.noted_by``).
"""

import enum
from collections.abc import Sequence
from dataclasses import dataclass, replace

from kubemend.agent.restart.counts import Begun, History
from kubemend.agent.restart.device_budget import ON_DEVICE, DeviceBudget
from kubemend.common import budgets
from kubemend.common.budgets import Backoff, Closed, Window


class Scope(enum.Enum):
    """The owner of a budget."""

    CONTAINER = "container"
    POD = "pod"
    DEVICE = "device"
    NODE = "node"


@dataclass(frozen=True, slots=True)
class Budget:
    """One container's budget: ``limit`` restarts per ``window`` seconds, and twice as many for its pod.

    After ``free`` early failures in a row come waits of ``first_wait`` x 2^n. A successor that lived ``young`` seconds
    or longer, from its start to the next fault, resets the backoff.
    """

    limit: int = 10
    window: float = 3600.0
    free: int = 3
    young: float = 60.0
    first_wait: float = 10.0
    longest_wait: float = 300.0

    @property
    def restarts(self) -> Window:
        """Return how many restarts of the container are allowed."""
        return Window(self.limit, self.window)

    @property
    def of_pod(self) -> Window:
        """Return how many restarts are allowed of all containers of its pod together."""
        return Window(2 * self.limit, self.window)

    @property
    def backoff(self) -> Backoff:
        """Return the waits after early failures."""
        return Backoff(self.free, self.young, self.first_wait, self.longest_wait)

    def closed(self, past: Sequence[Begun], *, now: float, died_at: float) -> Closed | None:
        """Return the time before which the next restart is not allowed; None if it is allowed now.

        ``past`` are earlier restarts of the same container, oldest first; ``died_at`` (Unix seconds) is the time of the
        fault that the next one is for.
        """
        return budgets.later(self.restarts.closed(past, now=now), self.backoff.closed(past, now=now, died_at=died_at))


STORM = Window(limit=80, seconds=300.0)
"""The node's default budget. One fault can hit every GPU container of a node at once (NVSwitch), which this allows."""


def of_a_namespace(node: Window) -> Window:
    """Return the share of the node's budget that the pods of one namespace may use: others keep a quarter."""
    return replace(node, limit=node.limit - node.limit // 4, what="restarts in its namespace")


@dataclass(frozen=True, slots=True)
class Spent:
    """The budget that delays a restart."""

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
    """Return the budget that opens last, or None if all are open. Times are Unix seconds."""
    found = [
        Spent(scope, closed)
        for scope, closed in (
            (Scope.CONTAINER, container.closed(history.container, now=now, died_at=died_at)),
            (Scope.POD, container.of_pod.closed(history.pod, now=now)),
            (Scope.DEVICE, device.closed(history.device, now=now, died_at=died_at)),
            (Scope.NODE, node.closed(history.node, now=now)),
            (Scope.NODE, of_a_namespace(node).closed(history.namespace, now=now)),
        )
        if closed is not None
    ]
    return max(found, key=lambda each: each.closed.until, default=None)
