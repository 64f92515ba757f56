"""The pods of this node as the API server tells them: listed once, then watched for as long as the agent runs.

While the API server is away the last view holds, and the part says that it is degraded: a restart in place needs the
container runtime, not the API server. Only ``PodView`` values are kept, never the objects.
"""

import asyncio
import contextlib
import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import structlog

from agent.model.workloads import PodRef, PodUid, PodView
from agent.sources import pod_objects
from common import aio
from common.kube import client, errors, paths, watching
from common.parts import PartState, PartStatus

log = structlog.get_logger(__name__)


class PodChangeKind(enum.Enum):
    """What happened to a pod. A pod that was rebound under its name is GONE and then APPEARED, with another UID."""

    APPEARED = "appeared"
    CHANGED = "changed"
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class PodChange:
    """One change; ``pod`` is the new view, or the last one of a pod that is gone."""

    kind: PodChangeKind
    pod: PodView


class PodWatch:
    """Keeps the view. ``run`` does the work; everything else can be asked at any time."""

    def __init__(
        self,
        *,
        api: client.KubeClient,
        node_name: str,
        report: Callable[[PartStatus], None],
        backoff: aio.Backoff | None = None,
    ) -> None:
        self._api = api
        self._selector = {"fieldSelector": f"spec.nodeName={node_name}"}
        self._report = report
        self._backoff = backoff or aio.Backoff(first=0.2, limit=10.0)
        self._pods: dict[PodUid, PodView] = {}
        self._listeners: list[Callable[[PodChange], None]] = []
        self._synced = asyncio.Event()

    @property
    def synced(self) -> bool:
        """Whether the pods have been listed at least once: before, a missing pod means nothing."""
        return self._synced.is_set()

    async def until_synced(self) -> None:
        """Wait until the pods have been listed once."""
        await self._synced.wait()

    def pods(self) -> Mapping[PodUid, PodView]:
        """Return the pods by UID: a live, read-only view."""
        return MappingProxyType(self._pods)

    def by_name(self, namespace: str, name: str) -> PodView | None:
        """Return the pod of that name; of two (one of them going away) the one that is not being deleted."""
        found = [pod for pod in self._pods.values() if (pod.ref.namespace, pod.ref.name) == (namespace, name)]
        return min(found, key=lambda pod: pod.deleting, default=None)

    def subscribe(self, listener: Callable[[PodChange], None]) -> Callable[[], None]:
        """Call ``listener`` at each change, in order; it must not block. Returns the function that ends it."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    async def wait_for(self, uid: PodUid, predicate: Callable[[PodView], bool], *, timeout: float) -> PodView | None:
        """Return the pod's view as soon as ``predicate`` holds; None when the pod goes away or after ``timeout`` s."""
        seen: asyncio.Future[PodView | None] = asyncio.get_running_loop().create_future()

        def look(change: PodChange) -> None:
            if change.pod.ref.uid != uid or seen.done():
                return
            gone = change.kind is PodChangeKind.GONE
            if gone or predicate(change.pod):
                seen.set_result(None if gone else change.pod)

        unsubscribe = self.subscribe(look)
        try:
            if (pod := self._pods.get(uid)) is not None and predicate(pod):
                return pod
            async with asyncio.timeout(timeout):
                return await seen
        except TimeoutError:
            return None
        finally:
            unsubscribe()

    async def ask(self, pod: PodRef, *, timeout: float) -> PodView | None:
        """Ask the API server itself about one of the pods: the watch of a server that hangs is silent for long.

        None when it does not answer within so many seconds, or has no such pod any more.
        """
        try:
            async with asyncio.timeout(timeout):
                view = _view(await self._api.get(paths.pod(pod.namespace, pod.name)))
        except (errors.KubeError, TimeoutError) as error:
            log.info("pods.not_asked", pod=str(pod), error=str(error) or f"no answer within {timeout:g} s")
            return None
        return view if view is not None and view.ref.uid == pod.uid else None

    async def run(self) -> None:
        """Keep the view current for ever; list again after every outage."""
        while True:
            try:
                await self._follow()
            except errors.GoneError:
                log.info("pods.history_gone")  # the watch was away for too long: list again at once
            except errors.KubeError as error:
                self._report(PartStatus(PartState.DEGRADED, message=error.what, mend=error.mend))
                log.warning("pods.api_away", error=str(error), synced=self.synced, pods=len(self._pods))
                await self._backoff.wait()

    async def _follow(self) -> None:
        """List, then watch until something goes wrong. A watch that ends in peace goes on where it was."""
        listing = await self._api.list(paths.PODS, params=self._selector)
        self._replace(listing.items)
        self._synced.set()
        self._report(PartStatus(PartState.READY))
        log.info("pods.synced", pods=len(self._pods), resource_version=listing.resource_version)
        version = listing.resource_version
        while True:
            version = await self._watch_from(version)

    async def _watch_from(self, version: str) -> str:
        events = self._api.watch(paths.PODS, params=self._selector, resource_version=version)
        async with contextlib.aclosing(events):
            async for event in events:
                self._backoff.reset()
                self._take(event)
                version = event.resource_version or version
        return version

    def _take(self, event: watching.WatchEvent) -> None:
        if event.type is watching.EventType.BOOKMARK:
            return
        pod = _view(event.object)
        if pod is None:
            return
        if event.type is watching.EventType.DELETED:
            self._drop(pod)
        else:
            self._put(pod)

    def _replace(self, items: list[dict[str, Any]]) -> None:
        """Take a new list; what it lacks has gone while nobody looked."""
        listed = {pod.ref.uid: pod for pod in map(_view, items) if pod is not None}
        for uid in self._pods.keys() - listed.keys():
            self._drop(self._pods[uid])
        for pod in listed.values():
            self._put(pod)

    def _put(self, pod: PodView) -> None:
        before = self._pods.get(pod.ref.uid)
        self._pods[pod.ref.uid] = pod
        if before is None:
            self._tell(PodChange(PodChangeKind.APPEARED, pod))
        elif before != pod:
            self._tell(PodChange(PodChangeKind.CHANGED, pod))

    def _drop(self, pod: PodView) -> None:
        if self._pods.pop(pod.ref.uid, None) is not None:
            self._tell(PodChange(PodChangeKind.GONE, pod))

    def _tell(self, change: PodChange) -> None:
        for listener in tuple(self._listeners):
            listener(change)


def _view(obj: dict[str, Any]) -> PodView | None:
    """Return the view of a pod, or None (and say so) when this agent is too old to understand it."""
    try:
        return pod_objects.pod_view(obj)
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        name = obj.get("metadata", {}).get("name", "?")
        log.warning("pods.not_understood", pod=name, error=repr(error))
        return None
