"""PodWatch against the API stand-in."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from agent.model.workloads import PodUid, PodView
from agent.sources import pods
from common import aio
from common.kube import client, paths
from common.parts import PartState, PartStatus
from hack.devnode.api import standin

PODS = paths.collection("pods", namespace="default")


def pod(name: str, *, node: str = "n1") -> dict[str, Any]:
    return {"metadata": {"name": name}, "spec": {"nodeName": node, "containers": [{"name": "c", "image": "i"}]}}


class Bench:
    """A PodWatch that runs, what it reported, and a client of the same server."""

    def __init__(self, server: standin.StandIn, api: client.KubeClient) -> None:
        self.server = server
        self.api = api
        self.reports: asyncio.Queue[PartStatus] = asyncio.Queue()
        self.changes: asyncio.Queue[pods.PodChange] = asyncio.Queue()
        self.watch = pods.PodWatch(
            api=api,
            node_name="n1",
            report=self.reports.put_nowait,
            backoff=aio.Backoff(first=0.01, limit=0.05),
        )
        self.watch.subscribe(self.changes.put_nowait)

    async def state(self, wanted: PartState) -> PartStatus:
        """Wait for a report of that state."""
        while (report := await self.reports.get()).state is not wanted:
            pass
        return report

    async def change(self, kind: pods.PodChangeKind) -> PodView:
        """Wait for a change of that kind."""
        while (change := await self.changes.get()).kind is not kind:
            pass
        return change.pod


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with (
        asyncio.timeout(20),
        standin.StandIn(kubeconfig=tmp_path / "kubeconfig") as server,
        client.connect(kubeconfig=server.kubeconfig, deadlines=client.Deadlines(call=2.0)) as api,
    ):
        made = Bench(server, api)
        task = asyncio.create_task(made.watch.run())
        try:
            yield made
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


async def test_pods_of_this_node_come_and_go(bench: Bench) -> None:
    assert not bench.watch.synced
    await bench.state(PartState.READY)
    assert bench.watch.synced
    await bench.api.create(PODS, pod("elsewhere", node="n2"))
    await bench.api.create(PODS, pod("a"))
    appeared = await bench.change(pods.PodChangeKind.APPEARED)
    assert appeared.ref.name == "a"
    assert list(bench.watch.pods()) == [appeared.ref.uid]
    assert bench.watch.by_name("default", "a") == appeared
    assert bench.watch.by_name("default", "elsewhere") is None
    await bench.api.delete(paths.pod("default", "a"), options={"gracePeriodSeconds": 0})
    assert (await bench.change(pods.PodChangeKind.GONE)).ref == appeared.ref
    assert not bench.watch.pods()


async def test_the_first_listing_can_be_waited_for_even_if_there_is_no_pod(bench: Bench) -> None:
    await bench.watch.until_synced()
    assert bench.watch.synced
    assert not bench.watch.pods()


async def test_waiting_ends_with_the_change_that_was_waited_for(bench: Bench) -> None:
    await bench.state(PartState.READY)
    created = await bench.api.create(PODS, pod("a"))
    uid = PodUid(created["metadata"]["uid"])
    waiting = asyncio.create_task(bench.watch.wait_for(uid, lambda view: view.phase == "Running", timeout=10))
    await bench.change(pods.PodChangeKind.APPEARED)
    await bench.api.patch_status(paths.pod("default", "a"), {"status": {"phase": "Running"}})
    view = await waiting
    assert view is not None
    assert view.phase == "Running"
    assert await bench.watch.wait_for(uid, lambda view: True, timeout=10) == view


async def test_waiting_ends_when_the_pod_goes_or_time_is_up(bench: Bench) -> None:
    await bench.state(PartState.READY)
    created = await bench.api.create(PODS, pod("a"))
    uid = PodUid(created["metadata"]["uid"])
    assert await bench.watch.wait_for(uid, lambda view: view.phase == "Running", timeout=0.01) is None
    waiting = asyncio.create_task(bench.watch.wait_for(uid, lambda view: view.phase == "Running", timeout=30))
    await bench.change(pods.PodChangeKind.APPEARED)
    await bench.api.delete(paths.pod("default", "a"), options={"gracePeriodSeconds": 0})
    assert await waiting is None


async def test_view_holds_through_an_outage_and_catches_up_after_it(bench: Bench) -> None:
    await bench.state(PartState.READY)
    await bench.api.create(PODS, pod("stays"))
    await bench.api.create(PODS, pod("goes"))
    for _ in range(2):
        await bench.change(pods.PodChangeKind.APPEARED)
    await bench.server.stop()
    report = await bench.state(PartState.DEGRADED)
    assert "cannot" in report.message
    assert report.mend
    assert len(bench.watch.pods()) == 2
    operations = bench.server.handler.operations
    found = bench.server.handler.place(paths.pod("default", "goes"))
    assert found is not None
    operations.delete(found, {"gracePeriodSeconds": 0})
    await bench.server.start()
    assert (await bench.change(pods.PodChangeKind.GONE)).ref.name == "goes"
    await bench.state(PartState.READY)
    assert [view.ref.name for view in bench.watch.pods().values()] == ["stays"]


async def test_broken_watch_is_resumed(bench: Bench) -> None:
    await bench.state(PartState.READY)
    await bench.api.create(PODS, pod("a"))
    await bench.change(pods.PodChangeKind.APPEARED)
    bench.server.handler.drop_watches()
    await bench.state(PartState.READY)
    await bench.api.create(PODS, pod("b"))
    assert (await bench.change(pods.PodChangeKind.APPEARED)).ref.name == "b"


async def test_lost_history_is_listed_again(bench: Bench) -> None:
    await bench.state(PartState.READY)
    bench.server.handler.faults.fail_next(1, status=410, method="GET", path="/pods")
    bench.server.handler.drop_watches()
    await bench.state(PartState.READY)
    await bench.api.create(PODS, pod("a"))
    assert (await bench.change(pods.PodChangeKind.APPEARED)).ref.name == "a"


async def test_pod_that_is_not_understood_hides_no_other(bench: Bench) -> None:
    await bench.state(PartState.READY)
    odd = pod("odd")
    odd["spec"]["restartPolicy"] = "Sometimes"
    await bench.api.create(PODS, odd)
    await bench.api.create(PODS, pod("a"))
    assert (await bench.change(pods.PodChangeKind.APPEARED)).ref.name == "a"


async def test_second_pod_of_a_name_is_another_pod(bench: Bench) -> None:
    await bench.state(PartState.READY)
    for _ in range(2):
        await bench.api.create(PODS, pod("a"))
        await bench.api.delete(paths.pod("default", "a"), options={"gracePeriodSeconds": 0})
    gone = [await bench.change(pods.PodChangeKind.GONE) for _ in range(2)]
    assert gone[0].ref != gone[1].ref
