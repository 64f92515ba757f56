"""Play the kubelets of a scenario: write the statuses of the Job controller's pods, and await its reaction.

There is no node. Pods stay unscheduled, so the API server deletes them at once when the Job controller deletes them.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final

from kubemend.common import aio
from kubemend.common.kube import client, paths
from tests.jobset.player import places
from tests.jobset.player.checked import ScenarioError
from tests.jobset.player.model import JobState, SetJobs, SetPods

Json = dict[str, Any]

FATAL_EXIT_CODE: Final = 42
"""The exit of pods of a Job that must fail by its ``podFailurePolicy``; ``reading`` fills that policy in."""

_INDEX: Final = "batch.kubernetes.io/job-completion-index"
_JOB_UID: Final = "batch.kubernetes.io/controller-uid"
_ENDED: Final = ("Succeeded", "Failed")
_MOMENT: Final = "2026-01-01T00:00:00Z"
_LOOK_AGAIN: Final = 0.2  # seconds
_TIMEOUT: Final = 120.0  # seconds that the Job controller may take on a slow machine


class Kubelets:
    """Play all kubelets of one namespace."""

    def __init__(self, api: client.KubeClient, namespace: str) -> None:
        self._api = api
        self._namespace = namespace

    async def set_job(self, job: Json, action: SetJobs) -> None:
        """Bring a Job's pods into the state for which the Job controller reports the action's result; wait for it."""
        match action.state:
            case JobState.ACTIVE:
                await self._each(job, _running(ready=False))
                await self._until(job, lambda status: _count(status, "active") > 0 == _count(status, "ready"))
            case JobState.READY:
                await self._until(job, lambda status: _count(status, "active") == _parallelism(job))
                await self._each(job, _running(ready=True))
                await self._until(job, lambda status: _count(status, "ready") == _parallelism(job))
            case JobState.STOPPED:
                await self._until(job, lambda status: _has(status, "Suspended"))
            case JobState.COMPLETE:
                await self._complete(job)
            case JobState.FAIL:
                await self._fail(job, action.reason or "BackoffLimitExceeded")
                await self._until(job, lambda status: _has(status, "Failed"))

    async def set_pods(self, job: Json, action: SetPods) -> None:
        """Have some of a Job's pods succeed, some fail and some be ready, and wait until they are counted."""
        wanted = action.succeed + action.fail + action.ready
        before = await self._until(job, lambda status: _count(status, "active") >= wanted)
        pods = await self._live(job)
        states = [_ended("Succeeded", 0)] * action.succeed + [_ended("Failed", 1)] * action.fail
        states += [_running(ready=True)] * action.ready
        for pod, state in zip(pods, states, strict=False):
            await self._write_status(pod, state)

        def counted(status: Json) -> bool:
            ends = _has(status, "FailureTarget") or _has(status, "SuccessCriteriaMet")  # its other pods are deleted
            return (
                (ends or _count(status, "ready") == action.ready)
                and _count(status, "succeeded") >= _count(before, "succeeded") + action.succeed
                and _count(status, "failed") >= _count(before, "failed") + action.fail
            )

        await self._until(job, counted)

    async def _complete(self, job: Json) -> None:
        """Have all pods succeed, and those that come after them."""
        completed = 0

        def are_counted(status: Json) -> bool:
            return _count(status, "succeeded") >= completed

        while not _has(await self._until_active_or_over(job), "Complete"):
            pods = await self._live(job)
            for pod in pods:
                await self._write_status(pod, _ended("Succeeded", 0))
            completed += len(pods)
            await self._until(job, are_counted)

    async def _fail(self, job: Json, reason: str) -> None:
        """Have a Job fail for a reason of its controller (batch/v1, ``JobReason…``)."""
        if reason == "DeadlineExceeded":
            await self._change(job, {"activeDeadlineSeconds": 1})
            return
        if reason == "BackoffLimitExceeded":
            await self._change(job, {"backoffLimit": 0})
        if _has(await self._until_active_or_over(job), "Failed"):  # the collector has deleted its pods, which counts
            return
        first, *others = await self._live(job)
        exit_code = FATAL_EXIT_CODE if reason == "PodFailurePolicy" else 1
        await self._write_status(first, _ended("Failed", exit_code))
        if reason == "FailedIndexes":  # reported once all other indexes have ended
            for pod in others:
                await self._write_status(pod, _ended("Succeeded", 0))

    async def _each(self, job: Json, status: Json) -> None:
        for pod in await self._live(job):
            await self._write_status(pod, status)

    async def _write_status(self, pod: Json, status: Json) -> None:
        path = paths.pod(self._namespace, pod["metadata"]["name"])
        await self._api.patch_status(path, {"status": status})

    async def _change(self, job: Json, spec: Json) -> None:
        await self._api.patch(self._path(job), {"spec": spec}, content_type=client.Patch.MERGE)

    async def _until_active_or_over(self, job: Json) -> Json:
        return await self._until(job, lambda status: _count(status, "active") > 0 or is_over({"status": status}))

    async def _live(self, job: Json) -> list[Json]:
        """Return a Job's pods that run or will, by their index."""
        selector = {"labelSelector": f"{_JOB_UID}={job['metadata']['uid']}"}
        found = await self._api.list(places.collection("pods", self._namespace), params=selector)
        live = [each for each in found.items if (each.get("status") or {}).get("phase") not in _ENDED]
        return sorted(
            (each for each in live if "deletionTimestamp" not in each["metadata"]),
            key=lambda each: int(each["metadata"].get("labels", {}).get(_INDEX, 0)),
        )

    async def _status(self, job: Json) -> Json:
        return (await self._api.get(self._path(job))).get("status") or {}

    async def _until(self, job: Json, holds: Callable[[Json], bool]) -> Json:
        """Wait until it holds for a Job's status, and return that. Raises ScenarioError after the timeout."""
        status: Json = {}
        try:
            async with asyncio.timeout(_TIMEOUT):
                async for _ in aio.ticks(period=_LOOK_AGAIN):
                    if holds(status := await self._status(job)):
                        return status
        except TimeoutError:
            name = job["metadata"]["name"]
            raise ScenarioError(name, what=f"has come to {status}", hint="wait for what can come") from None
        raise AssertionError("ticks never end")

    def _path(self, job: Json) -> str:
        return places.one("jobs", self._namespace, job["metadata"]["name"])


def is_over(job: Json) -> bool:
    """Return whether a Job has ended: the Job controller changes it no further."""
    status = job.get("status") or {}
    return _has(status, "Complete") or _has(status, "Failed")


def _running(*, ready: bool) -> Json:
    condition = {"type": "Ready", "status": "True" if ready else "False", "lastTransitionTime": _MOMENT}
    return {"phase": "Running", "conditions": [condition]}


def _ended(phase: str, exit_code: int) -> Json:
    state = {"terminated": {"exitCode": exit_code, "startedAt": _MOMENT, "finishedAt": _MOMENT}}
    worker = {"name": "worker", "image": "busybox:1", "imageID": "", "ready": False, "restartCount": 0, "state": state}
    ready = {"type": "Ready", "status": "False", "lastTransitionTime": _MOMENT}
    return {"phase": phase, "conditions": [ready], "containerStatuses": [worker]}


def _count(status: Mapping[str, Any], what: str) -> int:
    return int(status.get(what) or 0)


def _parallelism(job: Json) -> int:
    return int(job["spec"].get("parallelism", 1))


def _has(status: Mapping[str, Any], kind: str) -> bool:
    return any(each["type"] == kind and each["status"] == "True" for each in status.get("conditions") or ())
