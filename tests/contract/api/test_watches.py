"""Watches: history, selection, bookmarks, the end."""

import contextlib

import pytest

from common.kube import client, errors, paths, watching
from hack.devnode.api import ApiServer
from tests.contract.api import objects


async def _collect(
    api: client.KubeClient, path: str, *, count: int, version: str, **params: str
) -> list[tuple[str, str]]:
    """Return type and name of the first ``count`` events that are no bookmarks."""
    found: list[tuple[str, str]] = []
    async with contextlib.aclosing(api.watch(path, params=params, resource_version=version)) as events:
        async for event in events:
            if event.type is not watching.EventType.BOOKMARK:
                found.append((event.type.name, event.object["metadata"]["name"]))
            if len(found) == count:
                break
    return found


async def test_watch_tells_what_happened_since_a_list(api: client.KubeClient, namespace: str) -> None:
    path = objects.pods(namespace)
    await api.create(path, objects.pod("before"))
    version = (await api.list(path)).resource_version
    await api.create(path, objects.pod("a"))
    await api.patch(paths.pod(namespace, "a"), {"metadata": {"labels": {"x": "1"}}})
    await api.delete(paths.pod(namespace, "a"))
    found = [kind for kind, name in await _collect(api, path, count=4, version=version) if name == "a"]
    assert found == ["ADDED", "MODIFIED", "MODIFIED", "DELETED"]  # the deletion is announced first


async def test_watch_without_a_version_begins_with_the_present(api: client.KubeClient, namespace: str) -> None:
    await api.create(objects.pods(namespace), objects.pod("a"))
    await api.create(objects.pods(namespace), objects.pod("b"))
    found = await _collect(api, objects.pods(namespace), count=2, version="")
    assert sorted(found) == [("ADDED", "a"), ("ADDED", "b")]


async def test_objects_enter_and_leave_a_selection(api: client.KubeClient, namespace: str) -> None:
    path = objects.pods(namespace)
    version = (await api.list(path)).resource_version
    await api.create(path, objects.pod("a"))
    for value in ("1", "2"):
        await api.patch(paths.pod(namespace, "a"), {"metadata": {"labels": {"x": value}}})
    found = await _collect(api, path, count=2, version=version, labelSelector="x=1")
    assert found == [("ADDED", "a"), ("DELETED", "a")]


async def test_watch_of_one_node_sees_only_its_pods(api: client.KubeClient, namespace: str, node: str) -> None:
    version = (await api.list(paths.PODS)).resource_version
    await api.create(objects.pods(namespace), objects.pod("elsewhere", node=f"{node}-2"))
    await api.create(objects.pods(namespace), objects.pod("here", node=node))
    selector = f"spec.nodeName={node}"
    assert await _collect(api, paths.PODS, count=1, version=version, fieldSelector=selector) == [("ADDED", "here")]


async def test_deleted_event_carries_the_last_state_under_a_new_version(api: client.KubeClient, namespace: str) -> None:
    path = objects.leases(namespace)
    created = await api.create(path, {"metadata": {"name": "a"}, "spec": {"holderIdentity": "x"}})
    version = created["metadata"]["resourceVersion"]
    await api.delete(f"{path}/a")
    async with contextlib.aclosing(api.watch(path, resource_version=version)) as events:
        event = await anext(events)
    assert event.type is watching.EventType.DELETED
    assert event.object["spec"] == created["spec"]
    assert int(event.resource_version) > int(version)


async def test_quiet_watch_ends_by_itself(api: client.KubeClient, namespace: str) -> None:
    """Bookmarks may come before the end, or not: the real server promises none."""
    version = (await api.list(objects.pods(namespace))).resource_version
    events = [event async for event in api.watch(objects.pods(namespace), resource_version=version)]
    assert {event.type for event in events} <= {watching.EventType.BOOKMARK}
    assert all(int(event.resource_version) >= int(version) for event in events)


async def test_version_that_is_too_old_is_gone(own_server: ApiServer, own_api: client.KubeClient) -> None:
    path = objects.pods("default")
    version = (await own_api.list(path)).resource_version
    await own_api.create(path, objects.pod("a"))
    await own_server.forget_history()
    with pytest.raises(errors.GoneError):
        await _collect(own_api, path, count=1, version=version)
