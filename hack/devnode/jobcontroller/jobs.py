"""The Job controller: looks at Jobs and their pods as they change, and carries out what ``sync`` says."""

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

import structlog

from common import aio
from common.kube import client, errors, mirror, paths
from common.parts import PartStatus
from hack.devnode.jobcontroller import pods, sync
from hack.devnode.jobcontroller.sync import Backoff, Past, Plan

log = structlog.get_logger(__name__)

_JOBS = paths.collection("jobs", group="batch")
_AGAIN_SECONDS = 0.2
_PARALLEL = 32

Json = dict[str, Any]


class JobController:
    """Runs all Indexed Jobs that nobody else manages. ``run`` never returns."""

    def __init__(self, api: client.KubeClient, *, backoff: Backoff | None = None) -> None:
        """``backoff`` is that of pods that are made anew; by default the real one's."""
        self._api = api
        self._backoff = backoff or Backoff()
        self._jobs: mirror.Mirror[Json] = mirror.Mirror(api=api, path=_JOBS, reduce=_whole, report=_ignored)
        self._pods: mirror.Mirror[Json] = mirror.Mirror(api=api, path=paths.PODS, reduce=_whole, report=_ignored)
        self._owned: dict[str, set[str]] = {}
        self._made: dict[str, dict[str, Json]] = {}  # by Job; the watch has not told of them yet
        self._past: dict[str, Past] = {}
        self._busy: set[str] = set()
        self._due: asyncio.Queue[str] = asyncio.Queue()
        self._waiting: set[str] = set()
        self._slots = asyncio.Semaphore(_PARALLEL)
        self._jobs.subscribe(self._job_changed)
        self._pods.subscribe(self._pod_changed)

    async def run(self) -> None:
        """Control for ever."""
        async with asyncio.TaskGroup() as group:
            aio.spawn_eternal(group, self._jobs.run(), name="jobs")
            aio.spawn_eternal(group, self._pods.run(), name="pods")
            await self._jobs.wait_synced()
            await self._pods.wait_synced()
            while True:
                uid = await self._due.get()
                self._waiting.discard(uid)
                if uid in self._busy:
                    self._later(uid, 0.01)
                    continue
                self._busy.add(uid)
                group.create_task(self._look(uid), name=f"job {uid}")

    def _job_changed(self, change: mirror.Change[Json]) -> None:
        if change.kind is mirror.ChangeKind.GONE:
            for table in (self._past, self._made):
                table.pop(change.uid, None)
        self._soon(change.uid)

    def _pod_changed(self, change: mirror.Change[Json]) -> None:
        owner = _controller(change.value)
        if not owner:
            return
        owned = self._owned.setdefault(owner, set())
        (owned.discard if change.kind is mirror.ChangeKind.GONE else owned.add)(change.uid)
        if not owned:
            del self._owned[owner]
        self._made.get(owner, {}).pop(change.uid, None)
        self._soon(owner)

    def _soon(self, uid: str) -> None:
        if uid not in self._waiting:
            self._waiting.add(uid)
            self._due.put_nowait(uid)

    def _later(self, uid: str, seconds: float) -> None:
        asyncio.get_running_loop().call_later(seconds, self._soon, uid)

    async def _look(self, uid: str) -> None:
        job = self._jobs.items().get(uid)
        try:
            async with self._slots:
                if job is None:
                    await self._each(
                        [each for each in self._pods_of(uid).values() if pods.is_tracked(each)], self._release
                    )
                elif _is_ours(job):
                    await self._sync(job)
        except* errors.KubeError as group:
            log.info("job.again", job=job["metadata"]["name"] if job else uid, error=str(group.exceptions[0]))
            self._later(uid, _AGAIN_SECONDS)
        finally:
            self._busy.discard(uid)

    async def _sync(self, job: Json) -> None:
        uid, now = job["metadata"]["uid"], time.time()
        found = self._pods_of(uid) | self._made.get(uid, {})
        past = self._past.get(uid, Past())
        plan = sync.sync(job, list(found.values()), past=past, backoff=self._backoff, now=now)
        await self._manage(job, plan)
        if plan.status != (job.get("status") or {}):
            log.info("job.status", job=job["metadata"]["name"], **_in_short(plan.status))
            await self._api.update(f"{_path(job)}/status", {**job, "status": plan.status})
        self._past[uid] = sync.remembered(past, list(found.values()), plan)
        await self._each(plan.release, self._release)
        if plan.again_in is not None:
            self._later(uid, max(plan.again_in, 0.0) + 0.01)

    def _pods_of(self, job: str) -> dict[str, Json]:
        known = self._pods.items()
        return {each: known[each] for each in self._owned.get(job, ()) if each in known}

    async def _manage(self, job: Json, plan: Plan) -> None:
        """Make and delete pods. Raises the first error of all."""
        await self._each(plan.drop, self._release)
        await self._each((*plan.drop, *plan.delete), self._delete)
        if plan.create:
            log.info("job.creates", job=job["metadata"]["name"], indexes=list(plan.create))
        async with asyncio.TaskGroup() as group:
            for at in plan.create:
                group.create_task(self._create(job, at, failed_before=plan.failed_before.get(at)))

    async def _each(self, chosen: Sequence[Mapping[str, Any]], do: Callable[[Any], Coroutine[Any, Any, None]]) -> None:
        async with asyncio.TaskGroup() as group:
            for each in chosen:
                group.create_task(do(each))

    async def _create(self, job: Json, at: int, *, failed_before: int | None) -> None:
        collection = paths.collection("pods", namespace=job["metadata"]["namespace"])
        made = await self._api.create(collection, pods.body(job, at, failed_before=failed_before))
        uid = made["metadata"]["uid"]
        if uid not in self._pods.items():
            self._made.setdefault(job["metadata"]["uid"], {})[uid] = made

    async def _release(self, pod: Json) -> None:
        """Take the finalizer off a pod."""
        metadata = pod["metadata"]
        left = [each for each in metadata.get("finalizers") or () if each != pods.FINALIZER]
        body = {"metadata": {"uid": metadata["uid"], "finalizers": left or None}}
        try:
            path = paths.pod(metadata["namespace"], metadata["name"])
            await self._api.patch(path, body, content_type=client.Patch.MERGE)
        except (errors.NotFoundError, errors.ConflictError, errors.InvalidError):
            return  # it is gone; or another pod of its name is there

    async def _delete(self, pod: Json) -> None:
        metadata = pod["metadata"]
        try:
            options = {"preconditions": {"uid": metadata["uid"]}}
            await self._api.delete(paths.pod(metadata["namespace"], metadata["name"]), options=options)
        except (errors.NotFoundError, errors.ConflictError):
            return


