"""One look at a JobSet: what is known of it, the decision, its writes, one status, and what people are told of it."""

import collections
import time
from collections.abc import Callable
from typing import Any, Final, Protocol

import structlog

from controller.jobset import writing
from controller.jobset.model import JobSet, Refusal, RoundView
from controller.jobset.plan import Event, EventType, Plan, World
from controller.jobsets import events, writes
from controller.jobsets.events import Events
from controller.jobsets.metrics import JobSetMetrics
from controller.jobsets.seen import NotUnderstood
from controller.jobsets.statuses import StatusWriter
from controller.jobsets.views import Views
from controller.jobsets.writes import Writer

log = structlog.get_logger(__name__)

NOT_UNDERSTOOD: Final = "NotUnderstood"
"""Reason of the event of a JobSet that cannot be read."""


class Rounds(Protocol):
    """What is known of a JobSet's rounds (``controller.app.jobsets``)."""

    def rounds(self, jobset: JobSet) -> tuple[RoundView, ...]:
        """Return the rounds of its gang by attempt, those under way too."""

    def refusal(self, jobset: JobSet) -> Refusal | None:
        """Return the newest fault for which no round was begun, for good."""


class Reconciler:
    """Looks at JobSets. One look at one JobSet at a time (``controller.jobsets.queue``)."""

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
        """``clock`` gives Unix seconds."""
        self._views = views
        self._writer = writer
        self._statuses = statuses
        self._events = events
        self._rounds = rounds
        self._metrics = metrics
        self._clock = clock

    async def look(self, uid: str) -> float | None:
        """Do what is to be done for a JobSet now; return after how many seconds to come again though nothing happens.

        Raises KubeError: then it must be looked at again soon.
        """
        jobset = self._views.jobset(uid)
        if isinstance(jobset, NotUnderstood):
            self._tell_of(jobset)
            return None
        if jobset is None or jobset.deleting:
            return None
        if jobset.spec.claim_policies:
            await self._views.learn_claims(jobset)
        from controller.jobset import decide  # where there is no JobSet of ours, it need not be in memory

        began = time.perf_counter()
        decided = decide.decide(self.world(jobset))
        self._metrics.reconcile_seconds.labels("decide").observe(time.perf_counter() - began)
        await self._carry_out(jobset, decided)
        self._metrics.reconcile_seconds.labels("whole").observe(time.perf_counter() - began)
        return None if decided.wake_at is None else max(decided.wake_at - self._clock(), 0.0)

    def world(self, jobset: JobSet) -> World:
        """Return all that is known of a JobSet."""
        namespace = jobset.namespace
        return World(
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
        """Write, and tell of it once the status is written; raise the first error of all."""
        about = events.About(jobset.namespace, jobset.name, jobset.uid)
        for remark in decided.remarks:
            log.warning("jobset.remark", jobset=f"{jobset.namespace}/{jobset.name}", remark=remark)
        if decided.writes or decided.status is not None:
            log.info("jobset.decided", jobset=f"{jobset.namespace}/{jobset.name}", **_in_short(decided))
        troubles = await self._writer.write(jobset, decided.writes)
        for event in writes.events(troubles):
            self._events.tell(about, event)
        if decided.status is not None and not await self._statuses.write(jobset, writing.status_json(decided.status)):
            return  # it is gone
        for event in decided.events:
            self._events.tell(about, event, subject=jobset.resource_version)
        for what in decided.counts:
            self._metrics.count(what, namespace=jobset.namespace, name=jobset.name)
        if troubles:
            raise troubles[0].error

    def _tell_of(self, jobset: NotUnderstood) -> None:
        about = events.About(jobset.namespace, jobset.name, jobset.uid)
        told = Event(EventType.WARNING, NOT_UNDERSTOOD, f"the JobSet is not run: {jobset.why}")
        self._events.tell(about, told)


def _in_short(decided: Plan) -> dict[str, Any]:
    """Return a decision for the log: how many writes of each kind, and what is told."""
    kinds = (type(write).__name__ for group in decided.writes for write in group)
    return {
        "writes": dict(collections.Counter(kinds)),
        "status": decided.status is not None,
        "events": [each.reason for each in decided.events],
    }
