"""Jobs: what the server fills in, what may change of them and when, their status, and how they go."""

from typing import Any

import pytest

from common.kube import client, errors
from tests.contract.api import objects

Json = dict[str, Any]

CONTAINERS = [{"name": "worker", "image": "busybox:1"}]


def job(name: str = "train", *, labels: Json | None = None, **spec: Any) -> Json:
    metadata = {"labels": labels} if labels else {}
    template = {"metadata": metadata, "spec": {"restartPolicy": "Never", "containers": CONTAINERS}}
    return {"metadata": {"name": name}, "spec": {**spec, "template": template}}


def stopped(**more: Any) -> Json:
    return {"active": 0, "conditions": [objects.condition("Suspended")], **more}


async def made(api: client.KubeClient, namespace: str, **spec: Any) -> str:
    """Return the path of a new Job."""
    await api.create(objects.jobs(namespace), job(**spec))
    return f"{objects.jobs(namespace)}/train"


async def test_defaults(api: client.KubeClient, namespace: str) -> None:
    spec = (await api.create(objects.jobs(namespace), job()))["spec"]
    assert (spec["parallelism"], spec["completions"], spec["backoffLimit"]) == (1, 1, 6)
    assert (spec["completionMode"], spec["podReplacementPolicy"]) == ("NonIndexed", "TerminatingOrFailed")
    assert (spec["suspend"], spec["manualSelector"]) == (False, False)
    assert spec["template"]["spec"]["terminationGracePeriodSeconds"] == 30
    assert "enableServiceLinks" not in spec["template"]["spec"]


async def test_defaults_follow_what_is_said(api: client.KubeClient, namespace: str) -> None:
    body = job(completionMode="Indexed", completions=3, backoffLimitPerIndex=1)
    spec = (await api.create(objects.jobs(namespace), body))["spec"]
    assert (spec["parallelism"], spec["completions"], spec["backoffLimit"]) == (1, 3, 2**31 - 1)
    rule = {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [3]}}
    body = job("other", parallelism=2, podFailurePolicy={"rules": [rule]})
    spec = (await api.create(objects.jobs(namespace), body))["spec"]
    assert spec["podReplacementPolicy"] == "Failed"
    assert "completions" not in spec


async def test_pods_are_selected_by_labels_of_the_job_alone(api: client.KubeClient, namespace: str) -> None:
    created = await api.create(objects.jobs(namespace), job(labels={"app": "x"}))
    uid, labels = created["metadata"]["uid"], created["spec"]["template"]["metadata"]["labels"]
    assert created["metadata"]["labels"] == labels  # as it has none of its own
    assert created["spec"]["selector"] == {"matchLabels": {"batch.kubernetes.io/controller-uid": uid}}
    assert labels == {
        "app": "x",
        "job-name": "train",
        "controller-uid": uid,
        "batch.kubernetes.io/job-name": "train",
        "batch.kubernetes.io/controller-uid": uid,
    }


async def test_suspend_and_annotations_change_at_any_time(api: client.KubeClient, namespace: str) -> None:
    path = await made(api, namespace)
    patch = {"metadata": {"annotations": {"a": "1"}}, "spec": {"suspend": True}}
    changed = await api.patch(path, patch, content_type=client.Patch.MERGE)
    assert changed["spec"]["suspend"] is True
    assert changed["metadata"]["generation"] == 2


async def test_template_of_a_running_job_is_fixed(api: client.KubeClient, namespace: str) -> None:
    path = await made(api, namespace)
    selector = {"spec": {"template": {"spec": {"nodeSelector": {"pool": "a"}}}}}
    with pytest.raises(errors.InvalidError, match="field is immutable"):
        await api.patch(path, selector, content_type=client.Patch.MERGE)
    with pytest.raises(errors.InvalidError, match="field is immutable"):
        await api.patch(path, {"spec": {"completions": 2}}, content_type=client.Patch.MERGE)


async def test_placement_of_a_suspended_job_changes_together_with_its_resume(
    api: client.KubeClient, namespace: str
) -> None:
    path = await made(api, namespace, suspend=True)
    parts = {
        "nodeSelector": {"pool": "a"},
        "tolerations": [{"key": "gpu", "operator": "Exists"}],
        "schedulingGates": [{"name": "example.com/wait"}],
    }
    template = {"metadata": {"annotations": {"a": "1"}, "labels": {"b": "2"}}, "spec": parts}
    changed = await api.patch(path, {"spec": {"suspend": False, "template": template}}, content_type=client.Patch.MERGE)
    now = changed["spec"]["template"]
    assert {key: now["spec"][key] for key in parts} == parts
    assert (now["metadata"]["annotations"], now["metadata"]["labels"]["b"]) == ({"a": "1"}, "2")


async def test_placement_is_fixed_until_a_started_job_has_stopped(api: client.KubeClient, namespace: str) -> None:
    path = await made(api, namespace)
    await api.patch_status(path, {"status": {"startTime": "2026-01-01T00:00:00Z", "active": 1}})
    await api.patch(path, {"spec": {"suspend": True}}, content_type=client.Patch.MERGE)
    selector = {"spec": {"template": {"spec": {"nodeSelector": {"pool": "a"}}}}}
    with pytest.raises(errors.InvalidError, match="field is immutable"):
        await api.patch(path, selector, content_type=client.Patch.MERGE)
    await api.patch_status(path, {"status": stopped()})
    await api.patch(path, selector, content_type=client.Patch.MERGE)


async def test_start_time_of_a_suspended_job_can_be_taken_back(api: client.KubeClient, namespace: str) -> None:
    path = await made(api, namespace, suspend=True)
    await api.patch_status(path, {"status": {"startTime": "2026-01-01T00:00:00Z"}})
    cleared = await api.patch_status(path, {"status": {"startTime": None}}, content_type=client.Patch.MERGE)
    assert "startTime" not in cleared["status"]
    selector = {"spec": {"template": {"spec": {"nodeSelector": {"pool": "a"}}}}}
    await api.patch(path, selector, content_type=client.Patch.MERGE)


async def test_whole_status_is_replaced_with_a_version_as_condition(api: client.KubeClient, namespace: str) -> None:
    path = await made(api, namespace)
    read = await api.get(path)
    written = await api.update(f"{path}/status", {**read, "status": {"active": 1, "ready": 1}})
    assert written["status"] == {"active": 1, "ready": 1}
    assert written["spec"] == read["spec"]
    with pytest.raises(errors.ConflictError):
        await api.update(f"{path}/status", {**read, "status": {"active": 2}})


async def test_deletion_without_a_word_orphans_the_pods(api: client.KubeClient, namespace: str) -> None:
    path = await made(api, namespace)
    await api.delete(path)
    assert (await api.get(path))["metadata"]["finalizers"] == ["orphan"]


async def test_deletion_in_the_foreground_waits_for_the_collector(api: client.KubeClient, namespace: str) -> None:
    path = await made(api, namespace)
    await api.delete(path, options={"propagationPolicy": "Foreground"})
    left = await api.get(path)
    assert left["metadata"]["finalizers"] == ["foregroundDeletion"]
    assert left["metadata"]["deletionGracePeriodSeconds"] == 0
    assert left["metadata"]["generation"] == 2
    with pytest.raises(errors.ConflictError):
        await api.create(objects.jobs(namespace), job())
    await api.patch(path, {"metadata": {"finalizers": None}}, content_type=client.Patch.MERGE)
    with pytest.raises(errors.NotFoundError):
        await api.get(path)
    await api.create(objects.jobs(namespace), job())
