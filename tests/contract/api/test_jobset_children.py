"""The bodies of JobSets' children are accepted by API servers: Jobs, Service, claims; resumes, gates and taints."""

from typing import Any

import pytest

from kubemend.common.kube import client, errors, paths
from kubemend.controller.jobset import children
from kubemend.controller.jobset.children import naming
from kubemend.controller.jobset.placement import choosing, device_taints, exclusive
from kubemend.controller.jobset.placement import reading as placement_reading
from kubemend.controller.jobset.placement.device_taints import AddTaint, DeviceFault, RemoveTaint
from kubemend.controller.jobset.placement.model import Node, Seeker
from kubemend.controller.jobset.spec import reading
from kubemend.controller.jobset.spec.model import JobSet
from tests.contract.api import objects

Json = dict[str, Any]

TOPOLOGY = {naming.EXCLUSIVE_TOPOLOGY: "rack"}
CONTAINER = {
    "name": "main",
    "image": "busybox:1",
    "resources": {"requests": {"cpu": "1500m"}},
    "volumeMounts": [{"name": "data", "mountPath": "/data"}],
}
CLAIMS = [
    {
        "templates": [
            {
                "metadata": {"name": "data"},
                "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
            }
        ]
    }
]


def jobset(namespace: str, *, annotations: Json | None = None, pods: Json | None = None, **spec: Any) -> JobSet:
    """A JobSet of one replicated Job that uses every field."""
    job = {
        "parallelism": 2,
        "completions": 2,
        "backoffLimit": 2**31 - 1,
        "podReplacementPolicy": "Failed",
        "template": {"spec": {"containers": [CONTAINER], **(pods or {})}},
    }
    return reading.jobset(
        {
            "metadata": {"name": "train", "namespace": namespace, "uid": "u-1", "annotations": annotations or {}},
            "spec": {
                "replicatedJobs": [{"name": "w", "replicas": 2, "template": {"spec": job}}],
                "failurePolicy": {"maxRestarts": 3, "restartStrategy": "InPlaceRestart"},
                "coordinator": {"replicatedJob": "w"},
                "volumeClaimPolicies": CLAIMS,
                **spec,
            },
        }
    )


def body_of(owner: JobSet) -> Json:
    return children.job(owner, owner.spec.replicated_jobs[0], 0, attempt=0, job_attempt=0)


async def made(api: client.KubeClient, path: str, body: Json) -> Json:
    """Create it, and return the server's object."""
    found: Json = await api.create(path, body)
    return found


@pytest.mark.parametrize("strategy", [{}, TOPOLOGY, {**TOPOLOGY, naming.NODE_SELECTOR: "true"}])
async def test_job_body_is_accepted_unchanged(api: client.KubeClient, namespace: str, strategy: Json) -> None:
    body = body_of(jobset(namespace, annotations=strategy, suspend=True))
    found = await made(api, objects.jobs(namespace), body)
    for kind in ("labels", "annotations"):
        assert body["metadata"][kind].items() <= found["metadata"][kind].items()
        wanted = body["spec"]["template"]["metadata"][kind]
        assert wanted.items() <= found["spec"]["template"]["metadata"][kind].items()
    wanted = {key: value for key, value in body["spec"]["template"]["spec"].items() if key != "containers"}
    assert wanted.items() <= found["spec"]["template"]["spec"].items()
    assert (found["spec"]["suspend"], found["spec"]["completionMode"]) == (True, "Indexed")
    job = reading.job(found)
    assert (job.replicated_job, job.index, job.attempt, job.job_attempt) == ("w", 0, 0, 0)
    assert job.made_of == body["metadata"]["annotations"][naming.MADE_OF]


async def test_service_and_claims_are_accepted_unchanged(api: client.KubeClient, namespace: str) -> None:
    owner = jobset(namespace)
    service = await made(api, paths.collection("services", namespace=namespace), children.service(owner))
    assert (service["spec"]["clusterIP"], service["spec"]["publishNotReadyAddresses"]) == ("None", True)
    (body,) = children.claims(owner)
    claim = await made(api, paths.collection("persistentvolumeclaims", namespace=namespace), body)
    assert (claim["metadata"]["name"], claim["metadata"]["labels"]) == ("data-train", {naming.JOBSET_NAME: "train"})