def _is_ours(job: Json) -> bool:
    if sync.is_finished(job) or job["spec"].get("managedBy", "kubernetes.io/job-controller") != (
        "kubernetes.io/job-controller"
    ):
        return False
    unknown = [key for key in ("successPolicy",) if job["spec"].get(key)]
    if job["spec"].get("completionMode") != "Indexed" or unknown:
        log.warning("job.left_alone", job=job["metadata"]["name"], why=unknown or "it is not Indexed")
        return False
    return True


def _path(job: Json) -> str:
    metadata = job["metadata"]
    return f"{paths.collection('jobs', namespace=metadata['namespace'], group='batch')}/{metadata['name']}"


def _controller(pod: Json) -> str:
    """Return the UID of the Job that controls a pod; "" where none does."""
    owners = pod["metadata"].get("ownerReferences") or ()
    return next((str(each["uid"]) for each in owners if each.get("controller") and each["kind"] == "Job"), "")


def _in_short(status: Json) -> Json:
    shown = {key: status.get(key) for key in ("active", "ready", "succeeded", "failed") if status.get(key)}
    return {**shown, "conditions": [each["type"] for each in status.get("conditions") or ()]}


def _whole(obj: Json) -> Json:
    return obj


def _ignored(_: PartStatus) -> None:
    """Nobody asks how a stand-in is."""
