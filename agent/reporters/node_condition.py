"""Keep the node's condition in the API equal to the agent's.

Desired state, like the pods' (``agent.reporters.pod_conditions``), with a heartbeat: the node's status shows when the
condition was last known to hold, which reveals an agent that is gone. The condition is read again at each heartbeat, so
changes by other writers are repaired by then.
"""

import asyncio
import contextlib
import enum
import time
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from kubemend.agent.model.conditions import Condition
from kubemend.agent.reporters import status_conditions
from kubemend.agent.reporters.allowances import Allowances
from kubemend.agent.reporters.status_conditions import StatusConditions
from kubemend.common import aio
from kubemend.common.components import ComponentState, ComponentStatus
from kubemend.common.kube import client, errors, paths

log = structlog.get_logger(__name__)


class Outcome(enum.Enum):
    """The outcome of an attempt to write, for metrics."""

    WRITTEN = "written"
    FAILED = "failed"  # and will be tried again
    REFUSED = "refused"  # the server will never accept it
    NODE_GONE = "node-gone"  # the reporter waits for it


@dataclass(frozen=True, slots=True)
class Intervals:
    """Minimum seconds between two writes.

    ``changed``: if status or reason differ. ``reworded``: if only the message does; a message may count or measure
    something, and thousands of nodes that each write it at once are a load. ``heartbeat``: if nothing differs
    (node-problem-detector's default). After ``burst`` writes there is only one each ``refill``: a device that changes
    all the time must not cause unlimited writes.
    """

    changed: float = 0.1
    reworded: float = 10.0
    heartbeat: float = 300.0
    burst: int = 20
    refill: float = 5.0


class NodeConditionReporter:
    """``set`` stores the desired condition, ``run`` writes it. Before the first ``set`` nothing is written."""

    def __init__(
        self,
        *,
        api: client.KubeClient,
        node_name: str,
        report: Callable[[ComponentStatus], None],
        on_outcome: Callable[[Outcome], None] = lambda _: None,
        clock: Callable[[], float] = time.time,
        intervals: Intervals | None = None,
        backoff: aio.Backoff | None = None,
    ) -> None:
        """``clock`` returns Unix seconds."""
        self._api = api
        self._node_name = node_name
        self._report = report
        self._on_outcome = on_outcome
        self._clock = clock
        self._intervals = intervals if intervals is not None else Intervals()
        self._backoff = backoff if backoff is not None else aio.Backoff(first=0.2, limit=10.0)
        self._status = StatusConditions(f"{paths.NODES}/{node_name}")
        self._allowances = Allowances(burst=self._intervals.burst, refill=self._intervals.refill)
        self._written_at = float("-inf")  # loop time
        self._news = asyncio.Event()

    def set(self, condition: Condition) -> None:
        """Set the desired condition; the newest of a type counts. Does not block."""
        if self._status.desired.get(condition.type) != condition:
            self._status.desired[condition.type] = condition
            self._news.set()

    async def run(self) -> None:
        """Write indefinitely."""
        self._report(ComponentStatus(ComponentState.IDLE, "no condition of the node yet"))
        while True:
            await self._until_due()
            outcome = await self._attempt()
            self._on_outcome(outcome)
            if outcome in (Outcome.WRITTEN, Outcome.REFUSED):
                self._written_at = asyncio.get_running_loop().time()
                self._allowances.spend(self._node_name, now=self._written_at)
                self._backoff.reset()
            else:
                await self._backoff.wait()

    async def _until_due(self) -> None:
        clock = asyncio.get_running_loop().time
        while (wait := self._due_at() - clock()) > 0:
            self._news.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(None if wait == float("inf") else wait):
                    await self._news.wait()
        if not self._status.unwritten:
            self._status.known = None  # a heartbeat: read before writing

    def _due_at(self) -> float:
        """Return the loop time at which the next write is due."""
        desired, known = self._status.desired, self._status.known or {}
        if not desired:
            return float("inf")
        if not self._status.unwritten:
            return self._written_at + self._intervals.heartbeat
        reworded = all(
            (before := known.get(condition.type)) is not None
            and (before.status, before.reason) == (condition.status, condition.reason)
            for condition in desired.values()
        )
        due = self._written_at + (self._intervals.reworded if reworded else self._intervals.changed)
        return max(due, self._allowances.next_at(self._node_name))

    async def _attempt(self) -> Outcome:
        try:
            await status_conditions.write(self._api, self._status, now=self._clock(), heartbeat=True)
        except errors.NotFoundError:
            # Deleted, or replaced by another of its name: the next node object has no conditions of this agent.
            self._status.uid = self._status.known = None
            self._report(_no_such_node(self._node_name))
            return Outcome.NODE_GONE
        except (errors.ConflictError, errors.ApiUnavailableError):
            return Outcome.FAILED  # the watch reports that the API server is unavailable
        except errors.InvalidError as error:
            self._report(ComponentStatus(ComponentState.DEGRADED, error.what, error.hint))
            return Outcome.REFUSED
        except errors.KubeError as error:
            self._report(ComponentStatus(ComponentState.DEGRADED, error.what, error.hint))
            return Outcome.FAILED
        self._report(ComponentStatus(ComponentState.READY))
        log.info("node_condition.written", node=self._node_name, types=sorted(self._status.desired))
        return Outcome.WRITTEN


def _no_such_node(name: str) -> ComponentStatus:
    return ComponentStatus(
        ComponentState.DEGRADED,
        f"the API server has no node {name}",
        "name the node as Kubernetes does (NODE_NAME), or wait until kubelet has registered it",
    )