async def test_suspended_job_accepts_the_merge_of_a_resume(api: client.KubeClient, namespace: str) -> None:
    former = {"nodeSelector": {"pool": "spot", "arch": "arm64"}, "tolerations": [{"key": "spot", "value": "b"}]}
    before = jobset(namespace, annotations=TOPOLOGY, suspend=True, pods=former)
    path = f"{objects.jobs(namespace)}/train-w-0"
    found = await made(api, objects.jobs(namespace), body_of(before))
    toleration = {"key": "gpu", "operator": "Exists"}
    admitted = {
        "nodeSelector": {"pool": "a"},
        "tolerations": [toleration],
        "schedulingGates": [{"name": "kueue.x-k8s.io/topology"}],
    }
    after = jobset(namespace, annotations=TOPOLOGY, pods=admitted)
    (write,) = children.resume(after.spec.replicated_jobs[0], [reading.job(found)])
    patch = {
        "metadata": {"uid": write.uid, "annotations": write.annotations},
        "spec": {"suspend": False, "template": write.template},
    }
    await api.patch(path, patch, content_type=client.Patch.MERGE)
    resumed = await api.get(path)
    pods = resumed["spec"]["template"]["spec"]
    assert resumed["spec"]["suspend"] is False
    assert pods["nodeSelector"] == {"pool": "a"}
    assert [each["key"] for each in pods["tolerations"]] == ["gpu"]
    assert [each["name"] for each in pods["schedulingGates"]] == [exclusive.GATE, "kueue.x-k8s.io/topology"]
    assert resumed["spec"]["template"]["metadata"]["labels"][naming.JOB_INDEX] == "0"


async def test_gated_pod_is_released_to_its_domain_once(api: client.KubeClient, namespace: str) -> None:
    template = body_of(jobset(namespace, annotations=TOPOLOGY, volumeClaimPolicies=[]))["spec"]["template"]
    labels = {**template["metadata"]["labels"], "batch.kubernetes.io/job-name": "train-w-0"}
    metadata = {"name": "train-w-0-0-abcde", "labels": labels, "annotations": template["metadata"]["annotations"]}
    spec = {"containers": [{"name": "main", "image": "busybox:1"}], "restartPolicy": "OnFailure"}
    gates = [{"name": "other.example/gate"}, *template["spec"]["schedulingGates"]]
    created = await made(
        api, objects.pods(namespace), {"metadata": metadata, "spec": {**spec, "schedulingGates": gates}}
    )
    pod = placement_reading.pod(created)
    assert pod is not None
    assert exclusive.waits(pod)
    node = Node("n1", {"rack": "r1"}, allocatable=dict(pod.needs.requests))
    (found,) = choosing.place([Seeker(pod.job, "train-w-0", 1)], pods=[pod], nodes=[node], promised={}).assigned
    patch, path = exclusive.release_patch(pod, found.domain), paths.pod(namespace, pod.name)
    await api.patch(path, patch, content_type=client.Patch.MERGE)
    after = await api.get(path)
    assert after["spec"]["nodeSelector"] == {"rack": "r1"}
    assert after["spec"]["schedulingGates"] == [{"name": "other.example/gate"}]
    with pytest.raises(errors.ConflictError):
        await api.patch(path, patch, content_type=client.Patch.MERGE)


async def test_node_is_tainted_and_untainted(api: client.KubeClient, node: str) -> None:
    other = {"key": "maintenance", "effect": "NoSchedule"}
    created = await made(api, paths.NODES, {"metadata": {"name": node}, "spec": {"taints": [other]}})
    state = device_taints.node(created)
    fault = DeviceFault(node, state.created_at + 100.0, "Xid79")
    (kept_off,) = device_taints.changes([state], [fault])
    assert isinstance(kept_off, AddTaint)
    await api.patch(f"{paths.NODES}/{node}", device_taints.patch(kept_off), content_type=client.Patch.MERGE)
    tainted = device_taints.node(await api.get(f"{paths.NODES}/{node}"))
    assert tainted.tainted_at == fault.at
    assert [each["key"] for each in tainted.taints][-1] == device_taints.TAINT
    await api.patch(f"{paths.NODES}/{node}", device_taints.patch(RemoveTaint(tainted)), content_type=client.Patch.MERGE)
    after = device_taints.node(await api.get(f"{paths.NODES}/{node}"))
    assert not after.is_tainted
    assert other in [dict(each) for each in after.taints]
