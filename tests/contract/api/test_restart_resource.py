"""The Restart resource: what it accepts, what it refuses with which messages, and how it reads."""

import asyncio
from typing import Any

import pytest

from hack.devnode import kubernetes
from kubemend.common.kube import client, errors
from kubemend.controller.restarts import names
from tests.contract.api import restarts
from tests.control_plane import ControlPlane

GANG = {"kind": "Job", "name": "train"}
POD = {"apiVersion": "v1", "kind": "Pod", "name": "train-0"}
JOB = {"apiVersion": "batch/v1", "kind": "Job", "name": "train"}


@pytest.fixture(autouse=True)
async def resource(api: client.KubeClient) -> None:
    """The definition is installed."""
    await restarts.install(api)


async def create(api: client.KubeClient, namespace: str, **spec: Any) -> dict[str, Any]:
    return await api.create(names.collection(namespace), restarts.restart("a", **spec))


@pytest.mark.parametrize(
    "spec",
    [
        {"gang": GANG},
        {"gang": {"kind": "Gang", "name": "My_Gang.1"}},
        {"targetRef": JOB},
        {"targetRef": POD},
        {"targetRef": {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "name": "train"}},
        {"gang": GANG, "maxUnavailable": 1},
        {"gang": GANG, "maxUnavailable": "100%"},
        {"gang": GANG, "containers": ["trainer", "a-1"], "strategy": "swap", "gracePeriodSeconds": 0},
        {"gang": GANG, "timeoutSeconds": 600, "ttlSecondsAfterFinished": 0, "reason": "a new dataset"},
    ],
)
async def test_valid_requests_are_accepted(api: client.KubeClient, namespace: str, spec: dict[str, Any]) -> None:
    assert (await create(api, namespace, **spec))["spec"] == spec


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ({"gang": {"kind": "Deployment", "name": "x"}}, "Unsupported value"),
        ({"gang": {"name": "x"}}, "spec.gang.kind: Required value"),
        ({"gang": {"kind": "Job", "name": ""}}, "at least 1 chars"),
        ({"gang": GANG, "strategy": "reboot"}, 'Unsupported value: "reboot"'),
        ({"gang": GANG, "gracePeriodSeconds": -1}, "greater than or equal to 0"),
        ({"gang": GANG, "gracePeriodSeconds": "5"}, "must be of type integer"),
        ({"gang": GANG, "timeoutSeconds": 0}, "greater than or equal to 1"),
        ({"gang": GANG, "ttlSecondsAfterFinished": 10**9}, "less than or equal to 31536000"),
        ({"gang": GANG, "reason": "x" * 1025}, "may not be"),
        ({"gang": GANG, "containers": ["a", "a"]}, "Duplicate value"),
    ],
)
async def test_requests_that_the_schema_forbids_are_refused(
    api: client.KubeClient, namespace: str, spec: dict[str, Any], reason: str
) -> None:
    with pytest.raises(errors.InvalidError, match=reason):
        await create(api, namespace, **spec)


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ({}, "exactly one of gang and targetRef"),
        ({"gang": GANG, "targetRef": JOB}, "exactly one of gang and targetRef"),
        ({"targetRef": {**JOB, "apiVersion": "v1"}}, "apiVersion does not match kind"),
        ({"targetRef": {**JOB, "kind": "JobSet"}}, "apiVersion does not match kind"),
        ({"targetRef": {**POD, "apiVersion": "batch/v1"}}, "apiVersion does not match kind"),
        ({"targetRef": {**POD, "name": "train-0,spec.nodeName=x"}}, "a pod's name is a DNS subdomain"),
        ({"targetRef": {**POD, "name": "../secrets"}}, "a pod's name is a DNS subdomain"),
        ({"targetRef": {**JOB, "kind": "Deployment"}}, "kind is Job, JobSet or Pod"),
        ({"gang": GANG, "maxUnavailable": 0}, "a number from 1, or a percentage"),
        ({"gang": GANG, "maxUnavailable": "0%"}, "a number from 1, or a percentage"),
        ({"gang": GANG, "maxUnavailable": "101%"}, "a number from 1, or a percentage"),
        ({"gang": GANG, "maxUnavailable": "half"}, "a number from 1, or a percentage"),
        ({"gang": GANG, "containers": ["Trainer"]}, "a container's name is a DNS label"),
        ({"gang": GANG, "containers": ["-a"]}, "a container's name is a DNS label"),
    ],
)
async def test_invalid_requests_are_refused_with_the_reason(
    api: client.KubeClient, namespace: str, spec: dict[str, Any], reason: str
) -> None:
    body = {**restarts.restart("a"), "spec": spec}
    with pytest.raises(errors.InvalidError, match=reason):
        await api.create(names.collection(namespace), body)


