"""Create the objects of the admission cases: nodes, pods, Jobs and JobSets, some of them managed by kubemend."""

from collections.abc import Mapping
from typing import Any

from kubemend.common.kube import client, errors, paths
from kubemend.controller.jobset.spec import model
from tests.contract.api import installation, jobsets, objects
from tests.contract.api.admission_calls import HERE, THERE, Json, Scene, condition, job, owned

OPTED_IN = {"kubemend.io/restart": "InPlace"}
GATES = [{"name": "kubemend.io/exclusive-placement"}, {"name": "quota.example.com/q"}]
REPLICA_SET = owned("rs", kind="ReplicaSet", api_version="apps/v1")
A_JOB = owned("train", kind="Job", api_version="batch/v1")
TRACKING = "batch.kubernetes.io/job-tracking"
JOBSET_KIND = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet"}


async def built(administrator: client.KubeClient) -> Scene:
    """Create all objects of the cases, in a namespace of its own where it has one."""
    made = await administrator.create(paths.collection("namespaces"), {"metadata": {"generateName": "test-"}})
    found = Scene(made["metadata"]["name"], administrator)
    for pod in pods():
        await administrator.create(found.of("pods"), pod)
    conditions = [objects.condition(kind) for kind in ("Ready", "kubemend.io/DevicesHealthy")]
    await administrator.patch_status(found.pod("reported"), {"status": {"conditions": conditions}})
    await administrator.patch_status(found.pod("marked"), {"status": condition("DisruptionTarget")})
    await administrator.delete(found.pod("ending"))
    for name, owner in (("of-a-jobset", owned()), ("somebodys", {})):
        await administrator.create(found.of("jobs", "batch"), job(name, **owner))
    privileged = {"securityContext": {"privileged": True}}
    await administrator.create(found.of("jobs", "batch"), job("privileged", container=privileged, **owned()))
    for name, manager in (("ours", model.MANAGED_BY), ("theirs", "jobset.sigs.k8s.io/jobset-controller")):
        await administrator.create(jobsets.collection(found.namespace), jobset(name, manager=manager))
    await there_is(administrator, paths.collection("namespaces"), "opted-in", labels={"kubemend.io/restart": "allowed"})
    reaching = {"pod-security.kubernetes.io/enforce": "privileged"}
    await there_is(administrator, paths.collection("namespaces"), "reaching", labels=reaching)
    await there_is(administrator, objects.pods("opted-in"), "owned", spec=objects.pod("")["spec"], **REPLICA_SET)
    taint = {"key": "a.b/c", "effect": "NoSchedule"}
    await there_is(administrator, paths.NODES, "node-tainted", spec={"taints": [taint]})
    return found


def pods() -> tuple[Json, ...]:
    """Return the pods of a scene."""
    waiting = objects.pod("waiting")
    return (
        objects.pod("here", node=HERE),
        objects.pod("there", node=THERE),
        objects.pod("nowhere"),
        objects.pod("reported", node=HERE),
        objects.pod("ending", node=HERE),
        objects.pod("asked", node=THERE, annotations=OPTED_IN, **REPLICA_SET),
        objects.pod("owned", node=THERE, **REPLICA_SET),
        objects.pod("tracked", node=THERE, annotations=OPTED_IN, finalizers=[TRACKING, "example.com/wait"], **A_JOB),
        objects.pod("marked", node=THERE, annotations=OPTED_IN, **A_JOB),
        objects.pod("alone", node=THERE, annotations=OPTED_IN),
        {**waiting, "spec": {**waiting["spec"], "schedulingGates": GATES}},
    )


async def there_is_an_agent(api: client.KubeClient, node: str) -> Mapping[str, Any]:
    """Return the agent's pod on a node."""
    try:
        return await api.get(paths.pod("kubemend", f"agent-{node}"))
    except errors.NotFoundError:
        return await installation.agent_pod(api, node)


async def there_is(api: client.KubeClient, path: str, name: str, *, spec: Json | None = None, **metadata: Any) -> None:
    """Create an object unless another test has."""
    try:
        await api.get(f"{path}/{name}")
    except errors.NotFoundError:
        await api.create(path, {"metadata": {"name": name, **metadata}, "spec": spec or {}})


def jobset(name: str, *, manager: str) -> Json:
    """Return a suspended JobSet of one Job."""
    workers = {"name": "workers", "template": {"spec": job("")["spec"]}}
    spec = {"managedBy": manager, "suspend": True, "replicatedJobs": [workers]}
    return {**JOBSET_KIND, "metadata": {"name": name}, "spec": spec}
