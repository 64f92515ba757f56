"""Query the API server how a pod's owner reacts to container restarts, when a restart must be decided.

A gang's round must not wait for these queries. So lasting facts are queried in advance for every gang member, from the
Job alone. ports.Pods of the Job are counted only for a decision: otherwise every member would have to list all of them.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol
from weakref import WeakValueDictionary

import structlog

from kubemend.agent import ports
from kubemend.agent.clients.cri.listings import BatchedQuery
from kubemend.agent.model.workloads import PHASES_OVER, PodUid, PodView
from kubemend.agent.restart import admission, owners
from kubemend.common import contained, gangs
from kubemend.common.kube import client, errors, paths

log = structlog.get_logger(__name__)

AT_ONCE = 0.3
"""Timeout in seconds for an answer that is needed at once and not cached."""
_GOOD_FOR = 3600.0
_REFRESHED = 300.0
_RETRIED = 15.0


class Api(client.ObjectReader, Protocol):
    """The two API calls needed here (``common.kube.client.KubeClient``)."""

    def pages(
        self, path: str, *, params: dict[str, str] | None = None, project: Callable[[dict[str, Any]], Any]
    ) -> AsyncGenerator[client.Listing, None]: ...


class _InvalidError(Exception):
    """A name or an answer does not have the API's form."""


class _Counted(NamedTuple):
    """Pods of an owner: the sum of their containers' restarts, and how many pods are not over."""

    restarts: int
    lasting: int


@dataclass(frozen=True, slots=True)
class _Known:
    """The cached facts for one pod; times are the loop's.

    ``facts``: the lasting part of the latest answer, which arrived ``at``. ``due``: time of the next query.
    ``problem``: why the answer was invalid; logged once.
    """

    facts: admission.OwnerFacts | None = None
    at: float = 0.0
    due: float = 0.0
    problem: str = ""


