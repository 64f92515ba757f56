"""Carry out the writes of a decision by calls to the API server. Each can be repeated without harm."""

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

import structlog

from kubemend.common import aio
from kubemend.common.kube import client, errors, paths
from kubemend.common.kube.transport import Json
from kubemend.controller.jobset import plan
from kubemend.controller.jobset.spec.model import JobSet
from kubemend.controller.jobsets import invalid_objects, statuses
from kubemend.controller.jobsets.metrics import JobSetMetrics
from kubemend.controller.jobsets.views import Views
from kubemend.controller.model import restart_resource

log = structlog.get_logger(__name__)

_CREATION_FAILED: Final[Mapping[type, str]] = MappingProxyType(
    {
        plan.CreateJob: "JobCreationFailed",
        plan.CreateService: "HeadlessServiceCreationFailed",
        plan.CreateClaim: "PVCCreationFailed",
    }
)
"""Reasons of the Events that upstream records at once, though the reconcile then fails."""


_LAPSED_SECONDS: Final = 120.0


@dataclass(frozen=True, slots=True)
class FailedWrite:
    """A write that failed; ``tried`` is False if it was refused lately, and must wait."""

    write: plan.Write
    error: errors.KubeError
    tried: bool = True


@dataclass(slots=True)
class _Refused:
    """The refused creations of a JobSet, and when to try them again (loop time).

    There may be thousands, so only their kinds and names are kept, and what the error of one of them says.
    """

    backoff: aio.Backoff
    until: float = 0.0
    generation: int = 0
    creations: set[tuple[type, str]] = field(default_factory=set)
    why: str = ""


def events(failed_writes: Sequence[FailedWrite]) -> list[plan.Event]:
    """Return the Events to record at once, the first of each kind: thousands of writes fail together, for one reason.

    API server unavailability is not reported as an Event.
    """
    found: dict[str, list[FailedWrite]] = {}
    for each in failed_writes:
        reason = _CREATION_FAILED.get(type(each.write)) if each.tried else None
        if reason is not None and not isinstance(each.error, errors.ApiUnavailableError | OutdatedViewError):
            found.setdefault(reason, []).append(each)
    return [_event(reason, failed) for reason, failed in found.items()]


class OutdatedViewError(errors.ConflictError):
    """The object exists and belongs to this JobSet: the view was outdated, and is now current."""


