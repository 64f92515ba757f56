"""Query the API server how a pod's owner reacts to container restarts, when a restart must be decided.

A gang's round must not wait for these queries. So lasting facts are queried in advance for every gang member, from the
Job alone. ports.Pods of the Job are counted only for a decision: otherwise every member would have to list all of them.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Protocol

import structlog

from kubemend.agent import ports
from kubemend.agent.model.workloads import PHASES_OVER, PodUid, PodView
from kubemend.agent.restart import admission, owners
from kubemend.common import contained, gangs
from kubemend.common.kube import errors, paths

log = structlog.get_logger(__name__)

AT_ONCE = 0.3
"""Timeout in seconds for an answer that is needed at once and not cached."""
_GOOD_FOR = 3600.0
_REFRESHED = 300.0
_RETRIED = 15.0


class Api(Protocol):
    """The two API calls needed here (``common.kube.client.KubeClient``)."""

    async def get(self, path: str) -> dict[str, Any]: ...
    async def list(
        self, path: str, *, params: dict[str, str] | None = None, project: Callable[[dict[str, Any]], Any]
    ) -> Any: ...


class _NotUnderstoodError(Exception):
    """A name or an answer does not have the API's form."""


@dataclass(frozen=True, slots=True)
class _Known:
    """The cached facts for one pod; times are the loop's.

    ``facts``: the lasting part of the latest answer, which arrived ``at``. ``due``: time of the next query.
    ``trouble``: why the answer was invalid; logged once.
    """

    facts: admission.OwnerFacts | None = None
    at: float = 0.0
    due: float = 0.0
    trouble: str = ""


class OwnerLookup:
    """Returns None when the API server is unavailable or its answer is invalid: nothing is restarted on a guess."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._known: dict[PodUid, _Known] = {}

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
        except _NotUnderstoodError as error:
            if (trouble := str(error)) != self._known.get(uid, _Known()).trouble:
                log.warning("owner.invalid", pod=str(pod.ref), error=trouble)
            self._known[uid] = _Known(due=time() + _REFRESHED, trouble=trouble)
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
        job = await self._api.get(path)
        with _checking(what):
            limit, failed = _limit(job["spec"], owner), int(job.get("status", {}).get("failed", 0))
        if limit is None:
            return admission.OwnerFacts()
        if limit >= admission.UNLIMITED_BACKOFF:
            return admission.OwnerFacts(job_restarts_left=limit)
        if not counting:
            return None
        with _checking(f"the pods of {what}"):
            pods = await self._api.list(
                paths.collection("pods", namespace=namespace),
                params={"labelSelector": f"{owner.label}={owner.name}"},
                project=_status_alone,
            )
            limit -= 1 if limit > 0 else 0  # it fails once the sum reaches the limit, or is more than none
            left = limit - failed - sum(_restarts(item) for item in pods.items)
            count = sum(item.get("status", {}).get("phase") not in PHASES_OVER for item in pods.items)
        return admission.OwnerFacts(job_restarts_left=left, job_pods=max(1, count))

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
    """Raise _NotUnderstoodError for any name or answer of unexpected form."""
    try:
        yield
    except (AttributeError, LookupError, TypeError, ValueError, OverflowError) as error:
        raise _NotUnderstoodError(f"{what} is invalid: {error!r}") from error


def _matters(pod: PodView) -> bool:
    """Return whether any query is needed."""
    return owners.counting(pod) is not None or gangs.LWS_NAME in pod.labels


def _limit(spec: dict[str, Any], owner: owners.Counting) -> int | None:
    for field in owner.limit[:-1]:
        spec = spec.get(field) or {}
    limit: Any = spec.get(owner.limit[-1], owner.default)
    return None if limit is None and owner.default is None else int(limit)


def _status_alone(pod: dict[str, Any]) -> dict[str, Any]:
    """Return a pod without its large fields: a Job can have thousands of pods."""
    return {"status": pod.get("status", {})}


def _restarts(pod: dict[str, Any]) -> int:
    status = pod.get("status", {})
    statuses = [*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ())]
    return sum(int(item.get("restartCount", 0)) for item in statuses)
