"""Reconcile a JobSet: gather its state, decide, write, and record Events."""

import collections
import time
from collections.abc import Callable
from typing import Any, Final, Protocol

import structlog

from kubemend.controller.jobset import writing
from kubemend.controller.jobset.plan import Event, EventType, ObservedState, Plan
from kubemend.controller.jobset.spec.model import JobSet, Refusal, RoundView
from kubemend.controller.jobsets import events, writes
from kubemend.controller.jobsets.events import Events
from kubemend.controller.jobsets.invalid_objects import InvalidObject
from kubemend.controller.jobsets.metrics import JobSetMetrics
from kubemend.controller.jobsets.statuses import StatusWriter
from kubemend.controller.jobsets.views import Views
from kubemend.controller.jobsets.writes import Writer

log = structlog.get_logger(__name__)

INVALID: Final = "Invalid"
"""Reason of the Event about a JobSet that cannot be read."""


class Rounds(Protocol):
    """The rounds of a JobSet (``controller.coordinator.jobset_rounds``)."""

    def rounds(self, jobset: JobSet) -> tuple[RoundView, ...]:
        """Return the rounds of its gang by attempt, including those under way."""

    def refusal(self, jobset: JobSet) -> Refusal | None:
        """Return the newest fault whose round was refused for good."""


class Reconciler:
    """Reconcile JobSets, each one serially (``controller.jobsets.queue``)."""

    def __init__(
        self,
        *,
        views: Views,
        writer: Writer,
        statuses: StatusWriter,
        events: Events,
        rounds: Rounds,
        metrics: JobSetMetrics,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """``clock`` returns Unix seconds."""
        self._views = views
        self._writer = writer
        self._statuses = statuses
        self._events = events
        self._rounds = rounds
        self._metrics = metrics
        self._clock = clock

    async def reconcile(self, uid: str) -> float | None:
        """Reconcile a JobSet now; return after how many seconds to do so again without a change.

        Raises KubeError: then it must be reconciled again soon.
        """
        jobset = self._views.jobset(uid)
        if isinstance(jobset, InvalidObject):
            self._record_invalid(jobset)
            return None
        if jobset is None or jobset.deleting:
            return None
        if jobset.spec.claim_policies:
            await self._views.read_claim_specs(jobset)
        from kubemend.controller.jobset import decide  # imported only once there is a JobSet

        began = time.perf_counter()
        decided = decide.decide(self.observe(jobset))
        self._metrics.reconcile_seconds.labels("decide").observe(time.perf_counter() - began)
        await self._carry_out(jobset, decided)
        self._metrics.reconcile_seconds.labels("whole").observe(time.perf_counter() - began)
        return None if decided.wake_at is None else max(decided.wake_at - self._clock(), 0.0)

    def observe(self, jobset: JobSet) -> ObservedState:
        """Return the known state of a JobSet."""
        namespace = jobset.namespace
        return ObservedState(
            jobset=jobset,
            jobs=self._views.jobs(jobset),
            now=self._clock(),
            has_service=self._views.has_service(namespace, jobset.spec.network.subdomain),
            claims=self._views.claims(jobset),
            claim_specs=self._views.claim_specs(jobset),
            rounds=self._rounds.rounds(jobset),
            refusal=self._rounds.refusal(jobset),
        )

    async def _carry_out(self, jobset: JobSet, decided: Plan) -> None:
        """Write the plan, and record its Events once the status is written; raise the first error."""
        about = events.JobSetRef(jobset.namespace, jobset.name, jobset.uid)
        for warning in decided.warnings:
            log.warning("jobset.event", jobset=f"{jobset.namespace}/{jobset.name}", remark=warning)
        if decided.writes or decided.status is not None:
            log.info("jobset.decided", jobset=f"{jobset.namespace}/{jobset.name}", **_summary(decided))
        failed_writes = await self._writer.write(jobset, decided.writes)
        for event in writes.events(failed_writes):
            self._events.record(about, event)
        if decided.status is not None and not await self._statuses.write(jobset, writing.status_json(decided.status)):
            return  # the JobSet was deleted
        for event in decided.events:
            self._events.record(about, event, subject=jobset.resource_version)
        for what in decided.counts:
            self._metrics.count(what, namespace=jobset.namespace, name=jobset.name)
        if failed_writes:
            raise failed_writes[0].error

    def _record_invalid(self, jobset: InvalidObject) -> None:
        about = events.JobSetRef(jobset.namespace, jobset.name, jobset.uid)
        event = Event(EventType.WARNING, INVALID, f"the JobSet is invalid and is not run: {jobset.reason}")
        self._events.record(about, event)


def _summary(decided: Plan) -> dict[str, Any]:
    """Return a decision for the log: how many writes of each kind, and the Events."""
    kinds = (type(write).__name__ for group in decided.writes for write in group)
    return {
        "writes": dict(collections.Counter(kinds)),
        "status": decided.status is not None,
        "events": [each.reason for each in decided.events],
    }
