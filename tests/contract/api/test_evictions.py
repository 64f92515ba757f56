"""Requests for the eviction of members, as the controller's watch finds them.

The API server of these tests has no EvictionRequests of its own; a custom resource has their form of Kubernetes 1.37.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

import pytest

from kubemend.common import aio, gangs
from kubemend.common.components import ComponentState, ComponentStatus
from kubemend.common.kube import client, errors, paths
from kubemend.controller.model.members import Member, PodUid
from kubemend.controller.watches.evictions import Evictions, Target
from kubemend.controller.watches.members import Members
from tests import eventually
from tests.contract.api import objects, restarts
from tests.control_plane import Tenant

GROUP, VERSION = "lifecycle.k8s.io", "v1alpha1"
NAME: Final = f"evictionrequests.{GROUP}"
ANYTHING: Final = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
DEFINITION: Final = {
    "metadata": {
        "name": NAME,
        "annotations": {"api-approved.kubernetes.io": "unapproved, for tests"},
    },
    "spec": {
        "group": GROUP,
        "scope": "Namespaced",
        "names": {"plural": "evictionrequests", "singular": "evictionrequest", "kind": "EvictionRequest"},
        "versions": [
            {
                "name": VERSION,
                "served": True,
                "storage": True,
                "subresources": {"status": {}},
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": ANYTHING, "status": ANYTHING}}},
            }
        ],
    },
}


class Env:
    """A member, and the watch of the requests for its eviction."""

    def __init__(self, api: client.KubeClient, namespace: str) -> None:
        self.api = api
        self.namespace = namespace
        self.reports: list[ComponentStatus] = []
        self.evictions = Evictions(
            api=api,
            report=self.reports.append,
            backoff=aio.Backoff(first=0.05, limit=0.2),
            look_again=0.5,
        )
        self.members = Members(api=api, report=lambda _: None, eviction_requested=self.evictions.requested)
        self.evictions.subscribe(self.members.eviction_changed)
        self.notified: list[Target] = []
        self.evictions.subscribe(self.notified.append)
        self.uid = PodUid("")

    async def create(self) -> None:
        wanted = objects.pod("a", node="node-1", labels={gangs.GANG: "mine"})
        self.uid = PodUid((await self.api.create(objects.pods(self.namespace), wanted))["metadata"]["uid"])
        await eventually.true(lambda: self.members.by_uid(self.uid) is not None)

    async def request(self, name: str, *, namespace: str = "", uid: str = "") -> None:
        body = {
            "apiVersion": f"{GROUP}/{VERSION}",
            "kind": "EvictionRequest",
            "metadata": {"name": name},
            "spec": {
                "target": {"pod": {"name": "a", "uid": uid or self.uid}},
                "requester": "acme.io/drain",
                "intent": "Eviction",
            },
        }
        await self.api.create(requests(namespace or self.namespace), body)

    async def change(self, name: str, patch: dict[str, Any]) -> None:
        write = self.api.patch_status if "status" in patch else self.api.patch
        await write(f"{requests(self.namespace)}/{name}", patch, content_type=client.Patch.MERGE)

    async def until(self, predicate: Callable[[Member], bool]) -> None:
        await eventually.true(lambda: (found := self.members.by_uid(self.uid)) is not None and predicate(found))


def requests(namespace: str) -> str:
    return paths.collection("evictionrequests", namespace=namespace, group=GROUP, version=VERSION)


def is_requested(member: Member) -> bool:
    return member.eviction_requested


def is_not_requested(member: Member) -> bool:
    return not member.eviction_requested


@contextlib.asynccontextmanager
async def served(api: client.KubeClient) -> AsyncIterator[None]:
    """Have the API server serve the resource for the length of the block."""
    whole = paths.collection("evictionrequests", group=GROUP, version=VERSION)
    definition = f"{restarts.DEFINITIONS}/{NAME}"

    async def has(path: str) -> bool:
        try:
            await api.get(path)
        except errors.NotFoundError:
            return False
        return True

    async def is_gone() -> bool:
        return not await has(definition)

    await api.create(restarts.DEFINITIONS, DEFINITION)
    try:
        await eventually.true(lambda: has(whole))
        yield
    finally:
        await api.delete(definition)
        await eventually.true(is_gone)


@pytest.fixture
async def env(tenant: Tenant) -> AsyncIterator[Env]:
    async with tenant.client() as api:
        found = Env(api, tenant.namespace)
        async with asyncio.TaskGroup() as tasks:
            following = [tasks.create_task(found.members.run()), tasks.create_task(found.evictions.run())]
            await found.members.wait_synced()
            await found.create()
            yield found
            for each in following:
                each.cancel()


async def test_server_without_requests_leaves_the_component_idle(env: Env) -> None:
    await eventually.true(lambda: bool(env.reports))
    assert {report.state for report in env.reports} == {ComponentState.IDLE}
    await env.until(is_not_requested)


async def test_member_is_requested_until_each_request_is_withdrawn_or_over(env: Env) -> None:
    async with served(env.api):
        await env.request("drain")
        await env.until(is_requested)
        await eventually.true(lambda: env.reports[-1].state is ComponentState.READY)
        await env.request("autoscaler")
        await env.change("drain", {"spec": {"intent": "Withdrawn"}})
        await eventually.true(lambda: len(env.notified) == 3)
        await env.until(is_requested)
        failed = objects.condition("Failed") | {"reason": "NoFurtherResponder"}
        await env.change("autoscaler", {"status": {"conditions": [failed]}})
        await env.until(is_not_requested)
        await env.request("another")
        await env.until(is_requested)
        await env.api.delete(f"{requests(env.namespace)}/another")
        await env.until(is_not_requested)


async def test_request_of_another_namespace_or_for_another_pod_means_nothing(env: Env) -> None:
    async with served(env.api):
        other = await env.api.create(paths.collection("namespaces"), {"metadata": {"generateName": "other-"}})
        await env.request("theirs", namespace=other["metadata"]["name"])
        await env.request("former", uid="11111111-2222-3333-4444-555555555555")
        await eventually.true(lambda: len(env.notified) == 2)
        assert {each.namespace for each in env.notified} == {env.namespace, other["metadata"]["name"]}
        await env.until(is_not_requested)


async def test_requests_mean_nothing_once_the_server_has_none(env: Env) -> None:
    async with served(env.api):
        await env.request("drain")
        await env.until(is_requested)
    await env.until(is_not_requested)
    await eventually.true(lambda: env.reports[-1].state is ComponentState.IDLE)
