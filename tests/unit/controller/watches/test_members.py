"""Members when the API server fails at the wrong moment, and what they cost."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from common import aio, gangs
from common.gangs import GangKey
from common.kube import client, paths
from common.parts import PartState, PartStatus
from controller.watches import members as watches
from controller.watches.members import MemberChange, MemberChangeKind, Members
from hack.devnode.api import selectors, standin

PODS = paths.collection("pods", namespace="default")
LABELS = (gangs.GANG, gangs.JOBSET_NAME, gangs.JOB_INDEX)


@pytest.mark.parametrize("present", range(8))
@pytest.mark.parametrize("value", ["x", gangs.ALONE])
def test_each_pod_of_a_gang_is_in_one_watch_and_no_other_pod_in_any(present: int, value: str) -> None:
    labels = {name: "0" for bit, name in enumerate(LABELS) if present & (1 << bit)}
    if gangs.GANG in labels:
        labels[gangs.GANG] = value
    if gangs.JOB_INDEX in labels:
        labels[gangs.JOB_NAME] = "train"
    pod = {"metadata": {"labels": labels}}
    matching = [selector for selector in watches.SELECTORS if selectors.labels(selector)(pod)]
    assert len(matching) == (gangs.key("default", labels) is not None)


class Bench:
    """Members that are watched, what was told, and a client of the same server."""

    def __init__(self, server: standin.StandIn, api: client.KubeClient) -> None:
        self.server = server
        self.api = api
        self.reports: list[PartStatus] = []
        self.changes: asyncio.Queue[MemberChange] = asyncio.Queue()
        self.members = Members(api=api, report=self.reports.append, backoff=lambda: aio.Backoff(first=0.01, limit=0.05))
        self.members.subscribe(self.changes.put_nowait)

    async def create(self, name: str) -> None:
        spec = {"nodeName": "n", "containers": [{"name": "c", "image": "i"}]}
        await self.api.create(PODS, {"metadata": {"name": name, "labels": {gangs.GANG: "mine"}}, "spec": spec})

    async def change(self, kind: MemberChangeKind) -> MemberChange:
        async with asyncio.timeout(60):
            while (change := await self.changes.get()).kind is not kind:
                pass
        return change


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with (
        standin.StandIn(kubeconfig=tmp_path / "kubeconfig") as server,
        client.connect(kubeconfig=server.kubeconfig, deadlines=client.Deadlines(call=1.0)) as api,
    ):
        found = Bench(server, api)
        task = asyncio.create_task(found.members.run())
        await found.members.wait_synced()
        yield found
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def test_who_vanished_is_not_gone_before_the_server_says_so(bench: Bench) -> None:
    await bench.create("a")
    appeared = await bench.change(MemberChangeKind.APPEARED)
    bench.server.handler.faults.fail_next(10, status=503, method="GET", path="/pods/a")
    await bench.api.patch(f"{PODS}/a", {"metadata": {"labels": {gangs.GANG: None}}})
    left = await bench.change(MemberChangeKind.LEFT)
    assert left.member.pod == appeared.member.pod
    assert bench.server.handler.faults.hits == 10
    assert bench.members.by_uid(left.member.pod.uid) is None
    assert bench.members.of_gang(GangKey("default", "Gang", "mine")) == {}


async def test_who_is_being_deleted_and_changes_its_labels_is_not_gone(bench: Bench) -> None:
    await bench.create("a")
    await bench.change(MemberChangeKind.APPEARED)
    await bench.api.delete(f"{PODS}/a", options={"gracePeriodSeconds": 600})
    assert (await bench.change(MemberChangeKind.CHANGED)).member.deleting
    await bench.api.patch(f"{PODS}/a", {"metadata": {"labels": {gangs.GANG: None}}})
    async with asyncio.timeout(60):
        assert (await bench.changes.get()).kind is MemberChangeKind.LEFT


async def test_three_watches_are_one_part(bench: Bench) -> None:
    assert bench.reports[-1].state is PartState.READY
    assert {report.state for report in bench.reports[:-1]} <= {PartState.STARTING}
