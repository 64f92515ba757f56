"""Lists in pages: complete, as of one moment, and expired in the end."""

import contextlib

import pytest

from kubemend.common.kube import client, errors
from tests.contract.api import objects
from tests.control_plane import Tenant


async def test_pages_are_the_whole_list_in_order(api: client.KubeClient, namespace: str) -> None:
    for name in "abcde":
        await api.create(objects.pods(namespace), objects.pod(name))
    pages = [page async for page in api.pages(objects.pods(namespace), limit=2)]
    assert [objects.names(page.items) for page in pages] == [["a", "b"], ["c", "d"], ["e"]]
    assert {page.resource_version for page in pages} == {(await api.list(objects.pods(namespace))).resource_version}


async def test_pages_show_the_moment_of_the_first(api: client.KubeClient, namespace: str) -> None:
    for name in "abc":
        await api.create(objects.pods(namespace), objects.pod(name))
    async with contextlib.aclosing(api.pages(objects.pods(namespace), limit=2)) as pages:
        first = await anext(pages)
        await api.create(objects.pods(namespace), objects.pod("d"))
        second = await anext(pages)
    assert (objects.names(first.items), objects.names(second.items)) == (["a", "b"], ["c"])
    assert second.resource_version == first.resource_version


async def test_pages_are_narrowed_by_labels(api: client.KubeClient, namespace: str) -> None:
    for name in "abcd":
        await api.create(objects.pods(namespace), objects.pod(name, labels={"odd": str(name in "ac")}))
    pages = api.pages(objects.pods(namespace), params={"labelSelector": "odd=True"}, limit=1)
    found = [objects.names(page.items) async for page in pages]
    assert [names for names in found if names] == [["a"], ["c"]]  # the real one may end with an empty page


async def test_forgotten_continuation_is_gone(tenant: Tenant, api: client.KubeClient) -> None:
    for name in "abc":
        await api.create(tenant.of("pods"), objects.pod(name))
    tenant.server.fail_next(1, status=410, path="continue=")
    with pytest.raises(errors.GoneError):
        _ = [page async for page in api.pages(tenant.of("pods"), limit=2)]


async def test_metadata_only_lists_and_watches_metadata(api: client.KubeClient, namespace: str) -> None:
    pods = objects.pods(namespace)
    await api.create(pods, objects.pod("a"))
    found = [page async for page in api.pages(pods, metadata_only=True)]
    [one] = found[0].items
    assert (one["metadata"]["name"], one["kind"]) == ("a", "PartialObjectMetadata")
    assert "spec" not in one
    events = api.watch(pods, resource_version=found[0].resource_version, metadata_only=True)
    async with contextlib.aclosing(events):
        await api.create(pods, objects.pod("b"))
        found = (await anext(events)).object
        assert (found["metadata"]["name"], found["kind"]) == ("b", "PartialObjectMetadata")
        assert "spec" not in found
