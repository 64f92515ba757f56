"""The pods of this node in the API server: listed once, then watched while the agent runs.

While the API server is unavailable, the last view is kept and the component is degraded: a restart in place needs the
container runtime, not the API server. Only ``PodView`` values are kept, never the objects.

Finished pods are watched as well: a field selector would show the end of a pod as its deletion.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Final

import structlog

from kubemend.agent.model.workloads import ContainerRef, PodChange, PodChangeKind, PodRef, PodUid, PodView
from kubemend.agent.restart import exits
from kubemend.agent.sources import pod_objects
from kubemend.common import aio, contained
from kubemend.common.components import ComponentStatus
from kubemend.common.kube import client, errors, informer, paths, shares

log = structlog.get_logger(__name__)

_ALL_AT_ONCE: Final = 0
"""List without a limit: a node has few pods.

With a limit, many servers would read every pod of the cluster from etcd instead of the node's from their cache
(kubernetes/kubernetes#132132), for each agent that lists again after an outage. The client holds one pod at a time,
however long the list (``common.kube.listing``).
"""


BOUNDS: Final = shares.Bounds(
    bare=pod_objects.bare,
    one=pod_objects.MOST_OF_A_POD,
    namespace=pod_objects.MOST_OF_A_NAMESPACE,
    total=pod_objects.MOST_OF_ALL,
)
"""Bounds of the view."""

_SHUTDOWN: Final = "NodeShutdown"
"""``PodView.leaving`` of every pod of a node that shuts down: kubelet's reason for rejecting pods."""


class PodWatch:
    """Keeps the view. ``run`` does the work; all other methods can be called at any time.

    In a shutdown of the node kubelet ends all pods, by priority, and marks each only when its containers have ended.
    ``node_shuts_down`` makes all of them leave at once.
    """

    def __init__(
        self,
        *,
        api: client.KubeClient,
        node_name: str,
        report: Callable[[ComponentStatus], None],
        backoff: aio.Backoff | None = None,
        bare: Callable[[int], None] = lambda _: None,
    ) -> None:
        """``bare`` receives the number of pods of which only the identity is kept (``pod_objects.bare``)."""
        self._api = api
        self._views: dict[PodUid, PodView] = {}
        self._node_shuts_down = False
        self._listeners: list[Callable[[PodChange], None]] = []
        self._mirror: informer.Informer[PodView] = informer.Informer(
            api=api,
            path=paths.PODS,
            params={"fieldSelector": f"spec.nodeName={node_name}"},
            reduce=pod_objects.pod_view,
            report=report,
            page=_ALL_AT_ONCE,
            backoff=backoff,
            bounds=replace(BOUNDS, on_bare_count=bare),
        )
        self._mirror.subscribe(self._process)

    def kubelet_creates(self, container: ContainerRef) -> bool:
        """Return whether kubelet restarts a container without delay when it has ended with an error."""
        pod = self._views.get(container.pod.uid)
        return pod is not None and exits.is_restarted_at_once(pod, container.name)

    @property
    def synced(self) -> bool:
        """Whether the pods have been listed since ``run`` began: before, a missing pod is no evidence."""
        return self._mirror.synced

    async def until_synced(self) -> None:
        """Wait for the first listing."""
        await self._mirror.wait_synced()

    def pods(self) -> Mapping[PodUid, PodView]:
        """Return the pods by UID: a live, read-only view."""
        return MappingProxyType(self._views)

    def node_shuts_down(self, shuts_down: bool) -> None:  # noqa: FBT001 - NodeWatch calls it
        """Have all pods leave, or take that back when the node's shutdown was cancelled."""
        self._node_shuts_down = shuts_down
        for pod in self._mirror.items().values():
            view = self._seen_from_node(pod)
            if view != self._views.get(view.ref.uid):
                self._views[view.ref.uid] = view
                self._notify(PodChange(PodChangeKind.CHANGED, view))

    def _process(self, change: informer.Change[PodView]) -> None:
        view = self._seen_from_node(change.value)
        if change.kind is PodChangeKind.GONE:
            self._views.pop(view.ref.uid, None)
        else:
            self._views[view.ref.uid] = view
        self._notify(PodChange(change.kind, view))

    def _seen_from_node(self, pod: PodView) -> PodView:
        return replace(pod, leaving=_SHUTDOWN) if self._node_shuts_down and not pod.leaving else pod

    def _notify(self, change: PodChange) -> None:
        for listener in tuple(self._listeners):
            with contained.within(contained.Part.LISTENER, change.pod.ref):
                listener(change)

    def by_name(self, namespace: str, name: str) -> PodView | None:
        """Return the pod of that name; of two (one of them being deleted) the one that is not being deleted."""
        found = [pod for pod in self.pods().values() if (pod.ref.namespace, pod.ref.name) == (namespace, name)]
        return min(found, key=lambda pod: pod.deleting, default=None)

    def subscribe(self, listener: Callable[[PodChange], None]) -> Callable[[], None]:
        """Call ``listener`` at each change, in order; it must not block. Returns a function that unsubscribes."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    async def wait_for(self, uid: PodUid, predicate: Callable[[PodView], bool], *, timeout: float) -> PodView | None:
        """Return the pod as soon as ``predicate`` holds; None when the pod is deleted or after ``timeout`` s."""
        seen: asyncio.Future[PodView | None] = asyncio.get_running_loop().create_future()

        def check(change: PodChange) -> None:
            if change.pod.ref.uid != uid or seen.done():
                return
            gone = change.kind is PodChangeKind.GONE
            if gone or predicate(change.pod):
                seen.set_result(None if gone else change.pod)

        unsubscribe = self.subscribe(check)
        try:
            if (pod := self.pods().get(uid)) is not None and predicate(pod):
                return pod
            async with asyncio.timeout(timeout):
                return await seen
        except TimeoutError:
            pod = self.pods().get(uid)  # it may have changed while the event loop was blocked
            return pod if pod is not None and predicate(pod) else None
        finally:
            unsubscribe()

    async def ask(self, pod: PodRef, *, timeout: float) -> PodView | None:
        """Get one of the pods from the API server itself: the watch of a hanging server stays silent for long.

        None when it does not answer within ``timeout`` seconds, has no such pod any more, or returns an invalid object.
        """
        try:
            async with asyncio.timeout(timeout):
                view = pod_objects.pod_view(await self._api.get(paths.pod(pod.namespace, pod.name)))
        except (errors.KubeError, TimeoutError) as error:
            log.info("pods.get_failed", pod=str(pod), error=str(error) or f"no answer within {timeout:g} s")
            return None
        except informer.INVALID as error:
            log.warning("pods.invalid", pod=str(pod), error=repr(error))
            return None
        return self._seen_from_node(view) if view.ref.uid == pod.uid else None

    async def run(self) -> None:
        """Keep the view current indefinitely; list again after every outage."""
        await self._mirror.run()
