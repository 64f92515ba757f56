"""Replace pods: mark each, keep its Job from counting it as failed, and then delete it.

By name and UID, so a replacement of the same name is never touched. The pod's owner creates the new one. A pod that is
not deleted after all gets back what the mark changed.
"""

import asyncio
import enum
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import structlog

from kubemend.common import aio, conditions, contained, gangs
from kubemend.common.kube import client, errors, paths, timestamps
from kubemend.common.kube.transport import Json
from kubemend.controller.gangs import job_accounting
from kubemend.controller.jobset.spec import reading
from kubemend.controller.model.members import Member, PodRef, PodUid
from kubemend.controller.model.rounds import Recreate

log = structlog.get_logger(__name__)

STALE: Final = 20.0
"""Seconds after which a request that was not repeated is dropped. A round of any size repeats it when it renews its
holds, every 10 s (``rounds.deadlines``)."""

_NOT_DELETED: Final = "NotDeleted"
"""Reason of the condition DisruptionTarget of a pod that was marked, and then not deleted."""


class Outcome(enum.Enum):
    """The result of a replacement.

    ``DELETED``: it ends now; the pod Informer reports when it is gone. ``GONE``: the pod no longer existed.
    ``REFUSED``: the API server refuses to delete or mark it. ``GIVEN_UP``: it has failed, and its Job has given up its
    index (``backoffLimitPerIndex``). No new pod would come, so it is left for inspection.
    """

    DELETED = "deleted"
    GONE = "gone"
    REFUSED = "refused"
    GIVEN_UP = "given-up"


@dataclass(slots=True)
class _Request:
    """A pod to replace, when that was last requested (loop time), and whether it was carried out or refused."""

    wanted: Recreate
    requested_at: float
    is_done: bool = False


@dataclass(slots=True)
class _Unfinished:
    """A pod that is marked and not deleted yet. It may still run.

    ``reason`` is that of its condition DisruptionTarget; "" if the pod had the condition before. ``left_out``: it has
    not its Job's finalizer any more.
    """

    pod: PodRef
    reason: str = ""
    left_out: bool = False


