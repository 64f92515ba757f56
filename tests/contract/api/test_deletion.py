"""Graceful deletion, preconditions, finalizers."""

import pytest

from common.kube import client, errors, paths
from tests.contract.api import objects


async def test_scheduled_pod_goes_in_two_steps(api: client.KubeClient, namespace: str, node: str) -> None:
    await api.create(objects.pods(namespace), objects.pod("a", node=node))
    path = paths.pod(namespace, "a")
    await api.delete(path)
    metadata = (await api.get(path))["metadata"]
    assert metadata["deletionGracePeriodSeconds"] == 30
    assert metadata["deletionTimestamp"] > metadata["creationTimestamp"]
    await api.delete(path, options={"gracePeriodSeconds": 0})
    with pytest.raises(errors.NotFoundError):
        await api.get(path)


async def test_grace_is_shortened_but_never_extended(api: client.KubeClient, namespace: str, node: str) -> None:
    await api.create(objects.pods(namespace), objects.pod("a", node=node))
    path = paths.pod(namespace, "a")
    for asked, left in ((20, 20), (5, 5), (10, 5)):
        await api.delete(path, options={"gracePeriodSeconds": asked})
        assert (await api.get(path))["metadata"]["deletionGracePeriodSeconds"] == left


async def test_unscheduled_pod_goes_at_once(api: client.KubeClient, namespace: str) -> None:
    await api.create(objects.pods(namespace), objects.pod("a"))
    await api.delete(paths.pod(namespace, "a"))
    with pytest.raises(errors.NotFoundError):
        await api.get(paths.pod(namespace, "a"))


async def test_deletion_of_another_uid_is_a_conflict(api: client.KubeClient, namespace: str) -> None:
    await api.create(objects.pods(namespace), objects.pod("a"))
    wrong = {"preconditions": {"uid": "00000000-0000-0000-0000-000000000000"}}
    with pytest.raises(errors.ConflictError):
        await api.delete(paths.pod(namespace, "a"), options=wrong)
    assert await api.get(paths.pod(namespace, "a"))


async def test_finalizer_holds_the_object_until_it_is_removed(api: client.KubeClient, namespace: str) -> None:
    await api.create(objects.pods(namespace), objects.pod("a", finalizers=["example.com/hold"]))
    path = paths.pod(namespace, "a")
    await api.delete(path)
    assert "deletionTimestamp" in (await api.get(path))["metadata"]
    await api.patch(path, {"metadata": {"finalizers": None}}, content_type=client.Patch.MERGE)
    with pytest.raises(errors.NotFoundError):
        await api.get(path)


async def test_foreground_deletion_leaves_a_finalizer_and_a_later_one_takes_it_back(
    api: client.KubeClient, namespace: str
) -> None:
    await api.create(objects.pods(namespace), objects.pod("a"))
    path = paths.pod(namespace, "a")
    await api.delete(path, options={"propagationPolicy": "Foreground"})
    await api.delete(path)  # says nothing, so what was said holds
    assert (await api.get(path))["metadata"]["finalizers"] == ["foregroundDeletion"]
    await api.delete(path, options={"propagationPolicy": "Background"})
    with pytest.raises(errors.NotFoundError):
        await api.get(path)


async def test_deletion_counts_as_a_change_of_what_is_wanted(api: client.KubeClient, namespace: str) -> None:
    await api.create(objects.pods(namespace), objects.pod("a", finalizers=["example.com/hold"]))
    path = paths.pod(namespace, "a")
    await api.delete(path)
    assert (await api.get(path))["metadata"]["generation"] == 2
    await api.delete(path)
    assert (await api.get(path))["metadata"]["generation"] == 2


async def test_unknown_policy_is_refused(api: client.KubeClient, namespace: str) -> None:
    await api.create(objects.pods(namespace), objects.pod("a"))
    with pytest.raises(errors.InvalidError, match="propagationPolicy"):
        await api.delete(paths.pod(namespace, "a"), options={"propagationPolicy": "Sideways"})
