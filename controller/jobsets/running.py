"""JobSets of ours, run for as long as this replica leads: the parts put together."""

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from common import aio, contained, joint_part
from common.kube import client
from common.parts import PartStatus
from controller.jobset.model import ChildJob, JobSet
from controller.jobset.placement import choosing
from controller.jobset.plan import Event, EventType, World
from controller.jobsets.events import About, Events
from controller.jobsets.gates import Gates, Wanted
from controller.jobsets.metrics import JobSetMetrics
from controller.jobsets.queue import Pace, Queue
from controller.jobsets.reconciler import Reconciler, Rounds
from controller.jobsets.seen import NotUnderstood
from controller.jobsets.statuses import StatusWriter
from controller.jobsets.taints import Taints
from controller.jobsets.views import Views
from controller.jobsets.writes import Writer

_REST_SECONDS: Final = 50e-6
"""For each Job from look to look: a decision takes a tenth of it, and rounds wait meanwhile."""

Listener = Callable[[str, str], None]
"""Hears namespace and name of a JobSet that has changed. Not of its Jobs: they change thousands of times as often."""


class JobSets:
    """``run`` does the work; everything else can be asked at any time."""

    def __init__(
        self,
        *,
        api: client.KubeClient,
        report: Callable[[PartStatus], None],
        rounds: Rounds,
        metrics: JobSetMetrics,
        instance: str,
        parallel: int = 50,
        tainted: Callable[[], Iterable[str]] = tuple,
        clock: Callable[[], float] = time.time,
        pace: Pace | None = None,
        backoff: Callable[[], aio.Backoff] = lambda: aio.Backoff(first=0.05, limit=30.0),
    ) -> None:
        """``instance`` is this replica's name, ``parallel`` how many writes go side by side, ``clock`` Unix seconds.

        ``tainted`` returns the nodes that carry our taint.
        """
        part = joint_part.JointPart(report)
        self._listeners: list[Listener] = []
        self._views = Views(api=api, report=part.reporter(), changed=self._changed, told=self._told)
        self._events = Events(api=api, instance=instance, clock=clock)
        self._reconciler = Reconciler(
            views=self._views,
            writer=Writer(api=api, views=self._views, metrics=metrics, parallel=parallel),
            statuses=StatusWriter(api=api, views=self._views, metrics=metrics),
            events=self._events,
            rounds=rounds,
            metrics=metrics,
            clock=clock,
        )
        self._queue = Queue(
            self._reconciler.look,
            pace=pace,
            backoff=backoff,
            rest=lambda uid: _REST_SECONDS * self._views.size(uid),
        )
        self._gates = Gates(api=api, wanted=self._wanted, tell=self._tell_of_waiting, report=part.reporter())
        self._taints = Taints(api=api, tainted=tainted, clock=clock)
        self._running = False
        metrics.waiting.set_function(lambda: self._queue.depth)

    async def wait_known(self) -> None:
        """Wait until it is known which JobSets there are; none, where the resource is not defined."""
        await self._views.wait_known()

    def find(self, namespace: str, name: str) -> JobSet | None:
        """Return the JobSet of ours that has this name."""
        return self._views.by_name(namespace, name)

    def job(self, namespace: str, jobset: str, name: str) -> ChildJob | None:
        """Return the Job of this name that the JobSet of that name owns."""
        return self._views.job(namespace, jobset, name)

    def world(self, jobset: JobSet) -> World:
        """Return all that is known of a JobSet."""
        return self._reconciler.world(jobset)

    def news(self, namespace: str, name: str) -> None:
        """Have a JobSet looked at: there is news of its rounds."""
        jobset = self.find(namespace, name)
        if jobset is not None:
            self._changed(jobset.uid)

    def left(self, node: str, *, code: str, pod: str) -> None:
        """A member's pod is recreated elsewhere because of a device of this node."""
        self._taints.fault(node, code=code, pod=pod)

    def rests(self, uid: str) -> bool:
        """Whether all that is known of a JobSet has been looked at."""
        return self._running and self._queue.rests(uid)

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Call ``listener`` at each change; it must not block. Returns the function that ends it."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    async def run(self) -> None:
        """Run them for ever."""
        async with asyncio.TaskGroup() as group:
            aio.spawn_eternal(group, self._views.run(), name="jobsets watched")
            aio.spawn_eternal(group, self._events.run(), name="jobsets told of")
            await self._views.wait_synced()
            try:
                self._running = True
                for uid in self._views.uids():
                    self._changed(uid)
                aio.spawn_eternal(group, self._queue.run(), name="jobsets looked at")
                aio.spawn_eternal(group, self._gates.run(), name="placement")
                aio.spawn_eternal(group, self._taints.run(), name="taints")
                await asyncio.Event().wait()
            finally:
                self._running = False

    def _changed(self, uid: str) -> None:
        jobset = self._views.jobset(uid)
        if jobset is None:  # it is gone; or a Job is told of whose JobSet is, or has not been told of yet
            self._queue.forget(uid)
            self._gates.need(uid, needed=False)
        elif self._running:
            self._queue.add(uid)
            wants = isinstance(jobset, JobSet) and not jobset.deleting and self._views.has_gated(uid)
            self._gates.need(uid, needed=wants)

    def _told(self, jobset: JobSet | NotUnderstood) -> None:
        for listener in tuple(self._listeners):
            with contained.within(contained.Part.LISTENER, f"{jobset.namespace}/{jobset.name}"):
                listener(jobset.namespace, jobset.name)

    def _wanted(self) -> Iterator[Wanted]:
        """Yield the Jobs that may want domains, those of the oldest JobSet first."""
        found = (self._views.jobset(uid) for uid in self._gates.needed)
        jobsets = [each for each in found if isinstance(each, JobSet)]
        for jobset in sorted(jobsets, key=lambda each: (each.created_at, each.namespace, each.name)):
            yield from self._wanted_by(jobset)

    def _wanted_by(self, jobset: JobSet) -> list[Wanted]:
        with contained.within(contained.Part.PLACEMENT, f"{jobset.namespace}/{jobset.name}"):
            jobs = [job for job in self._views.jobs(jobset) if job.end is None]
            return [Wanted(choosing.seeker(jobset.namespace, job), jobset.uid) for job in jobs]
        return []

    def _tell_of_waiting(self, uid: str, reason: str, message: str) -> None:
        jobset = self._views.jobset(uid)
        if jobset is not None:
            about = About(jobset.namespace, jobset.name, uid)
            self._events.tell(about, Event(EventType.WARNING, reason, message))