class Writer:
    """Write for all JobSets, with ``parallel`` concurrent calls."""

    def __init__(
        self,
        *,
        api: client.KubeClient,
        views: Views,
        metrics: JobSetMetrics,
        parallel: int,
        backoff: Callable[[], aio.Backoff] = lambda: aio.Backoff(first=0.05, limit=30.0),
    ) -> None:
        """``backoff`` returns the waits between two tries of the creations that the API server refuses a JobSet."""
        self._api = api
        self._views = views
        self._metrics = metrics
        self._parallel = parallel
        self._slots = asyncio.Semaphore(parallel)
        self._backoff = backoff
        self._refused: dict[str, _Refused] = {}  # by the JobSet's UID

    async def write(self, jobset: JobSet, groups: Sequence[Sequence[plan.Write]]) -> list[FailedWrite]:
        """Write group after group. If a write of a group fails, later groups are left for the next reconcile.

        A quota refuses hundreds of creations, and each change of a running Job leads here. So those that are refused
        wait before they are tried again, and all other writes do not.
        """
        for group in groups:
            if failed_writes := await self._group(jobset, group):
                self._note_refused(jobset, failed_writes)
                return failed_writes
        self._refused.pop(jobset.uid, None)
        return []

    def _lately_refused(self, jobset: JobSet, write: plan.Write) -> FailedWrite | None:
        """Return the refusal of a creation, if it is too early to try it again, and the JobSet is the same."""
        refused = self._refused.get(jobset.uid)
        if (
            refused is None
            or asyncio.get_running_loop().time() >= refused.until
            or refused.generation != jobset.generation
            or _key(write) not in refused.creations
        ):
            return None
        return FailedWrite(write, errors.KubeError(refused.why), tried=False)

    def _note_refused(self, jobset: JobSet, failed_writes: Sequence[FailedWrite]) -> None:
        now = asyncio.get_running_loop().time()
        self._refused = {uid: each for uid, each in self._refused.items() if now - each.until < _LAPSED_SECONDS}
        fresh = [each for each in failed_writes if _is_refused_creation(each)]
        if not fresh:
            return
        refused = self._refused.setdefault(jobset.uid, _Refused(self._backoff()))
        if now >= refused.until or refused.generation != jobset.generation:
            refused.until, refused.generation = now + refused.backoff.next_wait(), jobset.generation
            refused.creations.clear()
        refused.creations |= {_key(each.write) for each in fresh}
        refused.why = str(fresh[0].error)

    async def _group(self, jobset: JobSet, group: Sequence[plan.Write]) -> list[FailedWrite]:
        """Write these concurrently. If the API server is unavailable, the rest of the group is not tried."""
        failed_writes: list[FailedWrite] = []
        rest = iter(group)

        async def work() -> None:
            for write in rest:
                if (refused := self._lately_refused(jobset, write)) is not None:
                    failed_writes.append(refused)
                    continue
                try:
                    async with self._slots:
                        await self._one(jobset, write)
                except errors.KubeError as error:
                    failed_writes.append(FailedWrite(write, error))
                    if isinstance(error, errors.ApiUnavailableError):
                        _skip(rest)

        async with asyncio.TaskGroup() as tasks:
            for _ in range(min(len(group), self._parallel)):
                tasks.create_task(work(), name=f"writes for {jobset.namespace}/{jobset.name}")
        return failed_writes

    async def _one(self, jobset: JobSet, write: plan.Write) -> None:
        namespace = jobset.namespace
        with self._metrics.written(type(write).__name__):
            match write:
                case plan.CreateJob():
                    await self._create_job(jobset, write)
                case plan.DeleteJob():
                    await self._delete_job(namespace, write)
                case plan.SuspendJob():
                    suspended = {"metadata": {"uid": write.uid}, "spec": {"suspend": True}}
                    await self._patch_job(namespace, write.name, write.uid, suspended)
                case plan.ResumeJob():
                    await self._resume_job(namespace, write)
                case plan.AnnotateJob():
                    noted = {"metadata": {"uid": write.uid, "annotations": dict(write.annotations)}}
                    await self._patch_job(namespace, write.name, write.uid, noted)
                case plan.CreateService():
                    await self._create(paths.collection("services", namespace=namespace), write.body)
                    self._views.found_service(namespace, write.name)
                case plan.CreateClaim():
                    await self._create_claim(jobset, write)
                case plan.RequestRestart():
                    await self._create(_restarts_path(namespace), write.body)
                case plan.DeleteJobSet():
                    await self._delete(statuses.path_of(jobset), uid=jobset.uid)

    async def _create(self, path: str, body: Json | Mapping[str, Any]) -> None:
        """Create an object unless it exists."""
        with contextlib.suppress(errors.AlreadyExistsError):
            await self._api.create(path, dict(body))

    async def _create_claim(self, jobset: JobSet, write: plan.CreateClaim) -> None:
        """Create a claim. An existing one is used, as upstream does, but it is compared with the request."""
        path = paths.collection("persistentvolumeclaims", namespace=jobset.namespace)
        try:
            made = await self._api.create(path, dict(write.body))
        except errors.AlreadyExistsError:
            for found in await self._views.list_claim(jobset.namespace, write.name):
                self._views.found_claim_for(jobset, found)
        else:
            self._views.found_claim(jobset.namespace, made)

    async def _create_job(self, jobset: JobSet, write: plan.CreateJob) -> None:
        path = _job_path(jobset.namespace, "")
        try:
            self._views.wrote_job(await self._api.create(path, dict(write.body)))
        except errors.AlreadyExistsError as error:
            await self._check_taken(jobset, write.name, error)

    async def _check_taken(self, jobset: JobSet, name: str, error: errors.AlreadyExistsError) -> None:
        """Find the owner of the Job with this name.

        Raises OutdatedViewError if it is this JobSet, else the given error.
        """
        try:
            found = await self._api.get(_job_path(jobset.namespace, name))
        except errors.NotFoundError:
            raise OutdatedViewError(f"Job {jobset.namespace}/{name} was just deleted") from error
        if invalid_objects.owner(found)[0] != jobset.uid:
            raise error
        self._views.wrote_job(found)
        raise OutdatedViewError(f"Job {jobset.namespace}/{name} exists already") from error

    async def _delete_job(self, namespace: str, write: plan.DeleteJob) -> None:
        answer = await self._delete(_job_path(namespace, write.name), uid=write.uid)
        if answer is not None and answer.get("kind") == "Job":
            self._views.wrote_job(answer)
        else:
            self._views.removed_job(write.uid)

    async def _delete(self, path: str, *, uid: str) -> Json | None:
        """Delete in the foreground, so that it is removed after its dependents. None: it no longer exists."""
        options = {"propagationPolicy": "Foreground", "preconditions": {"uid": uid}}
        try:
            return await self._api.delete(path, options=options)
        except errors.NotFoundError:
            return None
        except errors.ConflictError:  # the answer to a wrong UID, but also that of admission
            if await client.get_by_uid(self._api, path, uid=uid) is not None:
                raise
            return None

    async def _resume_job(self, namespace: str, write: plan.ResumeJob) -> None:
        """Resume a Job. One that ran before loses its start time first, because otherwise its template is immutable."""
        if write.clear_start:
            cleared = {"metadata": {"uid": write.uid}, "status": {"startTime": None}}
            await self._patch_job(namespace, write.name, write.uid, cleared, subresource="/status")
        resumed: Json = {
            "metadata": {"uid": write.uid, "annotations": dict(write.annotations)},
            "spec": {"suspend": False, "template": dict(write.template)},
        }
        await self._patch_job(namespace, write.name, write.uid, resumed)

    async def _patch_job(self, namespace: str, name: str, uid: str, body: Json, *, subresource: str = "") -> None:
        path = _job_path(namespace, name)
        try:
            found = await self._api.patch(f"{path}{subresource}", body, content_type=client.Patch.MERGE)
        except errors.NotFoundError:
            self._views.removed_job(uid)
        except (errors.ConflictError, errors.InvalidError):  # the answer to a wrong UID is either
            if await client.get_by_uid(self._api, path, uid=uid) is not None:
                raise
            self._views.removed_job(uid)
        else:
            self._views.wrote_job(found)


