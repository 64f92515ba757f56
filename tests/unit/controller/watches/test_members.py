"""Members while the API server fails, and their cost."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator

import pytest

from kubemend.common import aio, gangs
from kubemend.common.components import ComponentState, ComponentStatus
from kubemend.common.gangs import GangKey
from kubemend.common.kube import client, paths, shares
from kubemend.controller.watches import members as watches
from kubemend.controller.watches.members import MemberChange, MemberChangeKind, Members
from tests.control_plane import Tenant
from tests.fakes.listing_api import ListingApi
from tests.unit.reporters.running import started

LABELS = (gangs.GANG, gangs.JOBSET_NAME, gangs.JOB_INDEX, gangs.LWS_GROUP)


class Env:
    """Watched members, the recorded changes, and a client of the same server."""

    def __init__(self, tenant: Tenant, api: client.KubeClient) -> None:
        self.server = tenant.server
        self.namespace = tenant.namespace
        self.pods = tenant.of("pods")
        self.api = api
        self.reports: list[ComponentStatus] = []
        self.changes: asyncio.Queue[MemberChange] = asyncio.Queue()
        self.members = Members(api=api, report=self.reports.append, backoff=lambda: aio.Backoff(first=0.01, limit=0.05))
        self.members.subscribe(self.changes.put_nowait)

    async def create(self, name: str) -> None:
        spec = {"nodeName": "n", "containers": [{"name": "c", "image": "i"}]}
        await self.api.create(self.pods, {"metadata": {"name": name, "labels": {gangs.GANG: "mine"}}, "spec": spec})

    async def change(self, kind: MemberChangeKind) -> MemberChange:
        async with asyncio.timeout(60):
            while (change := await self.changes.get()).kind is not kind:
                pass
        return change


@pytest.fixture
async def env(tenant: Tenant) -> AsyncIterator[Env]:
    async with tenant.client() as api:
        found = Env(tenant, api)
        task = asyncio.create_task(found.members.run())
        await found.members.wait_synced()
        yield found
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def test_vanished_pod_is_not_gone_before_server_confirms(env: Env) -> None:
    await env.create("a")
    appeared = await env.change(MemberChangeKind.APPEARED)
    env.server.fail_next(10, status=503, method="GET", path="/pods/a")
    await env.api.patch(f"{env.pods}/a", {"metadata": {"labels": {gangs.GANG: None}}})
    left = await env.change(MemberChangeKind.LEFT)
    assert left.member.pod == appeared.member.pod
    assert env.server.hits == 10
    assert env.members.by_uid(left.member.pod.uid) is None
    assert env.members.of_gang(GangKey(env.namespace, "Gang", "mine")) == {}


async def test_deleting_pod_with_changed_labels_is_not_gone(env: Env) -> None:
    await env.create("a")
    await env.change(MemberChangeKind.APPEARED)
    await env.api.delete(f"{env.pods}/a", options={"gracePeriodSeconds": 600})
    assert (await env.change(MemberChangeKind.CHANGED)).member.deleting
    await env.api.patch(f"{env.pods}/a", {"metadata": {"labels": {gangs.GANG: None}}})
    async with asyncio.timeout(60):
        assert (await env.changes.get()).kind is MemberChangeKind.LEFT


async def test_all_watches_are_one_component(env: Env) -> None:
    assert env.reports[-1].state is ComponentState.READY
    assert {report.state for report in env.reports[:-1]} <= {ComponentState.STARTING}


async def test_each_gang_pod_is_in_exactly_one_watch(tenant: Tenant) -> None:
    kinds = [(present, value) for present in range(16) for value in ("x", gangs.ALONE)]
    wanted = {f"pod-{number}": _labels(present, value) for number, (present, value) in enumerate(kinds)}
    matching: Counter[str] = Counter()
    async with tenant.client() as api:
        for name, labels in wanted.items():
            spec = {"nodeName": "n", "containers": [{"name": "c", "image": "i"}]}
            await api.create(tenant.of("pods"), {"metadata": {"name": name, "labels": labels}, "spec": spec})
        for selector in watches.SELECTORS:
            found = await api.list(tenant.of("pods"), params={"labelSelector": selector})
            matching.update(each["metadata"]["name"] for each in found.items)
    for name, labels in wanted.items():
        assert matching[name] == (gangs.key(tenant.namespace, labels) is not None), labels


def _labels(present: int, value: str) -> dict[str, str]:
    """Return labels of which these (a bit each) are present; the gang's has this value."""
    labels = {name: "0" for bit, name in enumerate(LABELS) if present & (1 << bit)}
    if gangs.GANG in labels:
        labels[gangs.GANG] = value
    if gangs.JOB_INDEX in labels:
        labels[gangs.JOB_NAME] = "train"
    if gangs.LWS_GROUP in labels:
        labels[gangs.LWS_NAME] = "served"
    return labels


async def test_oversized_member_is_kept_by_its_identity_alone() -> None:
    owner = {"apiVersion": "v1", "kind": "K", "name": "x" * 10**6, "uid": "u", "controller": True}
    about = {"namespace": "ml", "name": "huge", "uid": "u1", "labels": {gangs.GANG: "mine"}}
    huge = {"metadata": {**about, "ownerReferences": [owner]}}
    members = Members(api=ListingApi({paths.PODS: [huge]}), report=lambda _: None)
    async with started(members):
        await members.wait_synced()
        (member,) = members.of_gang(GangKey("ml", "Gang", "mine")).values()
    assert member.pod.name == "huge"
    assert shares.weight(member) < 5000
