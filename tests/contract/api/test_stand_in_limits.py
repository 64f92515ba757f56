"""The stand-in alone: what it cannot do honestly it says, and what tests may ask of it."""

import contextlib
from pathlib import Path

import pytest

from common.kube import client, errors, paths, watching
from hack.devnode.api import standin
from tests.contract.api import objects


@pytest.fixture
def real_or_none() -> None:
    """Only the stand-in."""


async def test_access_reviews_of_others_are_refused(api: client.KubeClient) -> None:
    with pytest.raises(errors.InvalidError, match="no users and no RBAC"):
        await api.create(paths.collection("subjectaccessreviews", group="authorization.k8s.io"), {"spec": {}})


async def test_changes_of_a_pods_spec_are_refused(api: client.KubeClient, namespace: str) -> None:
    await api.create(objects.pods(namespace), objects.pod("a"))
    with pytest.raises(errors.InvalidError, match="validation"):
        await api.patch(paths.pod(namespace, "a"), {"spec": {"activeDeadlineSeconds": 5}})


async def test_other_subresources_and_patch_directives_are_refused(api: client.KubeClient, namespace: str) -> None:
    await api.create(objects.pods(namespace), objects.pod("a"))
    with pytest.raises(errors.InvalidError, match="pods/eviction"):
        await api.create(f"{paths.pod(namespace, 'a')}/eviction", {})
    with pytest.raises(errors.InvalidError, match="retainKeys"):
        await api.patch(paths.pod(namespace, "a"), {"metadata": {"$retainKeys": ["name"]}})


async def test_history_is_bounded(tmp_path: Path) -> None:
    async with (
        standin.StandIn(kubeconfig=tmp_path / "kubeconfig", history=2) as server,
        client.connect(kubeconfig=server.kubeconfig) as api,
    ):
        version = (await api.list(paths.PODS)).resource_version
        for name in "abc":
            await api.create(objects.pods("default"), objects.pod(name))
        with pytest.raises(errors.GoneError):
            await anext(api.watch(paths.PODS, resource_version=version))


async def test_bookmarks_come_in_time(api: client.KubeClient, namespace: str) -> None:
    version = (await api.list(objects.pods(namespace))).resource_version
    async with contextlib.aclosing(api.watch(objects.pods(namespace), resource_version=version)) as events:
        event = await anext(events)
    assert event.type is watching.EventType.BOOKMARK
    assert event.resource_version == version


async def test_faults_can_be_scripted_from_another_process(api: client.KubeClient, namespace: str) -> None:
    await api.create("/stand-in/fail", {"count": 1, "status": 418, "method": "GET", "path": f"/{namespace}/pods"})
    with pytest.raises(errors.KubeError) as caught:
        await api.list(objects.pods(namespace))
    assert caught.value.status == 418
    await api.list(objects.pods(namespace))