class PodReplacer:
    """Replace pods. ``recreate`` queues a pod, ``run`` replaces it.

    A round repeats its request as long as it wants a pod to be deleted. A request that was not repeated lately is
    dropped: the round is over, and its members may run.
    """

    def __init__(
        self,
        *,
        api: client.KubeClient,
        on_outcome: Callable[[PodRef, Outcome, str], None],
        clock: Callable[[], float] = time.time,
        backoff: Callable[[], aio.Backoff] = lambda: aio.Backoff(first=0.1, limit=5.0),
        parallel: int = 16,
        stale: float = STALE,
        keep: float = 60.0,
    ) -> None:
        """Create it; ``on_outcome`` gets the pod, the outcome and the reason. ``clock`` returns Unix seconds.

        ``parallel`` requests are carried out at a time. ``stale`` is the age in seconds after which one that was not
        repeated is dropped. ``keep`` is for how many seconds one that was carried out, or refused, is not carried out
        again.
        """
        self._api = api
        self._on_outcome = on_outcome
        self._clock = clock
        self._backoff = backoff
        self._slots = asyncio.Semaphore(parallel)
        self._stale = stale
        self._keep = keep
        self._wanted: dict[PodUid, _Request] = {}
        self._unfinished: dict[PodUid, _Unfinished] = {}
        self._active: set[PodUid] = set()
        self._queue: asyncio.Queue[PodUid] = asyncio.Queue()

    def recreate(self, wanted: Recreate) -> None:
        """Queue a pod for replacement.

        Does not block. Repeating it has no effect, except for ``force``, which is applied.
        """
        uid = wanted.pod.uid
        now = asyncio.get_running_loop().time()
        before = self._wanted.get(uid)
        if before is not None and (before.wanted.force or not wanted.force):
            before.requested_at = now
            return
        self._wanted[uid] = _Request(wanted, now)
        self._enqueue(uid)

    def restore(self, pod: PodRef) -> None:
        """Queue a pod that its Job would not count (``job_accounting.is_left_out``) to get its Job's finalizer back.

        Does not block, and has no effect for a pod that is being replaced. A leader that ends between the two steps of
        a replacement leaves such a pod behind.
        """
        if pod.uid not in self._wanted and pod.uid not in self._active:
            self._unfinished[pod.uid] = _Unfinished(pod, left_out=True)
            self._enqueue(pod.uid)

    async def job_of(self, member: Member) -> Json | None:
        """Return the Job that owns a member; None if there is none. Raises KubeError."""
        assert member.owner is not None
        try:
            async with self._slots:
                namespace = member.pod.namespace
                return await self._api.get(paths.one("jobs", member.owner.name, namespace=namespace, group="batch"))
        except errors.NotFoundError:
            return None

    def _enqueue(self, uid: PodUid) -> None:
        if uid not in self._active:
            self._active.add(uid)
            self._queue.put_nowait(uid)

    def forget(self, uid: PodUid) -> None:
        """Drop the request for a pod: it is gone, or its round is off. A deletion that was sent is not undone."""
        self._wanted.pop(uid, None)

    async def run(self) -> None:
        """Replace pods indefinitely. When cancelled, drop all requests: another leader handles them."""
        try:
            async with asyncio.TaskGroup() as group:
                while True:
                    uid = await self._queue.get()
                    group.create_task(self._converge(uid), name=f"recreation of {uid}")
        finally:
            self._wanted.clear()
            self._unfinished.clear()
            self._active.clear()
            self._queue = asyncio.Queue()

    async def _converge(self, uid: PodUid) -> None:
        with contained.within(contained.Part.RECREATION, uid) as work:
            await self._carry_out(uid)
        if work.failed:
            self.forget(uid)  # its round asks again
        with contained.within(contained.Part.RECREATION, uid):
            await self._give_back(uid)
        self._unfinished.pop(uid, None)
        self._active.discard(uid)
        if (request := self._wanted.get(uid)) is not None and not request.is_done:
            self._enqueue(uid)

    async def _carry_out(self, uid: PodUid) -> None:
        backoff = self._backoff()
        loop = asyncio.get_running_loop()
        while (request := self._wanted.get(uid)) is not None and not request.is_done:
            wanted = request.wanted
            if self._is_stale(request):
                log.info("recreation.dropped", pod=str(wanted.pod), reason="its round no longer asks for it")
                self.forget(uid)
                break
            try:
                async with self._slots:  # thousands may wait for one
                    replaced = await self._replace(request) if self._is_wanted(request) else None
            except (errors.ApiUnavailableError, errors.ConflictError) as error:
                log.warning("recreation.delayed", pod=str(wanted.pod), error=str(error))
                await backoff.wait()
                continue
            except errors.KubeError as error:
                replaced = Outcome.REFUSED, str(error)
            if replaced is None:
                continue
            outcome, reason = replaced
            request.is_done = True
            loop.call_later(self._keep, self._expire, uid, request)
            log.info("recreation", pod=str(wanted.pod), outcome=outcome.value, reason=wanted.reason, detail=reason)
            self._on_outcome(wanted.pod, outcome, reason)

    def _expire(self, uid: PodUid, request: _Request) -> None:
        """Forget a completed request: if the pod still exists and is requested again, it is tried again."""
        if self._wanted.get(uid) is request:
            self.forget(uid)

    def _is_stale(self, request: _Request) -> bool:
        return asyncio.get_running_loop().time() - request.requested_at > self._stale

    def _is_wanted(self, request: _Request) -> bool:
        """Return whether a request still holds: not stale, forgotten, or superseded by one with ``force``."""
        return self._wanted.get(request.wanted.pod.uid) is request and not self._is_stale(request)

    async def _replace(self, request: _Request) -> tuple[Outcome, str] | None:
        """Mark a pod and delete it; return the outcome and the reason. None: it is not wanted, and lives."""
        wanted = request.wanted
        pod, path = wanted.pod, paths.pod(wanted.pod.namespace, wanted.pod.name)
        try:
            found = await client.get_by_uid(self._api, path, uid=pod.uid)
            if found is not None and await self._is_given_up(found):
                return Outcome.GIVEN_UP, "its Job runs its index no more"
            left_out_at = await self._leave_out(found, wanted)
            self._note_unfinished(found, wanted, left_out=left_out_at is not None)
            await self._api.patch_status(path, _marks(wanted, now=self._clock(), left_out_at=left_out_at))
            if not self._is_wanted(request):
                return None
            await self._api.delete(path, options=_options(wanted))
        except errors.NotFoundError:
            return self._gone(pod, "the API server does not have the pod")
        # the answer to a wrong UID is 409 for a deletion, 422 for a patch
        except (errors.ConflictError, errors.InvalidError):
            if await client.get_by_uid(self._api, path, uid=pod.uid) is None:
                return self._gone(pod, "the pod was deleted or replaced")
            raise
        self._unfinished.pop(pod.uid, None)
        return Outcome.DELETED, wanted.message

    def _gone(self, pod: PodRef, detail: str) -> tuple[Outcome, str]:
        self._unfinished.pop(pod.uid, None)
        return Outcome.GONE, detail

    def _note_unfinished(self, found: Json | None, wanted: Recreate, *, left_out: bool) -> None:
        """Record what the mark is about to change. A repeated try finds the own mark: the first one counts."""
        if found is None:
            return
        is_new = not wanted.force and _disruption(found).get("status") != "True"  # one marked Failed runs no more
        mark = _Unfinished(wanted.pod, wanted.reason if is_new else "")
        self._unfinished.setdefault(wanted.pod.uid, mark).left_out |= left_out

    async def _is_given_up(self, pod: Json) -> bool:
        meta = pod["metadata"]
        job = await self._job(meta, job_accounting.job_of_failed_index(pod))
        status = (job or {}).get("status") or {}
        index = str((meta.get("labels") or {}).get(gangs.JOB_INDEX) or "")
        return reading.is_failed_index(index, str(status.get("failedIndexes") or ""))

    async def _leave_out(self, pod: Json | None, wanted: Recreate) -> str | None:
        """Return the pod's resource version if its Job need not count it as failed; None if it must, or may have to."""
        if pod is None:
            return None
        job = await self._job(pod["metadata"], job_accounting.counting_job(pod))
        if job is None or not job_accounting.may_leave_out(job, marks=_types(wanted)):
            return None
        return str(pod["metadata"]["resourceVersion"])

    async def _job(self, pod: Json, name: str | None) -> Json | None:
        """Return a pod's Job, given the pod's metadata; None without a name, or if it cannot be read."""
        if name is None:
            return None
        try:
            return await self._api.get(paths.one("jobs", name, namespace=pod["namespace"], group="batch"))
        except errors.ApiUnavailableError:
            raise
        except errors.KubeError as error:
            log.warning("recreation.counted", pod=f"{pod['namespace']}/{pod['name']}", job=name, error=str(error))
            return None

    async def _give_back(self, uid: PodUid) -> None:
        """Take the mark of a pod back that was not deleted after all: its Job must count its end.

        While the pod is marked, its agent refuses to restart it, because such pods are about to be ended.
        """
        backoff = self._backoff()
        while (unfinished := self._unfinished.get(uid)) is not None:
            pod, path = unfinished.pod, paths.pod(unfinished.pod.namespace, unfinished.pod.name)
            try:
                found = await client.get_by_uid(self._api, path, uid=uid)
                body = _taken_back(found, unfinished, now=self._clock()) if found is not None else None
                if body is not None:
                    await self._take_back(path, body)
            except (errors.ApiUnavailableError, errors.ConflictError) as error:
                log.warning("recreation.delayed", pod=str(pod), error=str(error))
                await backoff.wait()
                continue
            except errors.KubeError as error:  # it is gone, or being deleted
                log.info("recreation.not_restored", pod=str(pod), error=str(error))
            return

    async def _take_back(self, path: str, body: dict[str, Any]) -> None:
        """Take a mark back, or at least give the finalizer back: without that, a Job could run a success again.

        While controllers are upgraded, the admission policy of the version before may accept the finalizer only as long
        as the pod is marked. Kubernetes resets the mark after two minutes.
        """
        try:
            await self._api.patch_status(path, body)
        except errors.ForbiddenError:
            if "finalizers" not in body["metadata"] or "status" not in body:
                raise
            await self._api.patch_status(path, {"metadata": body["metadata"]})


