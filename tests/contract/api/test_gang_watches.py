"""Members and nodes as the controller's watches report them."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import pytest

from kubemend.common import aio, gangs
from kubemend.common.gangs import GangKey
from kubemend.common.kube import client, paths
from kubemend.controller.model.members import NodeName, PodUid
from kubemend.controller.watches.members import MemberChange, MemberChangeKind, Members
from kubemend.controller.watches.nodes import MAINTENANCE_PLANNED, OUT_OF_SERVICE, Nodes
from tests.contract.api import objects
from tests.control_plane import Tenant

SECONDS = 60.0
INDEXED = {gangs.JOB_NAME: "train", gangs.JOB_INDEX: "0"}
JOBSET = {gangs.JOBSET_NAME: "set", gangs.JOB_NAME: "set-workers-0", gangs.JOB_INDEX: "0"}


def quick() -> aio.Backoff:
    """Wait as briefly as a test can."""
    return aio.Backoff(first=0.05, limit=0.2)


class Watched:
    """Members that are watched, and the reports about those of one namespace."""

    def __init__(self, api: client.KubeClient, namespace: str) -> None:
        self.members = Members(api=api, report=lambda _: None, backoff=quick, following=quick)
        self.changes: list[tuple[str, str]] = []
        self._namespace = namespace
        self._news = asyncio.Event()
        self.members.subscribe(self._record)

    async def until(self, predicate: Callable[[], bool]) -> None:
        async with asyncio.timeout(SECONDS):
            while not predicate():
                self._news.clear()
                await self._news.wait()

    def _record(self, change: MemberChange) -> None:
        if change.member.pod.namespace == self._namespace:
            self.changes.append((change.kind.value, change.member.pod.name))
        self._news.set()


@contextlib.asynccontextmanager
async def watching(api: client.KubeClient, namespace: str) -> AsyncIterator[Watched]:
    found = Watched(api, namespace)
    task = asyncio.create_task(found.members.run())
    try:
        async with asyncio.timeout(SECONDS):
            await found.members.wait_synced()
        yield found
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


@pytest.fixture
async def watched(api: client.KubeClient, namespace: str) -> AsyncIterator[Watched]:
    async with watching(api, namespace) as found:
        yield found


async def create(
    api: client.KubeClient, namespace: str, name: str, labels: Mapping[str, str], *, node: str = ""
) -> PodUid:
    made = await api.create(objects.pods(namespace), objects.pod(name, node=node, labels=dict(labels)))
    return PodUid(made["metadata"]["uid"])


async def relabel(api: client.KubeClient, namespace: str, name: str, **labels: Any) -> None:
    await api.patch(paths.pod(namespace, name), {"metadata": {"labels": labels}})


async def test_members_are_found_by_each_of_their_labels(
    api: client.KubeClient, namespace: str, watched: Watched, node: str
) -> None:
    label = await create(api, namespace, "a", {gangs.GANG: "mine"}, node=node)
    both = await create(api, namespace, "b", {gangs.GANG: "mine", **INDEXED})
    job = await create(api, namespace, "c", INDEXED, node=node)
    jobset = await create(api, namespace, "d", JOBSET)
    plain = await create(api, namespace, "e", {gangs.JOBSET_NAME: "set"})  # of a Job that counts no indexes
    await create(api, namespace, "f", {gangs.JOB_NAME: "other"})
    await create(api, namespace, "g", {gangs.GANG: gangs.ALONE, **INDEXED})
    await watched.until(lambda: len(watched.changes) >= 5)
    members = watched.members
    assert set(members.of_gang(GangKey(namespace, "Gang", "mine"))) == {label, both}
    assert set(members.of_gang(GangKey(namespace, "Job", "train"))) == {job}
    assert set(members.of_gang(GangKey(namespace, "JobSet", "set"))) == {jobset, plain}
    assert {(each.namespace, each.kind) for each in members.gangs() if each.namespace == namespace} == {
        (namespace, "Gang"), (namespace, "Job"), (namespace, "JobSet"),
    }  # fmt: skip
    assert set(members.on_node(NodeName(node))) == {label, job}
    assert (members.node_of(label), members.node_of(jobset)) == (node, None)
    assert sorted(watched.changes) == [("appeared", name) for name in "abcde"]


async def test_ended_pod_is_gone_when_the_server_removes_it(
    api: client.KubeClient, namespace: str, watched: Watched, node: str
) -> None:
    uid = await create(api, namespace, "a", INDEXED, node=node)
    await api.delete(paths.pod(namespace, "a"))
    await watched.until(lambda: (found := watched.members.by_uid(uid)) is not None and found.deleting)
    assert ("gone", "a") not in watched.changes
    await api.delete(paths.pod(namespace, "a"), options={"gracePeriodSeconds": 0})
    await watched.until(lambda: ("gone", "a") in watched.changes)
    assert watched.members.by_uid(uid) is None
    assert not watched.members.on_node(NodeName(node))


async def test_a_pod_whose_label_is_taken_away_has_left_but_is_not_gone(
    api: client.KubeClient, namespace: str, watched: Watched, node: str
) -> None:
    await create(api, namespace, "a", {gangs.GANG: "mine"}, node=node)
    await watched.until(lambda: bool(watched.changes))
    await relabel(api, namespace, "a", **{gangs.GANG: None})
    await watched.until(lambda: len(watched.changes) > 1)
    assert watched.changes == [("appeared", "a"), ("left", "a")]


async def test_a_pod_that_changes_its_gang_leaves_one_and_appears_in_the_other(
    api: client.KubeClient, namespace: str, watched: Watched, node: str
) -> None:
    """Its watch changes with it: one stops reporting it, the other starts, in any order."""
    uid = await create(api, namespace, "a", INDEXED, node=node)
    await watched.until(lambda: bool(watched.changes))
    await relabel(api, namespace, "a", **{gangs.GANG: "mine"})
    mine = GangKey(namespace, "Gang", "mine")
    await watched.until(lambda: uid in watched.members.of_gang(mine))
    assert [*watched.members.of_gang(GangKey(namespace, "Job", "train"))] == []
    assert ("gone", "a") not in watched.changes
    assert watched.changes[-1] == ("appeared", "a")


async def test_another_pod_of_the_name_is_another_member(
    api: client.KubeClient, namespace: str, watched: Watched, node: str
) -> None:
    first = await create(api, namespace, "a", INDEXED, node=node)
    await api.delete(paths.pod(namespace, "a"), options={"gracePeriodSeconds": 0})
    second = await create(api, namespace, "a", INDEXED, node=node)
    await watched.until(lambda: watched.members.by_uid(second) is not None and watched.members.by_uid(first) is None)
    assert [kind for kind, _ in watched.changes if kind != "changed"] == ["appeared", "gone", "appeared"]


async def test_outage_neither_repeats_nor_loses_reports(tenant: Tenant, api: client.KubeClient) -> None:
    kept = await create(api, tenant.namespace, "kept", INDEXED, node="node-1")
    await create(api, tenant.namespace, "deleted", INDEXED, node="node-1")
    async with watching(api, tenant.namespace) as watched:
        await watched.until(lambda: len(watched.changes) == 2)
        await tenant.server.stop()
        await tenant.server.start()
        await api.delete(paths.pod(tenant.namespace, "deleted"), options={"gracePeriodSeconds": 0})
        await create(api, tenant.namespace, "new", INDEXED, node="node-2")
        await tenant.server.forget_history()
        await watched.until(lambda: {("gone", "deleted"), ("appeared", "new")} <= {*watched.changes})
        assert watched.members.by_uid(kept) is not None
        found = [pair for pair in watched.changes if pair[0] != MemberChangeKind.CHANGED.value]
        expected = [("appeared", "deleted"), ("appeared", "kept"), ("appeared", "new"), ("gone", "deleted")]
        assert sorted(found) == expected


async def test_nodes_report_whether_they_are_ready_or_leaving(api: client.KubeClient, node: str) -> None:
    nodes = Nodes(api=api, report=lambda _: None)
    news = asyncio.Event()
    nodes.subscribe(lambda _: news.set())
    task = asyncio.create_task(nodes.run())

    async def until(predicate: Callable[[], bool]) -> None:
        async with asyncio.timeout(SECONDS):
            while not predicate():
                news.clear()
                await news.wait()

    def ready() -> bool | None:
        found = nodes.view(NodeName(node))
        return found.ready if found is not None else None

    try:
        await nodes.wait_synced()
        await api.create(paths.NODES, {"metadata": {"name": node}})
        await until(lambda: nodes.view(NodeName(node)) is not None)
        assert ready() is None
        for status, wanted in (("True", True), ("False", False), ("Unknown", None)):
            body = {"status": {"conditions": [objects.condition("Ready", status)]}}
            await api.patch(f"{paths.NODES}/{node}/status", body)
            await until(lambda wanted=wanted: ready() is wanted)  # type: ignore[misc]
        planned = {"status": {"conditions": [objects.condition(MAINTENANCE_PLANNED)]}}
        await api.patch(f"{paths.NODES}/{node}/status", planned)
        await api.patch(f"{paths.NODES}/{node}", {"spec": {"unschedulable": True}}, content_type=client.Patch.MERGE)
        await until(lambda: (found := nodes.view(NodeName(node))) is not None and found.leaving)
        taint = {"key": OUT_OF_SERVICE, "value": "nodeshutdown", "effect": "NoExecute"}
        await api.patch(f"{paths.NODES}/{node}", {"spec": {"taints": [taint]}}, content_type=client.Patch.MERGE)
        await until(lambda: (found := nodes.view(NodeName(node))) is not None and found.out_of_service)
        await api.delete(f"{paths.NODES}/{node}")
        await until(lambda: nodes.view(NodeName(node)) is None)
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def test_a_single_pod_is_a_member_while_it_is_followed(
    api: client.KubeClient, namespace: str, watched: Watched, node: str
) -> None:
    uid = await create(api, namespace, "a", {}, node=node)
    await create(api, namespace, "b", {}, node=node)
    key, members = GangKey(namespace, gangs.POD, "a"), watched.members
    async with members.following(key) as gang:
        assert (set(members.of_gang(key)), members.node_of(uid), gang()) == ({uid}, node, None)
        await api.delete(paths.pod(namespace, "a"), options={"gracePeriodSeconds": 0})
        await watched.until(lambda: ("gone", "a") in watched.changes)
        assert members.by_uid(uid) is None
    async with members.following(key):
        assert not members.of_gang(key)
    assert [each for each in watched.changes if each[0] != "changed"] == [("appeared", "a"), ("gone", "a")]


async def test_unfollowed_single_pod_has_left_but_is_not_gone(
    api: client.KubeClient, namespace: str, watched: Watched, node: str
) -> None:
    uid = await create(api, namespace, "a", {}, node=node)
    async with watched.members.following(GangKey(namespace, gangs.POD, "a")):
        assert watched.members.by_uid(uid) is not None
    assert watched.changes == [("appeared", "a"), ("left", "a")]
    assert watched.members.by_uid(uid) is None


async def test_pod_of_a_gang_is_followed_as_a_member(
    api: client.KubeClient, namespace: str, watched: Watched, node: str
) -> None:
    uid = await create(api, namespace, "a", INDEXED, node=node)
    await watched.until(lambda: bool(watched.changes))
    key, job = GangKey(namespace, gangs.POD, "a"), GangKey(namespace, "Job", "train")
    async with watched.members.following(key) as gang:
        assert (gang(), not watched.members.of_gang(key)) == (job, True)
    found = watched.members.by_uid(uid)
    assert found is not None
    assert found.gang == job


async def test_a_single_pod_that_joins_a_gang_is_a_member_of_that(
    api: client.KubeClient, namespace: str, watched: Watched, node: str
) -> None:
    uid = await create(api, namespace, "a", {}, node=node)
    mine = GangKey(namespace, "Gang", "mine")
    async with watched.members.following(GangKey(namespace, gangs.POD, "a")) as gang:
        await relabel(api, namespace, "a", **{gangs.GANG: "mine"})
        await watched.until(lambda: set(watched.members.of_gang(mine)) == {uid})
    assert set(watched.members.of_gang(mine)) == {uid}
    assert gang() in (None, mine)  # its own watch may be later than the gangs'
    assert ("gone", "a") not in watched.changes
