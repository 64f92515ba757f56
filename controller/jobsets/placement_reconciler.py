"""Assign a topology domain to each Job that asks for one of its own, and release its pods.

Pods of such Jobs have a scheduling gate. Pods and nodes are watched for this only while a managed JobSet asks for it.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import structlog

from kubemend.common import aio, contained
from kubemend.common.components import ComponentState, ComponentStatus, JointComponent
from kubemend.common.kube import client, errors, informer, paths, shares
from kubemend.common.kube.changes import ChangeKind
from kubemend.controller.jobset.children import naming
from kubemend.controller.jobset.placement import choosing, exclusive, reading
from kubemend.controller.jobset.placement.model import Assignment, Domain, Node, Placements, Pod, Seeker, Waiting

log = structlog.get_logger(__name__)

_NODES_PAGE: Final = 100
"""Nodes list their images: up to 50 KB each."""
_SETTLE_SECONDS: Final = 0.2
_REST: Final = 10.0
"""Pause after a choice, in multiples of its duration: with 50,000 pods it takes 0.2 s, in which rounds wait."""
_IDLE_SECONDS: Final = 60.0
_PARALLEL: Final = 16
_OF_JOBSETS: Final = {
    "labelSelector": naming.JOB_KEY,
    # a pod that has ended neither occupies nor seeks a domain
    "fieldSelector": "status.phase!=Succeeded,status.phase!=Failed",
}
MOST_OF_ALL: Final = 64 * 2**20
"""Bytes kept of the pods to place, of one namespace or of all."""
_BOUNDS: Final = shares.Bounds(reading.bare, one=64 * 1024, namespace=MOST_OF_ALL, total=MOST_OF_ALL)


@dataclass(frozen=True, slots=True)
class Wanted:
    """A Job whose pods may wait, and the UID of its JobSet."""

    seeker: Seeker
    jobset: str


class PlacementReconciler:
    """Place Jobs. ``need`` sets which JobSets have Jobs to place, ``run`` places them."""

    def __init__(
        self,
        *,
        api: client.KubeClient,
        wanted: Callable[[], Iterable[Wanted]],
        report_waiting: Callable[[str, str, str], None],
        report: Callable[[ComponentStatus], None],
        idle: float = _IDLE_SECONDS,
    ) -> None:
        """``wanted`` returns the Jobs in the order in which they get domains.

        ``report_waiting`` gets the UID of a JobSet whose Job must still wait, the reason and the message. ``idle`` is
        how many seconds pods and nodes are still watched after the last demand.
        """
        self._api = api
        self._wanted = wanted
        self._record_waiting = report_waiting
        self._report = report
        self._idle = idle
        self._needed: set[str] = set()
        self._begin = asyncio.Event()
        self._news = asyncio.Event()
        self._reported: set[tuple[str, str]] = set()
        self._stand_by()

    @property
    def needed(self) -> frozenset[str]:
        """Return the UIDs of the JobSets with Jobs that ask for domains."""
        return frozenset(self._needed)

    def need(self, uid: str, *, needed: bool) -> None:
        """Set whether a JobSet has Jobs that ask for domains; also call it when these have changed."""
        (self._needed.add if needed else self._needed.discard)(uid)
        if needed:
            self._begin.set()
            self._news.set()

    async def run(self) -> None:
        """Place indefinitely."""
        try:
            while True:
                self._stand_by()
                self._begin.clear()
                if not self._needed:
                    await self._begin.wait()
                await self._place_while_needed()
        finally:
            self._needed.clear()
            self._reported.clear()
            self._stand_by()

    def _stand_by(self) -> None:
        self._report(ComponentStatus(ComponentState.IDLE, "no managed JobSet asks for exclusive placement"))

    async def _place_while_needed(self) -> None:
        board = _Board(api=self._api, report=self._report, news=self._news.set)
        async with board.watching():
            while self._needed or not await self._is_idle():
                self._news.clear()
                took = 0.0
                with contained.within(contained.Part.PLACEMENT, "all that waits"):
                    took = await self._place(board)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._idle):
                        await self._news.wait()
                await asyncio.sleep(max(_SETTLE_SECONDS, _REST * took))

    async def _is_idle(self) -> bool:
        """Return whether there is no demand for a while."""
        self._begin.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._idle):
                await self._begin.wait()
        return not self._needed

    async def _place(self, board: "_Board") -> float:
        """Place all waiting pods; return for how many seconds that blocked the event loop."""
        if not board.has_waiting:
            self._reported.clear()
            return 0.0
        began = time.perf_counter()
        wanted = list(self._wanted())
        found = board.place(each.seeker for each in wanted)
        took = time.perf_counter() - began
        await board.release(found.assigned)
        self._report_waiting(found.waiting, jobsets={each.seeker.job: each.jobset for each in wanted})
        return took

    def _report_waiting(self, waiting: Sequence[Waiting], *, jobsets: Mapping[str, str]) -> None:
        """Report the first waiting Job of each JobSet and reason: thousands wait together."""
        unreported: dict[tuple[str, str], list[Waiting]] = {}
        for each in waiting:
            if (each.job, each.message) not in self._reported:
                unreported.setdefault((jobsets[each.job], each.reason.value), []).append(each)
        for (jobset, reason), group in unreported.items():
            message = group[0].message + (f" (and {len(group) - 1} more)" if len(group) > 1 else "")
            log.warning("placement.pending", reason=reason, message=message)
            self._record_waiting(jobset, reason, message)
        self._reported = {(each.job, each.message) for each in waiting}


class _Board:
    """Pods and nodes while they are watched, and assignments that the pods do not show yet."""

    def __init__(
        self, *, api: client.KubeClient, report: Callable[[ComponentStatus], None], news: Callable[[], None]
    ) -> None:
        self._api = api
        self._slots = asyncio.Semaphore(_PARALLEL)
        self._news = news
        part = JointComponent(report)
        self._pods: informer.Informer[Pod] = informer.Informer(
            api=api, path=paths.PODS, reduce=reading.pod, report=part.reporter(), params=_OF_JOBSETS, bounds=_BOUNDS
        )
        self._nodes: informer.Informer[Node] = informer.Informer(
            api=api, path=paths.NODES, reduce=reading.node, report=part.reporter(), page=_NODES_PAGE
        )
        self._waiting: set[str] = set()  # UIDs
        self._promised: dict[str, Domain] = {}
        self._going: dict[str, Pod] = {}  # pods being released, as they were before
        self._refused: dict[str, tuple[Pod, float]] = {}  # as they were then, and when to try again (loop time)
        self._backoff = aio.Backoff(first=1.0, limit=60.0)
        self._pods.subscribe(self._pod_changed)
        self._nodes.subscribe(lambda _: news())

    @contextlib.asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        """Watch for the length of the block, which begins when all objects are listed."""
        async with asyncio.TaskGroup() as group:
            tasks = [
                aio.spawn_eternal(group, self._pods.run(), name="pods to place"),
                aio.spawn_eternal(group, self._nodes.run(), name="nodes to place on"),
            ]
            try:
                await self._pods.wait_synced()
                await self._nodes.wait_synced()
                yield
            finally:
                for task in tasks:
                    task.cancel()

    @property
    def has_waiting(self) -> bool:
        """Return whether any pod waits."""
        return bool(self._waiting)

    def place(self, seekers: Iterable[Seeker]) -> Placements:
        """Return the assigned domains, and the Jobs that must still wait."""
        return choosing.place(
            seekers, pods=self._pods.items().values(), nodes=self._nodes.items().values(), promised=self._promised
        )

    async def release(self, assigned: Iterable[Assignment]) -> None:
        """Release pods to their domains. One that fails is tried again after a while, or when it has changed."""
        loop = asyncio.get_running_loop()
        tasks: dict[asyncio.Task[bool], Pod] = {}
        async with asyncio.TaskGroup() as group:
            for each in assigned:
                self._promised[each.job] = each.domain
                for pod in each.pods:
                    if self._going.get(pod.uid) != pod and not self._is_paused(pod):
                        self._going[pod.uid] = pod
                        work = self._release(pod, each.domain)
                        tasks[group.create_task(work, name=f"placement of {pod.name}")] = pod
        if failed := [pod for task, pod in tasks.items() if not task.result()]:
            wait = self._backoff.next_wait()
            self._refused |= {pod.uid: (pod, loop.time() + wait) for pod in failed}
            loop.call_later(wait, self._news)
        elif tasks:
            self._backoff.reset()

    def _is_paused(self, pod: Pod) -> bool:
        """Return whether a pod waits after a refusal: any pod's change leads here, and all that wait would be tried."""
        refused, until = self._refused.get(pod.uid, (None, 0.0))
        return refused == pod and asyncio.get_running_loop().time() < until

    async def _release(self, pod: Pod, domain: Domain) -> bool:
        """Release a pod; return whether nothing remains to be done about it."""
        with contained.within(contained.Part.PLACEMENT, f"{pod.namespace}/{pod.name}"):
            return await self._patch(pod, domain)
        self._going.pop(pod.uid, None)
        return False

    async def _patch(self, pod: Pod, domain: Domain) -> bool:
        path = paths.pod(pod.namespace, pod.name)
        try:
            async with self._slots:
                await self._api.patch(path, exclusive.release_patch(pod, domain), content_type=client.Patch.MERGE)
        except errors.NotFoundError:
            self._going.pop(pod.uid, None)
        except errors.KubeError as error:  # for example, it has changed
            self._going.pop(pod.uid, None)
            log.warning("placement.failed", pod=f"{pod.namespace}/{pod.name}", error=str(error))
            return False
        else:
            log.info("placement.done", pod=f"{pod.namespace}/{pod.name}", domain=str(domain))
        return True

    def _pod_changed(self, change: informer.Change[Pod]) -> None:
        pod, is_gone = change.value, change.kind is ChangeKind.GONE
        if not is_gone and exclusive.waits(pod):
            self._waiting.add(change.uid)
        else:
            self._waiting.discard(change.uid)
            self._going.pop(change.uid, None)
            self._refused.pop(change.uid, None)
            if not is_gone or not any(each.job == pod.job for each in self._going.values()):
                self._promised.pop(pod.job, None)  # from now on its pods show the domain
        self._news()
