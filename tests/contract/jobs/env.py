"""Manage one Job, and play kubelet for its pods."""

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

from kubemend.common.kube import client, errors, paths
from tests import eventually

Json = dict[str, Any]

NAME = "train"
MOST = 2**31 - 1
NODE = "node-without-kubelet"
"""Pods on it end when a test requests it."""
FINALIZER = "batch.kubernetes.io/job-tracking"
INDEX = "batch.kubernetes.io/job-completion-index"
FAILURES = "batch.kubernetes.io/job-index-failure-count"
_MOMENT = "2026-01-01T00:00:00Z"


class JobEnv:
    """The Job ``train`` in a namespace of its own."""

    def __init__(self, api: client.KubeClient, namespace: str) -> None:
        self.api = api
        self.namespace = namespace
        self._jobs = paths.collection("jobs", namespace=namespace, group="batch")
        self.pods_path = paths.collection("pods", namespace=namespace)

    async def create(self, *, count: int = 3, restart_policy: str = "Never", **spec: Any) -> Json:
        """Create it, with ``indexes`` indexes."""
        container = {"name": "main", "image": "busybox:1"}
        template = {
            "metadata": {"labels": {"app": "x"}, "annotations": {"note": "y"}},
            "spec": {"restartPolicy": restart_policy, "nodeName": NODE, "containers": [container]},
        }
        whole = {"completionMode": "Indexed", "completions": count, "parallelism": count, "backoffLimit": MOST}
        body = {"metadata": {"name": NAME}, "spec": {**whole, "template": template, **spec}}
        return await self.api.create(self._jobs, body)

    async def job(self) -> Json:
        return await self.api.get(f"{self._jobs}/{NAME}")

    async def status(self) -> Json:
        return (await self.job()).get("status") or {}

    async def change(self, **spec: Any) -> None:
        await self.api.patch(f"{self._jobs}/{NAME}", {"spec": spec}, content_type=client.Patch.MERGE)

    async def delete(self, *, policy: str) -> None:
        await self.api.delete(f"{self._jobs}/{NAME}", options={"propagationPolicy": policy})

    async def pods(self) -> list[Json]:
        """Return all existing pods, by name."""
        found = await self.api.list(self.pods_path)
        return sorted(found.items, key=lambda each: str(each["metadata"]["name"]))

    async def live(self) -> dict[int, Json]:
        """The pods that run or will, by index."""
        return {index(each): each for each in await self.pods() if is_active(each)}

    async def until_live(self, *indexes: int) -> dict[int, Json]:
        """Wait until just these indexes have a pod."""

        async def there() -> bool:
            return sorted(await self.live()) == sorted(indexes)

        await eventually.true(there)
        return await self.live()

    async def until(self, holds: Callable[[Json], bool]) -> Json:
        """Wait until it holds for the status, and return that."""

        async def true() -> bool:
            return holds(await self.status())

        await eventually.true(true)
        return await self.status()

    async def until_gone(self, path: str = "") -> None:
        async def gone() -> bool:
            try:
                await self.api.get(path or f"{self._jobs}/{NAME}")
            except errors.NotFoundError:
                return True
            return False

        await eventually.true(gone)

    async def say(self, pod: Json, phase: str, *, exit_code: int | None = None, restarts: int = 0) -> None:
        """Write a pod's phase, and the state of its one container, as kubelet does."""
        ready = {"type": "Ready", "status": "True" if phase == "Running" else "False", "lastTransitionTime": _MOMENT}
        status: Json = {"phase": phase, "conditions": [ready]}
        if exit_code is not None or restarts:
            state: Json = {"running": {"startedAt": _MOMENT}}
            if exit_code is not None:
                state = {"terminated": {"exitCode": exit_code, "startedAt": _MOMENT, "finishedAt": _MOMENT}}
            main = {"name": "main", "image": "busybox:1", "imageID": "", "ready": False, "restartCount": restarts}
            status["containerStatuses"] = [{**main, "state": state}]
        await self.patch_status(pod, status)

    async def disrupt(self, pod: Json) -> None:
        """Mark a pod as disrupted."""
        reported = {"type": "DisruptionTarget", "status": "True", "reason": "Test", "lastTransitionTime": _MOMENT}
        await self.patch_status(pod, {"conditions": [reported]})

    async def patch_status(self, pod: Json, status: Mapping[str, Any]) -> None:
        await self.api.patch_status(f"{self.pods_path}/{pod['metadata']['name']}", {"status": dict(status)})

    async def end(self, pod: Json) -> None:
        """Finish the deletion of a pod, as kubelet does."""
        with contextlib.suppress(errors.NotFoundError):
            await self.say(pod, "Failed", exit_code=137)
            await self.remove(pod)

    async def remove(self, pod: Json, *, grace: int | None = 0) -> None:
        options = {} if grace is None else {"gracePeriodSeconds": grace}
        await self.api.delete(f"{self.pods_path}/{pod['metadata']['name']}", options=options)

    async def pod(self, pod: Json) -> Json:
        return await self.api.get(f"{self.pods_path}/{pod['metadata']['name']}")


def index(pod: Json) -> int:
    """Completion index of a Job's pod."""
    return int(pod["metadata"]["annotations"][INDEX])


def is_active(pod: Json) -> bool:
    """Return whether it counts as running (``IsPodActive`` in pkg/controller/controller_utils.go)."""
    return pod["status"]["phase"] not in ("Succeeded", "Failed") and "deletionTimestamp" not in pod["metadata"]


def is_tracked(pod: Json) -> bool:
    """Return whether the Job controller has not counted its end yet."""
    return FINALIZER in (pod["metadata"].get("finalizers") or ())


def conditions(status: Json) -> dict[str, tuple[str, str]]:
    """Status and reason of each condition."""
    return {each["type"]: (each["status"], each.get("reason", "")) for each in status.get("conditions") or ()}


def message(status: Json, kind: str) -> str:
    (found,) = [each for each in status["conditions"] if each["type"] == kind]
    return str(found["message"])
