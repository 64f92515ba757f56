"""How often may be restarted in place: one container, its pod, on one device, on the whole node. Pure.

The first restarts are immediate: that is the point of the project. Only a container that dies young again and
again is slowed down, and only one that spent its whole budget is left to its owner. A device on which nothing lasts is
suspect itself, whoever uses it; and a node on which everything is restarted has a trouble that restarts do not mend.

A time that lies in the future was noted by a clock that has been set back since: it says nothing (``counts.noted_by``).
"""

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass

from agent.restart.counts import Begun, Closed, History, span
from agent.restart.device_budget import ON_DEVICE, DeviceBudget


class Scope(enum.Enum):
    """Whose budget it is."""

    CONTAINER = "container"
    POD = "pod"
    DEVICE = "device"
    NODE = "node"


@dataclass(frozen=True, slots=True)
class Window:
    """At most ``limit`` restarts in any ``seconds``."""

    limit: int
    seconds: float

    def closed(self, past: Sequence[Begun], *, now: float) -> Closed | None:
        """Return until when the next restart is not allowed, None when it is now. ``past``: oldest first."""
        if self.limit <= 0:
            return Closed(math.inf, "it allows none")
        recent = self._recent(past, now=now)
        if len(recent) < self.limit:
            return None
        return Closed(recent[-self.limit].at + self.seconds, f"{len(recent)} restarts within {span(self.seconds)}")

    def left(self, past: Sequence[Begun], *, now: float) -> int:
        """Return how many restarts it allows now."""
        return max(0, self.limit - len(self._recent(past, now=now)))

    def _recent(self, past: Sequence[Begun], *, now: float) -> Sequence[Begun]:
        return [each for each in past if each.at + self.seconds > now]


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
        return _later(self.restarts.closed(past, now=now), self._backoff(past, now=now, died_at=died_at))

    def _backoff(self, past: Sequence[Begun], *, now: float, died_at: float) -> Closed | None:
        streak, died = 0, died_at
        for each in reversed(past):
            if died - each.at >= self.young:
                break
            streak, died = streak + 1, each.fault_at
        if streak < self.free or not past:
            return None
        # Two to the power of a thousand is no float any more: a waiting time must not become an error.
        wait = min(self.first_wait * 2.0 ** min(streak - self.free, 64), self.longest_wait)
        until = past[-1].at + wait
        return Closed(until, f"{streak} in a row lived less than {span(self.young)}") if until > now else None


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


def _later(one: Closed | None, other: Closed | None) -> Closed | None:
    return max((each for each in (one, other) if each is not None), key=lambda each: each.until, default=None)