def _types(wanted: Recreate) -> list[str]:
    return [conditions.DISRUPTION_TARGET, *([conditions.DEVICE_FAILURE] if wanted.device_failure else [])]


def _marks(wanted: Recreate, *, now: float, left_out_at: str | None) -> dict[str, Any]:
    """Return the patch with the reason for the deletion; the pod's UID is a precondition.

    ``left_out_at`` is the pod's resource version, another precondition, if its Job must not count it: a pod that has
    succeeded since then must be counted.

    No kubelet reports the failure of a pod that is deleted by force, and a Job with ``podReplacementPolicy: Failed``
    would never replace it. Source: the pod garbage collector (``MarkPodAsFailedAndDeletePod``), which writes the same,
    some time later.
    """
    leave_out = {
        "resourceVersion": left_out_at,
        "$deleteFromPrimitiveList/finalizers": [job_accounting.FINALIZER],
    }
    common = {
        "status": "True",
        "reason": wanted.reason,
        "message": wanted.message,
        "lastTransitionTime": timestamps.rfc3339(now),
    }
    return {
        "metadata": {"uid": wanted.pod.uid, **(leave_out if left_out_at is not None else {})},
        "status": {
            **({"phase": "Failed"} if wanted.force else {}),
            "conditions": [{"type": each, **common} for each in _types(wanted)],
        },
    }