@pytest.mark.parametrize(
    "change",
    [
        {"gang": {"name": "other"}},
        {"gang": None, "targetRef": JOB},
        {"containers": ["a"]},
        {"strategy": None},
        {"strategy": "reset"},
        {"gracePeriodSeconds": 1},
        {"maxUnavailable": 2},
        {"reason": "another"},
        {"timeoutSeconds": 1},
    ],
)
async def test_a_request_cannot_be_changed(api: client.KubeClient, namespace: str, change: dict[str, Any]) -> None:
    await create(api, namespace, gang=GANG, strategy="swap")
    with pytest.raises(errors.InvalidError, match="create another Restart instead"):
        await api.patch(names.path(namespace, "a"), {"spec": change}, content_type=client.Patch.MERGE)


async def test_only_its_time_to_live_can_be_changed(api: client.KubeClient, namespace: str) -> None:
    await create(api, namespace, gang=GANG, strategy="swap", maxUnavailable="10%", containers=["a"])
    for ttl in (60, None):
        change = {"spec": {"ttlSecondsAfterFinished": ttl}}
        changed = await api.patch(names.path(namespace, "a"), change, content_type=client.Patch.MERGE)
        assert changed["spec"].get("ttlSecondsAfterFinished") == ttl


async def test_status_is_separate_and_validated_and_pruned(api: client.KubeClient, namespace: str) -> None:
    await create(api, namespace, gang=GANG)
    path = names.path(namespace, "a")
    status = {"phase": "Done", "slowest": [{"member": "train-0", "phases": {"stop": 12}}], "mood": "good"}
    written = await api.patch_status(path, {"status": status, "spec": {}}, content_type=client.Patch.MERGE)
    assert written["status"] == {"phase": "Done", "slowest": [{"member": "train-0", "phases": {"stop": 12}}]}
    assert (written["metadata"]["generation"], written["spec"]) == (1, {"gang": GANG})
    for wrong in ({"phase": "Great"}, {"slowest": [{"node": "x"}]}, {"attempt": "1"}):
        with pytest.raises(errors.InvalidError):
            await api.patch_status(path, {"status": wrong}, content_type=client.Patch.MERGE)


async def test_controllers_status_is_stored_whole(api: client.KubeClient, namespace: str) -> None:
    await create(api, namespace, gang=GANG)
    failure = {"member": "train-1", "node": "node-2", "reason": "NotOptedIn", "message": "it did not ask for it"}
    slowest = {"member": "train-0", "node": "node-1", "stoppedMilliseconds": 9, "runningMilliseconds": 70}
    status = {
        **restarts.done(restarts.new_round(namespace)),
        "observedGeneration": 1,
        "startTime": "2026-01-31T07:59:59Z",
        "slowest": [{**slowest, "startedLate": True, "phases": {"stop": 5, "create": 20}}],
        "failures": [failure],
        "timings": {
            "stopMilliseconds": 1, "recreateMilliseconds": 2, "releaseMilliseconds": 3, "totalMilliseconds": 4,
        },
    }  # fmt: skip
    status["trigger"]["time"] = "2026-01-31T07:59:58Z"
    written = await api.patch_status(names.path(namespace, "a"), {"status": status}, content_type=client.Patch.MERGE)
    assert written["status"] == status


async def test_kubectl_shows_failures_and_durations(
    api: client.KubeClient, namespace: str, control_plane: ControlPlane
) -> None:
    new = restarts.new_round(namespace)
    await api.create(names.collection(namespace), new.body("train-1-abcd"))
    body = {"status": restarts.done(new)}
    await api.patch_status(names.path(namespace, "train-1-abcd"), body, content_type=client.Patch.MERGE)
    process = await asyncio.create_subprocess_exec(
        kubernetes.program("kubectl"), "--kubeconfig", control_plane.kubeconfig, "--namespace", namespace, "get", "rst",
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    output, _ = await process.communicate()
    header, line = output.decode().splitlines()
    assert header.split() == ["NAME", "GANG", "ATTEMPT", "PHASE", "CAUSE", "DECISION", "MEMBERS", "TOOK-MS", "AGE"]
    assert line.split()[:-1] == ["train-1-abcd", "train", "1", "Done", "Xid31", "InPlace", "4", "412"]
