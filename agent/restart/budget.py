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

from kubemend.agent.restart import counts
from kubemend.agent.restart.counts import Begun, History
from kubemend.common import budgets
from kubemend.common.budgets import Backoff, Closed, Window


@dataclass(frozen=True, slots=True)
class DeviceBudget:
    """One device's budget: ``limit`` faults in a row within ``window`` s, each an early failure.

    A fault can hit several containers of one device (MIG, MPS): faults within ``same_fault`` seconds are one fault, and
    the restarts for it count once.
    """

    limit: int = 8
    window: float = 3600.0
    healthy_after: float = 60.0
    same_fault: float = 2.0

    def closed(self, past: Sequence[counts.Begun], *, now: float, died_at: float) -> budgets.Closed | None:
        """Return the time before which nothing is restarted on the device; None: allowed now. See ``Budget.closed``.

        The fault that caused the last restarts did not follow them. Other containers that it hit are restarted, too.
        """
        waves = self._waves(past)
        if waves and died_at - waves[-1].fault_at <= self.same_fault:
            return None
        failed = self._failed(waves, now=now, died_at=died_at)
        if len(failed) < self.limit:
            return None
        within, lived = budgets.span(self.window), budgets.span(self.healthy_after)
        reason = f"{len(failed)} restarts in a row within {within} did not last {lived}"
        return budgets.Closed(failed[-self.limit].first_at + self.window, reason)

    def left(self, past: Sequence[counts.Begun], *, now: float) -> int:
        """Return how many more restarts may fail to last."""
        return max(0, self.limit - len(self._failed(self._waves(past), now=now, died_at=now)))

    def _failed(self, waves: "Sequence[_Wave]", *, now: float, died_at: float) -> "Sequence[_Wave]":
        """Return the restarts that are followed too soon by the next fault, oldest first."""
        found: list[_Wave] = []
        died = died_at
        for wave in reversed(waves):
            if died - wave.last_at >= self.healthy_after or wave.first_at + self.window <= now:
                break
            found.append(wave)
            died = wave.fault_at
        return found[::-1]

    def _waves(self, past: Sequence[counts.Begun]) -> "list[_Wave]":
        waves: list[_Wave] = []
        for each in past:
            if waves and each.fault_at - waves[-1].fault_at <= self.same_fault:
                waves[-1] = _Wave(waves[-1].fault_at, waves[-1].first_at, each.at)
            else:
                waves.append(_Wave(each.fault_at, each.at, each.at))
        return waves


@dataclass(frozen=True, slots=True)
class _Wave:
    """Restarts for one fault: the time of the fault, and of the first and the last of the restarts."""

    fault_at: float
    first_at: float
    last_at: float


ON_DEVICE = DeviceBudget()
"""The budget of every device."""


class Scope(enum.Enum):
    """The owner of a budget."""

    CONTAINER = "container"
    POD = "pod"
    DEVICE = "device"
    NODE = "node"


@dataclass(frozen=True, slots=True)
class Budget:
    """One container's budget: ``limit`` restarts per ``window`` seconds, and twice as many for its pod.

    After ``free`` early failures in a row come waits of ``first_wait`` x 2^n. A successor that lived for
    ``healthy_after`` seconds or longer, from its start to the next fault, resets the backoff.
    """

    limit: int = 10
    window: float = 3600.0
    free: int = 3
    healthy_after: float = 60.0
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
        return Backoff(self.free, self.healthy_after, self.first_wait, self.longest_wait)

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


def left_of_storm(begun: Sequence[Begun], *, node: Window, now: float) -> int:
    """Return how many more restarts the storm guard allows in the namespace that has had most. ``now``: Unix seconds.

    Often all pods of a node are in one namespace, which is stopped at its share, before the node's own limit.
    """
    share = of_a_namespace(node)
    recent = [each for each in begun if each.at + node.seconds > now]
    known = {each.namespace for each in recent if each.namespace}
    left = (share.left([each for each in recent if each.namespace == name], now=now) for name in known)
    return min(node.left(recent, now=now), share.limit, *left)


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
