"""Nodes and pods for tests of placement."""

from typing import Any, Final

from kubemend.common.kube import client, errors, paths
from kubemend.controller.jobset.children import naming
from kubemend.controller.jobset.placement import device_taints
from tests.unit.jobsets import rig
from tests.unit.jobsets.rig import Bench

RACK: Final = "example.com/rack"
EXCLUSIVE: Final = {naming.EXCLUSIVE_TOPOLOGY: RACK}


async def node(bench: Bench, name: str, *, rack: str = "", healthy: str = "") -> None:
    conditions = [{"type": "Ready", "status": "True", "lastHeartbeatTime": rig.now()}]
    if healthy:
        times = {"lastHeartbeatTime": "2126-01-01T00:00:00Z", "lastTransitionTime": "2126-01-01T00:00:00Z"}
        conditions.append({"type": device_taints.DEVICES_HEALTHY, "status": healthy, **times})
    labels = {RACK: rack} if rack else {}
    status = {"conditions": conditions, "allocatable": {"cpu": "8", "pods": "10"}}
    body = {"metadata": {"name": name, "labels": labels}, "status": status}
    await bench.api.create(paths.NODES, body)
    await bench.api.patch_status(f"{paths.NODES}/{name}", {"status": status}, content_type=client.Patch.MERGE)
    # The API server taints a new node as not ready; the node controller would remove that.
    await bench.api.patch(f"{paths.NODES}/{name}", {"spec": {"taints": None}}, content_type=client.Patch.MERGE)


async def pod_of(bench: Bench, job: str) -> None:
    """Have the Job controller create a Job's only pod."""
    template = (await bench.jobs())[job]["spec"]["template"]
    meta = template["metadata"]
    labels = {**meta["labels"], "batch.kubernetes.io/job-name": job}
    metadata = {"name": f"{job}-0", "labels": labels, "annotations": meta["annotations"]}
    await bench.api.create(bench.all_pods, {"metadata": metadata, "spec": template["spec"]})


async def pod(bench: Bench, job: str) -> dict[str, Any]:
    return await bench.api.get(f"{bench.all_pods}/{job}-0")


async def is_let_go(bench: Bench, *jobs: str) -> bool:
    pods = [await pod(bench, job) for job in jobs]
    return not any(each["spec"].get("schedulingGates") for each in pods)


async def is_kept_off(bench: Bench, name: str) -> bool:
    try:
        found = await bench.api.get(f"{paths.NODES}/{name}")
    except errors.NotFoundError:
        return False
    return any(each["key"] == device_taints.TAINT for each in found.get("spec", {}).get("taints") or ())


async def is_let_back(bench: Bench, name: str) -> bool:
    return not await is_kept_off(bench, name)
