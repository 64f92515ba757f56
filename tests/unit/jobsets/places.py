"""Nodes and pods for tests of placement."""

from typing import Any, Final

from kubemend.common.kube import client, errors, paths
from kubemend.controller.jobset.children import naming
from kubemend.controller.jobset.placement import device_taints
from tests.unit.jobsets import builders
from tests.unit.jobsets.env import JobSetEnv

RACK: Final = "example.com/rack"
EXCLUSIVE: Final = {naming.EXCLUSIVE_TOPOLOGY: RACK}


async def node(env: JobSetEnv, name: str, *, rack: str = "", healthy: str = "") -> None:
    conditions = [{"type": "Ready", "status": "True", "lastHeartbeatTime": builders.now()}]
    if healthy:
        times = {"lastHeartbeatTime": "2126-01-01T00:00:00Z", "lastTransitionTime": "2126-01-01T00:00:00Z"}
        conditions.append({"type": device_taints.DEVICES_HEALTHY, "status": healthy, **times})
    labels = {RACK: rack} if rack else {}
    status = {"conditions": conditions, "allocatable": {"cpu": "8", "pods": "10"}}
    body = {"metadata": {"name": name, "labels": labels}, "status": status}
    await env.api.create(paths.NODES, body)
    await env.api.patch_status(f"{paths.NODES}/{name}", {"status": status}, content_type=client.Patch.MERGE)
    # The API server taints a new node as not ready; the node controller would remove that.
    await env.api.patch(f"{paths.NODES}/{name}", {"spec": {"taints": None}}, content_type=client.Patch.MERGE)


async def pod_of(env: JobSetEnv, job: str) -> None:
    """Have the Job controller create a Job's only pod."""
    template = (await env.jobs())[job]["spec"]["template"]
    meta = template["metadata"]
    labels = {**meta["labels"], "batch.kubernetes.io/job-name": job}
    metadata = {"name": f"{job}-0", "labels": labels, "annotations": meta["annotations"]}
    await env.api.create(env.all_pods, {"metadata": metadata, "spec": template["spec"]})


async def pod(env: JobSetEnv, job: str) -> dict[str, Any]:
    return await env.api.get(f"{env.all_pods}/{job}-0")


async def is_released(env: JobSetEnv, *jobs: str) -> bool:
    pods = [await pod(env, job) for job in jobs]
    return not any(each["spec"].get("schedulingGates") for each in pods)


async def is_kept_off(env: JobSetEnv, name: str) -> bool:
    try:
        found = await env.api.get(f"{paths.NODES}/{name}")
    except errors.NotFoundError:
        return False
    return any(each["key"] == device_taints.TAINT for each in found.get("spec", {}).get("taints") or ())


async def is_let_back(env: JobSetEnv, name: str) -> bool:
    return not await is_kept_off(env, name)
