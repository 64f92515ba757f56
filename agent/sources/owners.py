"""What a pod's owner makes of container restarts: asked of the API server when a restart is to be decided.

A gang's round waits for nobody: what lasts is asked beforehand for every member of a gang, and known then.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from agent.model.workloads import PodUid, PodView, RestartPolicy
from agent.restart import admission
from common import gangs
from common.kube import errors, paths

AT_ONCE = 0.3
"""Seconds for an answer that must come at once, and is not known."""
_GOOD_FOR = 3600.0
_REFRESHED = 300.0
_RETRIED = 15.0
_OVER = ("Succeeded", "Failed")


class Api(Protocol):
    """The two reads that are needed (``common.kube.client.KubeClient``)."""

    async def get(self, path: str) -> dict[str, Any]: ...
    async def list(self, path: str, *, params: dict[str, str] | None = None) -> Any: ...


class Pods(Protocol):
    """The node's pods (``agent.sources.pods.PodWatch``)."""

    def pods(self) -> Mapping[PodUid, PodView]: ...
    def subscribe(self, listener: Callable[[Any], None]) -> Callable[[], None]: ...


@dataclass(frozen=True, slots=True)
class _Known:
    facts: admission.OwnerFacts
    at: float  # loop time


class OwnerLookup:
    """Answers with None when the API server cannot be asked: then nothing is restarted on a guess."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._known: dict[PodUid, _Known] = {}
        self._due: dict[PodUid, float] = {}  # loop time

    async def facts(self, pod: PodView, *, at_once: bool = False) -> admission.OwnerFacts | None:
        """Return what the pod's Job or LeaderWorkerSet does about restarts.

        ``at_once``: what was learned within the last hour will do where it lasts (a Job whose backoffLimit can be used
        up meanwhile is asked about anew), and nobody is waited for longer than ``AT_ONCE``.
        """
        if not _matters(pod):
            return admission.OwnerFacts()
        if not at_once:
            return await self._ask(pod)
        known = self._known.get(pod.ref.uid)
        if known is not None and asyncio.get_running_loop().time() - known.at <= _GOOD_FOR:
            return known.facts
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(AT_ONCE):
                return await self._ask(pod)
        return None

    async def run(self, pods: Pods) -> None:
        """Ask for all members of gangs beforehand, and now and then again, for ever."""
        changed = asyncio.Event()
        unsubscribe = pods.subscribe(lambda _: changed.set())
        try:
            while True:
                changed.clear()
                for pod in self._to_be_asked(pods.pods()):
                    answer = await self._ask(pod)
                    wait = _REFRESHED if answer is not None else _RETRIED
                    self._due[pod.ref.uid] = asyncio.get_running_loop().time() + wait
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_RETRIED):
                        await changed.wait()
        finally:
            unsubscribe()

    def _to_be_asked(self, here: Mapping[PodUid, PodView]) -> Iterator[PodView]:
        for uid in self._due.keys() - here.keys():
            del self._due[uid]
        for uid in self._known.keys() - here.keys():
            del self._known[uid]
        now = asyncio.get_running_loop().time()
        for uid, pod in tuple(here.items()):
            if _matters(pod) and gangs.key(pod.ref.namespace, pod.labels) and self._due.get(uid, now) <= now:
                yield pod

    async def _ask(self, pod: PodView) -> admission.OwnerFacts | None:
        try:
            left, pods = await self._job(pod)
            facts = admission.OwnerFacts(job_restarts_left=left, job_pods=pods, group_policy=await self._group(pod))
        except errors.KubeError:
            return None
        self._known.pop(pod.ref.uid, None)
        if facts.lasts:
            self._known[pod.ref.uid] = _Known(facts, at=asyncio.get_running_loop().time())
        return facts

    async def _job(self, pod: PodView) -> tuple[int | None, int]:
        """Return how many more restarts the pod's Job survives, and how many pods of it can be restarted."""
        owner = pod.owner
        if owner is None or not _counted_by_job(pod):
            return None, 1
        namespace = pod.ref.namespace
        jobs = paths.collection("jobs", namespace=namespace, group="batch")
        job = await self._api.get(f"{jobs}/{owner.name}")
        limit = int(job["spec"].get("backoffLimit", 6))
        if limit >= admission.UNLIMITED_BACKOFF:
            return limit, 1
        pods = await self._api.list(
            paths.collection("pods", namespace=namespace),
            params={"labelSelector": f"batch.kubernetes.io/job-name={owner.name}"},
        )
        failed = int(job.get("status", {}).get("failed", 0))
        left = limit - failed - sum(_restarts(item) for item in pods.items)
        return left, max(1, sum(item.get("status", {}).get("phase") not in _OVER for item in pods.items))

    async def _group(self, pod: PodView) -> str | None:
        name = pod.labels.get(admission.LWS_NAME_LABEL)
        if name is None:
            return None
        groups = paths.collection("leaderworkersets", namespace=pod.ref.namespace, group="leaderworkerset.x-k8s.io")
        group = await self._api.get(f"{groups}/{name}")
        # The CRD's default; research: LeaderWorkerSet recreates the group on any container restart.
        return str(group["spec"].get("leaderWorkerTemplate", {}).get("restartPolicy", "RecreateGroupOnPodRestart"))


def _matters(pod: PodView) -> bool:
    """Whether anything has to be asked at all."""
    return _counted_by_job(pod) or admission.LWS_NAME_LABEL in pod.labels


def _counted_by_job(pod: PodView) -> bool:
    return pod.owner is not None and pod.owner.kind == "Job" and pod.restart_policy is RestartPolicy.ON_FAILURE


def _restarts(pod: dict[str, Any]) -> int:
    status = pod.get("status", {})
    statuses = [*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ())]
    return sum(int(item.get("restartCount", 0)) for item in statuses)
