"""Brings our condition of the node in the API to what the agent last said of it, and keeps it there.

Desired state, like the pods' (``agent.reporters.pod_conditions``), with a heartbeat: the node's status shows when the
condition was last known to hold, so that one whose agent is gone can be told. At each heartbeat it is read again, so
what another writer did to it is set right by then.
"""

import asyncio
import contextlib
import enum
import time
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from agent.model.conditions import Condition
from agent.reporters import status_conditions
from agent.reporters.allowances import Allowances
from agent.reporters.status_conditions import StatusConditions
from common import aio
from common.kube import client, errors, paths
from common.parts import PartState, PartStatus

log = structlog.get_logger(__name__)


class Outcome(enum.Enum):
    """What became of an attempt to write, for metrics."""

    WRITTEN = "written"
    FAILED = "failed"  # and will be tried again
    REFUSED = "refused"  # the server will never take it
    NODE_GONE = "node-gone"  # it is waited for


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds between two writes, at least.

    ``changed``: when status or reason differ. ``reworded``: when only the message does; a message may count or
    measure something, and thousands of nodes that each write it at once are a load. ``heartbeat``: when nothing
    differs (node-problem-detector's default). After ``burst`` writes there is only one each ``refill``: a device that
    changes all the time must not write for ever.
    """

    changed: float = 0.1
    reworded: float = 10.0
    heartbeat: float = 300.0
    burst: int = 20
    refill: float = 5.0


class NodeConditionReporter:
    """``set`` says what should be, ``run`` brings it about. Before the first ``set`` nothing is written."""

    def __init__(
        self,
        *,
        api: client.KubeClient,
        node_name: str,
        report: Callable[[PartStatus], None],
        on_outcome: Callable[[Outcome], None] = lambda _: None,
        clock: Callable[[], float] = time.time,
        pace: Pace | None = None,
        backoff: aio.Backoff | None = None,
    ) -> None:
        """Create it; ``clock`` gives Unix seconds."""
        self._api = api
        self._node_name = node_name
        self._report = report
        self._on_outcome = on_outcome
        self._clock = clock
        self._pace = pace if pace is not None else Pace()
        self._backoff = backoff if backoff is not None else aio.Backoff(first=0.2, limit=10.0)
        self._status = StatusConditions(f"{paths.NODES}/{node_name}")
        self._allowances = Allowances(burst=self._pace.burst, refill=self._pace.refill)
        self._written_at = float("-inf")  # loop time
        self._news = asyncio.Event()

    def set(self, condition: Condition) -> None:
        """Say what should be in the API; the newest of a type counts. Does not block."""
        if self._status.desired.get(condition.type) != condition:
            self._status.desired[condition.type] = condition
            self._news.set()

    async def run(self) -> None:
        """Write for ever."""
        self._report(PartStatus(PartState.IDLE, "nothing has been said of the node yet"))
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
        if not self._status.unsaid:
            self._status.known = None  # a heartbeat: look before writing

    def _due_at(self) -> float:
        """Return the loop time at which the next write is due."""
        desired, known = self._status.desired, self._status.known or {}
        if not desired:
            return float("inf")
        if not self._status.unsaid:
            return self._written_at + self._pace.heartbeat
        reworded = all(
            (before := known.get(condition.type)) is not None
            and (before.status, before.reason) == (condition.status, condition.reason)
            for condition in desired.values()
        )
        due = self._written_at + (self._pace.reworded if reworded else self._pace.changed)
        return max(due, self._allowances.next_at(self._node_name))

    async def _attempt(self) -> Outcome:
        try:
            await status_conditions.write(self._api, self._status, now=self._clock(), heartbeat=True)
        except errors.NotFoundError:
            # Gone, or another one of its name: whatever node comes next has nothing of ours.
            self._status.uid = self._status.known = None
            self._report(_no_such_node(self._node_name))
            return Outcome.NODE_GONE
        except (errors.ConflictError, errors.ApiUnavailableError):
            return Outcome.FAILED  # that the API server is away is told by who watches it
        except errors.InvalidError as error:
            self._report(PartStatus(PartState.DEGRADED, error.what, error.mend))
            return Outcome.REFUSED
        except errors.KubeError as error:
            self._report(PartStatus(PartState.DEGRADED, error.what, error.mend))
            return Outcome.FAILED
        self._report(PartStatus(PartState.READY))
        log.info("node_condition.written", node=self._node_name, types=sorted(self._status.desired))
        return Outcome.WRITTEN


def _no_such_node(name: str) -> PartStatus:
    return PartStatus(
        PartState.DEGRADED,
        f"the API server has no node {name}",
        "name the node as Kubernetes does (NODE_NAME), or wait until kubelet has registered it",
    )