class OwnerLookup:
    """Returns None when the API server is unavailable or its answer is invalid: nothing is restarted on a guess."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._known: dict[PodUid, _Known] = {}
        self._counts: WeakValueDictionary[tuple[str, str], BatchedQuery[_Counted]] = WeakValueDictionary()

    async def facts(self, pod: PodView, *, at_once: bool = False) -> admission.OwnerFacts | None:
        """Return how the pod's Job or LeaderWorkerSet reacts to restarts.

        ``at_once``: accept lasting facts that are at most an hour old, and wait no longer than ``AT_ONCE``. A Job whose
        backoffLimit may be used up in the meantime is queried again.
        """
        if not _matters(pod):
            return admission.OwnerFacts()
        if not at_once:
            return await self._ask(pod, counting=True)
        known = self._known.get(pod.ref.uid, _Known())
        if known.facts is not None and asyncio.get_running_loop().time() - known.at <= _GOOD_FOR:
            return known.facts
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(AT_ONCE):
                return await self._ask(pod, counting=True)
        return None

    async def run(self, pods: ports.Pods) -> None:
        """Query the owners of all gang members in advance and periodically, indefinitely."""
        changed = asyncio.Event()
        unsubscribe = pods.subscribe(lambda _: changed.set())
        try:
            while True:
                changed.clear()
                here = dict(pods.pods())
                for uid in self._known.keys() - here.keys():
                    del self._known[uid]
                for uid, pod in here.items():
                    with contained.within(contained.Part.OWNER, pod.ref) as work:
                        if self._is_due(pod):
                            await self._ask(pod, counting=False)
                    if work.failed:
                        self._known[uid] = _Known(due=asyncio.get_running_loop().time() + _REFRESHED)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_RETRIED):
                        await changed.wait()
        finally:
            unsubscribe()

    def _is_due(self, pod: PodView) -> bool:
        now = asyncio.get_running_loop().time()
        is_due = self._known.get(pod.ref.uid, _Known(due=now)).due <= now
        return is_due and _matters(pod) and bool(pod.gang)

    async def _ask(self, pod: PodView, *, counting: bool) -> admission.OwnerFacts | None:
        """Query the owner and cache lasting facts. None: unknown, or unknown without ``counting`` pods."""
        uid, time = pod.ref.uid, asyncio.get_running_loop().time
        try:
            facts = await self._read(pod, counting=counting)
        except errors.KubeError:
            self._known[uid] = replace(self._known.get(uid, _Known()), due=time() + _RETRIED)
            return None
        except _InvalidError as error:
            if (problem := str(error)) != self._known.get(uid, _Known()).problem:
                log.warning("owner.invalid", pod=str(pod.ref), error=problem)
            self._known[uid] = _Known(due=time() + _REFRESHED, problem=problem)
            return None
        lasting = facts if facts is not None and facts.lasts else None
        self._known[uid] = _Known(lasting, at=time(), due=time() + _REFRESHED)
        return facts

    async def _read(self, pod: PodView, *, counting: bool) -> admission.OwnerFacts | None:
        facts = await self._job(pod, counting=counting)
        return replace(facts, group_policy=await self._group(pod)) if facts is not None else None

    async def _job(self, pod: PodView, *, counting: bool) -> admission.OwnerFacts | None:
        """Return how many more restarts the pod's Job survives, and how many pods of it can be restarted."""
        if (owner := owners.counting(pod)) is None:
            return admission.OwnerFacts()
        namespace, what = pod.ref.namespace, f"its {owner.kind}"
        with _checking(what):
            path = paths.one(owner.resource, owner.name, namespace=namespace, group=owner.group, version=owner.version)
        limit, failed = await self._limit_and_failures(path, owner)
        if limit is None:
            return admission.OwnerFacts()
        if limit >= admission.UNLIMITED_BACKOFF:
            return admission.OwnerFacts(job_restarts_left=limit)
        if not counting:
            return None
        counted = await self._count(pod, selector=f"{owner.label}={owner.name}", what=f"the pods of {what}")
        limit -= 1 if limit > 0 else 0  # it fails once the sum reaches the limit, or is more than none
        left = limit - failed - counted.restarts
        return admission.OwnerFacts(job_restarts_left=left, job_pods=max(1, counted.lasting))

    async def _limit_and_failures(self, path: str, owner: owners.Counting) -> tuple[int | None, int]:
        job = await self._api.get(path)
        with _checking(f"its {owner.kind}"):
            return _limit(job["spec"], owner), int(job.get("status", {}).get("failed", 0))

    async def _count(self, pod: PodView, *, selector: str, what: str) -> _Counted:
        """Count the pods of an owner, by a query that begins after this call; restarts of its pods share one."""

        async def ask(pods: frozenset[PodUid]) -> Mapping[PodUid, tuple[_Counted]]:
            found = await self._count_pages(path, selector=selector, what=what)
            return dict.fromkeys(pods, (found,))

        path = paths.collection("pods", namespace=pod.ref.namespace)
        query = self._counts.setdefault((path, selector), BatchedQuery(ask))
        (counted,) = await query.of(pod.ref.uid)
        return counted

    async def _count_pages(self, path: str, *, selector: str, what: str) -> _Counted:
        restarts = lasting = 0
        pages = self._api.pages(path, params={"labelSelector": selector}, project=_counted)
        async with contextlib.aclosing(pages):
            with _checking(what):
                async for page in pages:
                    restarts += sum(pod.restarts for pod in page.items)
                    lasting += sum(pod.lasting for pod in page.items)
        return _Counted(restarts, lasting)

    async def _group(self, pod: PodView) -> str | None:
        name = pod.labels.get(gangs.LWS_NAME)
        if name is None:
            return None
        with _checking("its LeaderWorkerSet"):
            path = paths.one("leaderworkersets", name, namespace=pod.ref.namespace, group="leaderworkerset.x-k8s.io")
        group = await self._api.get(path)
        with _checking("its LeaderWorkerSet"):
            # The CRD's default; research: LeaderWorkerSet recreates the group on any container restart.
            return str(group["spec"].get("leaderWorkerTemplate", {}).get("restartPolicy", "RecreateGroupOnPodRestart"))


@contextlib.contextmanager
def _checking(what: str) -> Iterator[None]:
    """Raise _InvalidError for any name or answer of unexpected form."""
    try:
        yield
    except (AttributeError, LookupError, TypeError, ValueError, OverflowError) as error:
        raise _InvalidError(f"{what} is invalid: {error!r}") from error


def _matters(pod: PodView) -> bool:
    """Return whether any query is needed."""
    return owners.counting(pod) is not None or gangs.LWS_NAME in pod.labels


def _limit(spec: dict[str, Any], owner: owners.Counting) -> int | None:
    for field in owner.limit[:-1]:
        spec = spec.get(field) or {}
    limit: Any = spec.get(owner.limit[-1], owner.default)
    return None if limit is None and owner.default is None else int(limit)


def _counted(pod: dict[str, Any]) -> _Counted:
    """Return the fields of one pod that count: a Job can have thousands of pods, each with 12 KiB of status."""
    status = pod.get("status", {})
    statuses = [*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ())]
    restarts = sum(int(item.get("restartCount", 0)) for item in statuses)
    return _Counted(restarts, lasting=int(status.get("phase") not in PHASES_OVER))
