"""The managed JobSets with their Jobs, Services and claims, from the API server and from the controller's own writes.

JobSets of other controllers are ignored, and their Jobs are not kept.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

import structlog

from kubemend.common import aio
from kubemend.common.components import ComponentState, ComponentStatus, JointComponent
from kubemend.common.kube import client, errors, informer, paths, shares
from kubemend.controller.jobset.children import naming
from kubemend.controller.jobset.children import volume_claims as claims
from kubemend.controller.jobset.plan import ClaimSpec
from kubemend.controller.jobset.spec import reading
from kubemend.controller.jobset.spec.model import ChildJob, JobSet
from kubemend.controller.jobsets import invalid_objects, names
from kubemend.controller.jobsets.invalid_objects import InvalidObject, Others, Owned, Seen
from kubemend.controller.jobsets.names import Names
from kubemend.controller.jobsets.overlay import Overlay
from kubemend.controller.jobsets.texts import Texts

log = structlog.get_logger(__name__)

GROUP: Final = invalid_objects.GROUP
VERSION: Final = "v1alpha2"
JOBSETS: Final = paths.collection("jobsets", group=GROUP, version=VERSION)
JOBS: Final = paths.collection("jobs", group="batch")
SERVICES: Final = paths.collection("services")
CLAIMS: Final = paths.collection("persistentvolumeclaims")

_PAGE: Final = 500
_OF_JOBSETS: Final = {"labelSelector": naming.JOBSET_NAME}
_NOT_DEFINED: Final = ComponentStatus(
    ComponentState.IDLE, "the cluster has no resource jobsets.jobset.x-k8s.io", "Run kubectl apply -k daemonset/jobset."
)
_NO_JOBS: Final[Mapping[str, Owned]] = {}


class Views:
    """Keep the views. ``run`` does the work; all other calls are valid at any time."""

    def __init__(
        self,
        *,
        api: client.KubeClient,
        report: Callable[[ComponentStatus], None],
        changed: Callable[[str], None],
        jobset_changed: Callable[[JobSet | InvalidObject], None],
        backoff: Callable[[], aio.Backoff] = lambda: aio.Backoff(first=0.2, limit=10.0),
    ) -> None:
        """``changed`` is called with the UID of each JobSet that has changed or was deleted, or whose Jobs changed.

        ``jobset_changed`` is called with JobSets only, in their current or last state.
        """
        self._api = api
        self._report = report
        self._changed = changed
        self._report_jobset = jobset_changed
        self._backoff = backoff
        part = JointComponent(report)

        def watch(path: str, reduce: Callable[[Any], Any], **options: Any) -> informer.Informer[Any]:
            known = {"params": _OF_JOBSETS, **options}
            return informer.Informer(
                api=api, path=path, reduce=reduce, report=part.reporter(), backoff=backoff(), page=_PAGE, **known
            )

        bounds = shares.Bounds(
            invalid_objects.bare,
            one=invalid_objects.MOST_OF_A_JOBSET,
            namespace=invalid_objects.MOST_OF_A_NAMESPACE,
            total=invalid_objects.MOST_OF_JOBSETS,
        )
        jobsets = watch(JOBSETS, invalid_objects.jobset, params={}, bounds=bounds)
        jobs_bounds = shares.Bounds(
            invalid_objects.bare_job,
            one=invalid_objects.MOST_OF_A_JOB,
            namespace=invalid_objects.MOST_OF_JOBS,
            total=invalid_objects.MOST_OF_JOBS,
        )
        jobs = watch(JOBS, self._owned, bounds=jobs_bounds)
        self._watches = {"jobsets": jobsets, "jobs": jobs}
        self._texts = Texts()
        self._others: set[str] = set()
        self._in_place_elsewhere: dict[tuple[str, str], str] = {}  # UIDs by namespace and name
        self._jobs: dict[str, dict[str, Owned]] = {}  # by the JobSet's UID
        self._gated: dict[str, set[str]] = {}  # UIDs of Jobs whose pods come with kubemend's gate, by the JobSet's
        self._job_uids: dict[tuple[str, str, str], str] = {}  # by the JobSet's UID, the Job's namespace and its name
        self._by_name: dict[tuple[str, str], str] = {}
        self._jobsets: Overlay[Seen] = Overlay(jobsets, version=invalid_objects.version, changed=self._jobset_changed)
        self._owned_jobs: Overlay[Owned] = Overlay(
            jobs, version=lambda each: each.job.resource_version, changed=self._job_changed
        )
        self._services = Names(watch(SERVICES, names.named, metadata_only=True), gone=self._child_gone)
        self._claims = Names(watch(CLAIMS, names.named, metadata_only=True), gone=self._child_gone)
        self._watches |= {"services": self._services.watch, "claims": self._claims.watch}
        self._known = asyncio.Event()
        self._stand_by()

    @property
    def known(self) -> bool:
        """Return whether the existing JobSets and Jobs are known; there are none if the resource is not defined."""
        return self._known.is_set()

    async def wait_known(self) -> None:
        """Wait until they are known."""
        await self._known.wait()

    def jobset(self, uid: str) -> JobSet | InvalidObject | None:
        """Return a managed JobSet."""
        found = self._jobsets.items().get(uid)
        return None if found is None or isinstance(found, Others) else found

    def by_name(self, namespace: str, name: str) -> JobSet | None:
        """Return the managed JobSet with this name."""
        found = self.jobset(self._by_name.get((namespace, name), ""))
        return found if isinstance(found, JobSet) else None

    def is_invalid(self, namespace: str, name: str) -> bool:
        """Return whether the JobSet with this name is managed and cannot be read."""
        return isinstance(self.jobset(self._by_name.get((namespace, name), "")), InvalidObject)

    def is_restarted_elsewhere(self, namespace: str, name: str) -> bool:
        """Return whether another controller restarts the pods of the JobSet with this name in place."""
        return (namespace, name) in self._in_place_elsewhere

    def uids(self) -> list[str]:
        """Return the UIDs of all managed JobSets."""
        return [uid for uid, each in self._jobsets.items().items() if not isinstance(each, Others)]

    def jobs(self, jobset: JobSet) -> tuple[ChildJob, ...]:
        """Return the Jobs that a JobSet owns, by name."""
        self._owned_jobs.forget_unseen()
        owned = self._jobs.get(jobset.uid, _NO_JOBS).values()
        jobs = (each.job for each in owned if each.namespace == jobset.namespace)
        return tuple(sorted(jobs, key=lambda each: each.name))

    def size(self, uid: str) -> int:
        """Return how many Jobs a JobSet owns."""
        return len(self._jobs.get(uid, _NO_JOBS))

    def has_gated(self, uid: str) -> bool:
        """Return whether pods of a JobSet's Jobs come with kubemend's scheduling gate."""
        return bool(self._gated.get(uid))

    def job(self, namespace: str, jobset: str, name: str) -> ChildJob | None:
        """Return the Job of this name that the JobSet of that name owns."""
        owner = self._by_name.get((namespace, jobset), "")
        found = self._jobs.get(owner, _NO_JOBS).get(self._job_uids.get((owner, namespace, name), ""))
        return found.job if found is not None else None

    def has_service(self, namespace: str, name: str) -> bool:
        """Return whether a Service of that name exists, as far as it is known."""
        return self._services.has(namespace, name)

    def claims(self, jobset: JobSet) -> frozenset[str]:
        """Return the names of a JobSet's existing claims, as far as they are known."""
        return frozenset(name for name in claims.names(jobset) if self._claims.has(jobset.namespace, name))

    def claim_specs(self, jobset: JobSet) -> dict[str, ClaimSpec]:
        """Return the specs of a JobSet's existing claims, as far as they are known."""
        specs = {name: self._claims.spec(jobset.namespace, name) for name in claims.names(jobset)}
        return {name: spec for name, spec in specs.items() if spec is not None}

    async def read_claim_specs(self, jobset: JobSet) -> None:
        """Read the specs of a JobSet's existing claims, one by one, because their Informer has only names.

        Raises KubeError.
        """
        for name in self.claims(jobset) - self.claim_specs(jobset).keys():
            for found in await self.list_claim(jobset.namespace, name):
                self.found_claim(jobset.namespace, found)

    async def list_claim(self, namespace: str, name: str) -> list[Any]:
        """Return the claim of this name if it exists. It uses a list, so that no other right is needed."""
        path = paths.collection("persistentvolumeclaims", namespace=namespace)
        return (await self._api.list(path, params={"fieldSelector": f"metadata.name={name}"})).items

    def found_service(self, namespace: str, name: str) -> None:
        """Record that a Service of that name exists."""
        self._services.found(namespace, name)

    def found_claim(self, namespace: str, obj: Mapping[str, Any]) -> None:
        """Record an existing claim."""
        self._claims.found(namespace, str(obj["metadata"]["name"]), spec=claims.read(obj.get("spec")))

    def found_claim_for(self, jobset: JobSet, obj: Mapping[str, Any]) -> None:
        """Record a claim that exists under a name that a JobSet asks for, and reconcile the JobSet."""
        self.found_claim(jobset.namespace, obj)
        self._changed(jobset.uid)

    def wrote_jobset(self, obj: Mapping[str, Any]) -> None:
        """Record a JobSet as returned by a write or a read."""
        self._jobsets.wrote(obj["metadata"]["uid"], invalid_objects.jobset(obj))

    def wrote_job(self, obj: Mapping[str, Any]) -> None:
        """Record a Job as returned by a write or a read. An invalid one is logged, and the known state stays."""
        try:
            found = self._owned(obj)
        except reading.InvalidFieldError as error:
            log.warning("job.invalid", job=obj["metadata"].get("name"), error=str(error))
            return
        if found is not None:
            self._owned_jobs.wrote(found.job.uid, found)

    def removed_job(self, uid: str) -> None:
        """Record that a Job was deleted."""
        self._owned_jobs.removed(uid)

    async def run(self) -> None:
        """Keep the views current indefinitely, once the resource is defined."""
        try:
            await self._defined()
            async with asyncio.TaskGroup() as group:
                for name, watch in self._watches.items():
                    aio.spawn_eternal(group, watch.run(), name=f"{name} watched")
                    if name == "jobsets":
                        await watch.wait_synced()  # else Jobs of other controllers' JobSets would be kept
                await self._watches["jobs"].wait_synced()
                self._known.set()  # rounds wait for it, and need nothing else
                await asyncio.Event().wait()
        finally:
            self._known.clear()
            for newest in (self._jobsets, self._owned_jobs):
                newest.clear()
            self._stand_by()

    async def wait_synced(self) -> None:
        """Wait until the resource is defined and all objects have been listed."""
        for watch in self._watches.values():
            await watch.wait_synced()

    def _stand_by(self) -> None:
        self._report(ComponentStatus(ComponentState.IDLE, "only the leader watches JobSets"))

    async def _defined(self) -> None:
        """Wait until JobSets can be listed. Until then there are none as far as the controller's rights go."""
        backoff = self._backoff()
        while True:
            try:
                await self._api.list(JOBSETS, params={"limit": 1})
            except errors.NotFoundError:
                self._report(_NOT_DEFINED)
                self._known.set()
            except errors.ForbiddenError as error:
                self._report(ComponentStatus(ComponentState.DEGRADED, error.what, error.hint))
                self._known.set()
            except errors.KubeError as error:
                self._report(ComponentStatus(ComponentState.DEGRADED, error.what, error.hint))
            else:
                return
            await backoff.wait()

    def _owned(self, obj: Mapping[str, Any]) -> Owned | None:
        """Return a Job with its owner; None if no JobSet owns it, or only one of another controller."""
        whose, jobset = invalid_objects.owner(obj)
        if not whose or whose in self._others:
            return None
        job = reading.job(obj)
        if job.template is not None:
            job = replace(job, template=self._texts.shared(job.template))
        return Owned(obj["metadata"]["namespace"], whose, jobset, job)

    def _jobset_changed(self, uid: str, before: Seen | None, after: Seen | None) -> None:
        if isinstance(before, Others) and self._in_place_elsewhere.get((before.namespace, before.name)) == uid:
            del self._in_place_elsewhere[before.namespace, before.name]
        if isinstance(after, Others):
            if after.in_place:
                self._in_place_elsewhere[after.namespace, after.name] = uid
            self._others.add(uid)
            self._jobs.pop(uid, None)
            self._gated.pop(uid, None)
            after = None
        else:
            self._others.discard(uid)
        if after is not None:
            self._by_name[after.namespace, after.name] = uid
            self._changed(uid)
            self._report_jobset(after)
        elif before is not None and not isinstance(before, Others):
            if self._by_name.get((before.namespace, before.name)) == uid:
                del self._by_name[before.namespace, before.name]
            self._changed(uid)
            self._report_jobset(before)

    def _child_gone(self, namespace: str, jobset: str) -> None:
        if (uid := self._by_name.get((namespace, jobset))) is not None:
            self._changed(uid)

    def _job_changed(self, uid: str, before: Owned | None, after: Owned | None) -> None:
        if before is not None and (after is None or after.owner != before.owner):
            of_owner = self._jobs.get(before.owner, {})
            of_owner.pop(uid, None)
            self._note_gated(before.owner, uid, gated=False)
            if self._job_uids.get(before.place) == uid:
                del self._job_uids[before.place]
            if not of_owner:
                self._jobs.pop(before.owner, None)
            self._changed(before.owner)
            self._child_gone(before.namespace, before.jobset)  # a former JobSet's Job blocks one of the same name
        if after is None or after.owner in self._others:
            return
        self._jobs.setdefault(after.owner, {})[uid] = after
        self._job_uids[after.place] = uid
        self._note_gated(after.owner, uid, gated=after.job.gated and after.job.end is None)
        if before is None or not invalid_objects.is_same_job(before.job, after.job):
            self._changed(after.owner)

    def _note_gated(self, owner: str, job: str, *, gated: bool) -> None:
        if gated:
            self._gated.setdefault(owner, set()).add(job)
        elif (others := self._gated.get(owner)) is not None:
            others.discard(job)
            if not others:
                del self._gated[owner]
