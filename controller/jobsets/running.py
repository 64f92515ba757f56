"""Run the managed JobSets for as long as this replica leads: composition."""

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from kubemend.common import aio, contained
from kubemend.common.components import ComponentStatus, JointComponent
from kubemend.common.kube import client
from kubemend.controller.jobset.placement import choosing
from kubemend.controller.jobset.plan import Event, EventType, ObservedState
from kubemend.controller.jobset.spec.model import ChildJob, JobSet
from kubemend.controller.jobsets.events import Events, JobSetRef
from kubemend.controller.jobsets.invalid_objects import InvalidObject
from kubemend.controller.jobsets.metrics import JobSetMetrics
from kubemend.controller.jobsets.placement_reconciler import PlacementReconciler, Wanted
from kubemend.controller.jobsets.queue import Intervals, Queue
from kubemend.controller.jobsets.reconciler import Reconciler, Rounds
from kubemend.controller.jobsets.statuses import StatusWriter
from kubemend.controller.jobsets.taints import Taints
from kubemend.controller.jobsets.views import Views
from kubemend.controller.jobsets.writes import Writer

_REST_SECONDS: Final = 50e-6
"""Seconds for each Job between two reconciles: a decision takes a tenth of that, and blocks rounds."""

Listener = Callable[[str, str], None]
"""Called with namespace and name of a changed JobSet. Not for its Jobs, which change thousands of times as often."""


class JobSets:
    """Run the managed JobSets. ``run`` does the work; all other calls are valid at any time."""

    def __init__(
        self,
        *,
        api: client.KubeClient,
        report: Callable[[ComponentStatus], None],
        rounds: Rounds,
        metrics: JobSetMetrics,
        instance: str,
        parallel: int = 50,
        tainted: Callable[[], Iterable[str]] = tuple,
        clock: Callable[[], float] = time.time,
        intervals: Intervals | None = None,
        backoff: Callable[[], aio.Backoff] = lambda: aio.Backoff(first=0.05, limit=30.0),
    ) -> None:
        """``instance`` is this replica's name, ``parallel`` the number of concurrent writes, ``clock`` gives Unix time.

        ``tainted`` returns the nodes with kubemend's taint.
        """
        part = JointComponent(report)
        self._listeners: list[Listener] = []
        self._views = Views(api=api, report=part.reporter(), changed=self._changed, jobset_changed=self._jobset_changed)
        self._events = Events(api=api, instance=instance, clock=clock)
        self._reconciler = Reconciler(
            views=self._views,
            writer=Writer(api=api, views=self._views, metrics=metrics, parallel=parallel, backoff=backoff),
            statuses=StatusWriter(api=api, views=self._views, metrics=metrics),
            events=self._events,
            rounds=rounds,
            metrics=metrics,
            clock=clock,
        )
        self._queue = Queue(
            self._reconciler.reconcile,
            intervals=intervals,
            backoff=backoff,
            rest=lambda uid: _REST_SECONDS * self._views.size(uid),
        )
        self._gates = PlacementReconciler(
            api=api, wanted=self._wanted, report_waiting=self._record_waiting, report=part.reporter()
        )
        self._taints = Taints(api=api, tainted=tainted, clock=clock)
        self._running = False
        metrics.waiting.set_function(lambda: self._queue.depth)

    async def wait_known(self) -> None:
        """Wait until the existing JobSets are known; there are none if the resource is not defined."""
        await self._views.wait_known()

    def find(self, namespace: str, name: str) -> JobSet | None:
        """Return the managed JobSet with this name."""
        return self._views.by_name(namespace, name)

    def is_invalid(self, namespace: str, name: str) -> bool:
        """Return whether the JobSet with this name is managed and cannot be read."""
        return self._views.is_invalid(namespace, name)

    def is_restarted_elsewhere(self, namespace: str, name: str) -> bool:
        """Return whether another controller restarts the pods of the JobSet with this name in place."""
        return self._views.is_restarted_elsewhere(namespace, name)

    def job(self, namespace: str, jobset: str, name: str) -> ChildJob | None:
        """Return the Job of this name that the JobSet of that name owns."""
        return self._views.job(namespace, jobset, name)

    def observe(self, jobset: JobSet) -> ObservedState:
        """Return the known state of a JobSet."""
        return self._reconciler.observe(jobset)

    def news(self, namespace: str, name: str) -> None:
        """Reconcile a JobSet, because its rounds have changed."""
        jobset = self.find(namespace, name)
        if jobset is not None:
            self._changed(jobset.uid)

    def left(self, node: str, *, code: str, pod: str) -> None:
        """Record that a member's pod is recreated elsewhere because of a device of this node."""
        self._taints.fault(node, code=code, pod=pod)

    def is_settled(self, uid: str) -> bool:
        """Return whether a JobSet was reconciled with everything known of it."""
        return self._running and self._queue.is_settled(uid)

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Call ``listener`` at each change; it must not block. Returns the function that unsubscribes."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    async def run(self) -> None:
        """Run them indefinitely."""
        async with asyncio.TaskGroup() as group:
            aio.spawn_eternal(group, self._views.run(), name="jobsets watched")
            aio.spawn_eternal(group, self._events.run(), name="jobset events")
            await self._views.wait_synced()
            try:
                self._running = True
                for uid in self._views.uids():
                    self._changed(uid)
                aio.spawn_eternal(group, self._queue.run(), name="jobset queue")
                aio.spawn_eternal(group, self._gates.run(), name="placement")
                aio.spawn_eternal(group, self._taints.run(), name="taints")
                await asyncio.Event().wait()
            finally:
                self._running = False

    def _changed(self, uid: str) -> None:
        jobset = self._views.jobset(uid)
        if jobset is None:  # deleted; or a Job appeared whose JobSet is deleted or not received yet
            self._queue.forget(uid)
            self._gates.need(uid, needed=False)
        elif self._running:
            self._queue.add(uid)
            wants = isinstance(jobset, JobSet) and not jobset.deleting and self._views.has_gated(uid)
            self._gates.need(uid, needed=wants)

    def _jobset_changed(self, jobset: JobSet | InvalidObject) -> None:
        for listener in tuple(self._listeners):
            with contained.within(contained.Part.LISTENER, f"{jobset.namespace}/{jobset.name}"):
                listener(jobset.namespace, jobset.name)

    def _wanted(self) -> Iterator[Wanted]:
        """Yield the Jobs that may ask for domains, those of the oldest JobSet first."""
        found = (self._views.jobset(uid) for uid in self._gates.needed)
        jobsets = [each for each in found if isinstance(each, JobSet)]
        for jobset in sorted(jobsets, key=lambda each: (each.created_at, each.namespace, each.name)):
            yield from self._wanted_by(jobset)

    def _wanted_by(self, jobset: JobSet) -> list[Wanted]:
        with contained.within(contained.Part.PLACEMENT, f"{jobset.namespace}/{jobset.name}"):
            jobs = [job for job in self._views.jobs(jobset) if job.end is None]
            return [Wanted(choosing.seeker(jobset.namespace, job), jobset.uid) for job in jobs]
        return []

    def _record_waiting(self, uid: str, reason: str, message: str) -> None:
        jobset = self._views.jobset(uid)
        if jobset is not None:
            about = JobSetRef(jobset.namespace, jobset.name, uid)
            self._events.record(about, Event(EventType.WARNING, reason, message))