def _key(write: plan.Write) -> tuple[type, str]:
    return type(write), "" if isinstance(write, plan.DeleteJobSet) else write.name


def _is_refused_creation(failed: FailedWrite) -> bool:
    """Return whether the API server refused to create something, for a reason that is likely to last."""
    is_creation = isinstance(failed.write, plan.CreateJob | plan.CreateService | plan.CreateClaim | plan.RequestRestart)
    passes = isinstance(failed.error, errors.ApiUnavailableError | errors.ConflictError)
    return failed.tried and is_creation and not passes


def _skip(rest: Iterator[plan.Write]) -> None:
    """Skip the writes that have not begun."""
    for _ in rest:
        pass


def _job_path(namespace: str, name: str) -> str:
    path = paths.collection("jobs", namespace=namespace, group="batch")
    return f"{path}/{name}" if name else path


def _restarts_path(namespace: str) -> str:
    group, version = restart_resource.GROUP, restart_resource.VERSION
    return paths.collection(restart_resource.PLURAL, namespace=namespace, group=group, version=version)


def _event(reason: str, group: Sequence[FailedWrite]) -> plan.Event:
    """Return the Event with upstream's text: the API server's, preceded by the Job's name (``createJobs``)."""
    first = min(group, key=lambda each: _job(each.write))
    job = _job(first.write)
    which = f'job "{job}" creation failed with error: ' if job else ""
    others = f" (and {len(group) - 1} more)" if len(group) > 1 else ""
    return plan.Event(plan.EventType.WARNING, reason, f"{which}{first.error.server_message}{others}")


def _job(write: plan.Write) -> str:
    return write.name if isinstance(write, plan.CreateJob) else ""
