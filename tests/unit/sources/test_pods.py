"""PodWatch against the API stand-in."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from agent.model.workloads import PodUid, PodView
from agent.sources import pods
from common import aio
from common.kube import client, errors, paths
from common.parts import PartState, PartStatus
from hack.devnode.api import standin

PODS = paths.collection("pods", namespace="default")
NOVEL = {"status": {"containerStatuses": [{"name": "c", "restartCount": "often"}]}}
"""What a pod may say that this agent is too old to understand."""


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

    def patch_status_unseen(self, name: str, patch: dict[str, Any]) -> None:
        """Change a pod's status on the server while that serves nobody."""
        operations = self.server.handler.operations
        place = self.server.handler.place(paths.pod_status("default", name))
        assert place is not None
        operations.patch(place, patch, content_type=client.Patch.MERGE.value)


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with (
        asyncio.timeout(60),
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
    waiting = asyncio.create_task(bench.watch.wait_for(uid, lambda view: view.phase == "Running", timeout=60))
    await bench.change(pods.PodChangeKind.APPEARED)
    await bench.api.patch_status(paths.pod("default", "a"), {"status": {"phase": "Running"}})
    view = await waiting
    assert view is not None
    assert view.phase == "Running"
    assert await bench.watch.wait_for(uid, lambda view: True, timeout=60) == view


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


async def test_known_pod_that_is_not_understood_at_a_new_list_stays_as_it_was(bench: Bench) -> None:
    """Its end would be the end of what a round holds of it."""
    await bench.state(PartState.READY)
    await bench.api.create(PODS, pod("a"))
    known = await bench.change(pods.PodChangeKind.APPEARED)
    await bench.server.stop()
    await bench.state(PartState.DEGRADED)
    bench.patch_status_unseen("a", NOVEL)
    with capture_logs() as logs:
        await bench.server.start()
        await bench.state(PartState.READY)
    assert bench.watch.pods() == {known.ref.uid: known}
    assert bench.changes.empty()
    (told,) = [line for line in logs if line["event"] == "mirror.not_understood"]
    assert (told["name"], told["log_level"]) == ("a", "warning")
    assert "often" in told["error"]


async def test_known_pod_is_gone_although_the_last_of_it_is_not_understood(bench: Bench) -> None:
    await bench.state(PartState.READY)
    await bench.api.create(PODS, pod("a"))
    known = await bench.change(pods.PodChangeKind.APPEARED)
    await bench.api.patch_status(paths.pod("default", "a"), NOVEL)
    await bench.api.delete(paths.pod("default", "a"), options={"gracePeriodSeconds": 0})
    assert await bench.change(pods.PodChangeKind.GONE) == known
    assert not bench.watch.pods()


async def test_pod_that_is_asked_for_and_not_understood_is_none(bench: Bench) -> None:
    await bench.state(PartState.READY)
    await bench.api.create(PODS, pod("a"))
    known = await bench.change(pods.PodChangeKind.APPEARED)
    assert await bench.watch.ask(known.ref, timeout=60) == known
    await bench.api.patch_status(paths.pod("default", "a"), NOVEL)
    with capture_logs() as logs:
        assert await bench.watch.ask(known.ref, timeout=60) is None
    assert [line["pod"] for line in logs if line["event"] == "pods.not_understood"] == ["default/a"]


class EndsAtOnce:
    """A server without pods that ends each watch at once: in peace, or with an error."""

    def __init__(self, end: errors.KubeError | None) -> None:
        self.lists: list[tuple[object, int]] = []
        self.watches = 0
        self._end = end

    async def pages(self, _: str, *, params: client.Params, limit: int, **__: object) -> AsyncIterator[client.Listing]:
        self.lists.append((params, limit))
        yield client.Listing([], "5")

    async def watch(self, _: str, **__: object) -> AsyncIterator[object]:
        self.watches += 1
        assert self.watches < 100, "it is hammered"
        if self._end is not None:
            raise self._end
        if self.watches < 0:
            yield object()


class SecondOverError(Exception):
    """A second has been waited for."""


class OneSecond(aio.Backoff):
    """Waits on a clock of its own, and no longer than a second in all."""

    def __init__(self) -> None:
        super().__init__(first=0.2, limit=10.0)
        self._now = 0.0

    async def wait(self) -> None:
        self._now += self.next_wait()
        if self._now > 1:
            raise SecondOverError


async def watch_for_a_second(server: EndsAtOnce) -> None:
    api: Any = server
    watch = pods.PodWatch(api=api, node_name="n1", report=lambda _: None, backoff=OneSecond())
    with pytest.raises(SecondOverError):
        await watch.run()


@pytest.mark.parametrize("end", [None, errors.GoneError("too old"), errors.ApiUnavailableError("broken")], ids=repr)
async def test_server_that_ends_each_watch_at_once_is_not_hammered(end: errors.KubeError | None) -> None:
    server = EndsAtOnce(end)
    await watch_for_a_second(server)
    assert server.watches == 3  # at 0, 0.2 and 0.6 s


async def test_the_nodes_pods_are_listed_without_a_limit() -> None:
    """With one, servers pass their cache by."""
    server = EndsAtOnce(None)
    await watch_for_a_second(server)
    assert server.lists == [({"fieldSelector": "spec.nodeName=n1"}, 0)]