def _taken_back(pod: Json, unfinished: _Unfinished, *, now: float) -> dict[str, Any] | None:
    """Return the patch that takes a mark back; None if nothing of it is left, or the pod is being deleted.

    The pod's version is a precondition: another client may mark the same pod, and then deletes it.
    """
    meta, disruption = pod["metadata"], _disruption(pod)
    is_ours = disruption.get("status") == "True" and disruption.get("reason") == unfinished.reason != ""
    if meta.get("deletionTimestamp") or not (is_ours or unfinished.left_out):
        return None
    finalizers = {"finalizers": [job_accounting.FINALIZER]} if unfinished.left_out else {}
    condition = {
        "type": conditions.DISRUPTION_TARGET,
        "status": "False",
        "reason": _NOT_DELETED,
        "message": "the pod was to be replaced, and stays",
        "lastTransitionTime": timestamps.rfc3339(now),
    }
    return {
        "metadata": {"uid": meta["uid"], "resourceVersion": meta["resourceVersion"], **finalizers},
        **({"status": {"conditions": [condition]}} if is_ours else {}),
    }


def _disruption(pod: Json) -> Json:
    """Return a pod's condition DisruptionTarget; empty if it has none."""
    found = (pod.get("status") or {}).get("conditions") or ()
    return next((each for each in found if each.get("type") == conditions.DISRUPTION_TARGET), {})


def _options(wanted: Recreate) -> dict[str, Any]:
    """Return the DeleteOptions: one second of grace, because frozen processes cannot handle SIGTERM however long it is.

    Without a grace period the API server removes the pod before kubelet has ended it; so 0 is only for dead pods.
    """
    return {"preconditions": {"uid": wanted.pod.uid}, "gracePeriodSeconds": 0 if wanted.force else 1}
