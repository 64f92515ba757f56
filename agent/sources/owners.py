"""What a pod's owner makes of container restarts: asked of the API server when a restart is to be decided."""

from typing import Any, Protocol

from agent.model.workloads import PodView, RestartPolicy
from agent.restart import admission
from common.kube import errors, paths


class Api(Protocol):
    """The two reads that are needed (``common.kube.client.KubeClient``)."""

    async def get(self, path: str) -> dict[str, Any]: ...
    async def list(self, path: str, *, params: dict[str, str] | None = None) -> Any: ...


class OwnerLookup:
    """Answers with None when the API server cannot be asked: then nothing is restarted on a guess."""

    def __init__(self, api: Api) -> None:
        self._api = api

    async def facts(self, pod: PodView) -> admission.OwnerFacts | None:
        """Return what the pod's Job or LeaderWorkerSet does about restarts."""
        try:
            return admission.OwnerFacts(
                job_restarts_left=await self._job_restarts_left(pod),
                group_policy=await self._group_policy(pod),
            )
        except errors.KubeError:
            return None

    async def _job_restarts_left(self, pod: PodView) -> int | None:
        owner = pod.owner
        if owner is None or owner.kind != "Job" or pod.restart_policy is not RestartPolicy.ON_FAILURE:
            return None
        namespace = pod.ref.namespace
        jobs = paths.collection("jobs", namespace=namespace, group="batch")
        job = await self._api.get(f"{jobs}/{owner.name}")
        limit = int(job["spec"].get("backoffLimit", 6))
        if limit >= admission.UNLIMITED_BACKOFF:
            return limit
        pods = await self._api.list(
            paths.collection("pods", namespace=namespace),
            params={"labelSelector": f"batch.kubernetes.io/job-name={owner.name}"},
        )
        failed = int(job.get("status", {}).get("failed", 0))
        return limit - failed - sum(_restarts(item) for item in pods.items)

    async def _group_policy(self, pod: PodView) -> str | None:
        name = pod.labels.get(admission.LWS_NAME_LABEL)
        if name is None:
            return None
        groups = paths.collection("leaderworkersets", namespace=pod.ref.namespace, group="leaderworkerset.x-k8s.io")
        group = await self._api.get(f"{groups}/{name}")
        # The CRD's default; research: LeaderWorkerSet recreates the group on any container restart.
        return str(group["spec"].get("leaderWorkerTemplate", {}).get("restartPolicy", "RecreateGroupOnPodRestart"))


def _restarts(pod: dict[str, Any]) -> int:
    status = pod.get("status", {})
    statuses = [*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ())]
    return sum(int(item.get("restartCount", 0)) for item in statuses)
