"""The container watch through breaks of the stream, silent streams and runtimes without one."""

import asyncio
import contextlib
import pathlib
import time
from collections.abc import AsyncIterator

import pytest

from kubemend.agent.clients.cri.client import CriClient
from kubemend.agent.clients.cri.events import ContainerEvent, EventKind
from kubemend.agent.model.workloads import PodUid
from kubemend.agent.sources.containers import ContainerWatch, ListingIntervals
from kubemend.common.components import ComponentState
from tests.fakes.cri_runtime import Behaviour
from tests.fakes.cri_server import CriServer
from tests.unit.cri.conftest import POD_UID, Reports, create, remove, start

SELDOM = ListingIntervals(audit=3600, poll=3600)
OFTEN = ListingIntervals(audit=0.05, poll=0.05)


class Watched:
    """A running watch with its reports and a subscription to everything."""

    def __init__(self, watch: ContainerWatch, *, reports: Reports, queue: "asyncio.Queue[ContainerEvent]") -> None:
        self.watch = watch
        self.reports = reports
        self._queue = queue

    async def steps(self, count: int) -> list[ContainerEvent]:
        """Wait for that many steps."""
        async with asyncio.timeout(60):
            return [await self._queue.get() for _ in range(count)]


@contextlib.asynccontextmanager
async def watching(
    cri: CriClient, *, intervals: ListingIntervals, pod_uid: PodUid | None = None
) -> AsyncIterator[Watched]:
    reports = Reports()
    watch = ContainerWatch(cri, report=reports, intervals=intervals)
    task = asyncio.create_task(watch.run())
    try:
        async with watch.subscribe(pod_uid) as queue:
            yield Watched(watch, reports=reports, queue=queue)
    finally:
        task.cancel()
        await asyncio.wait({task})


async def test_first_listing_can_be_awaited(server: CriServer, cri: CriClient) -> None:
    container_id = create(server)
    await server.stop()
    async with watching(cri, intervals=OFTEN) as watched:
        waiting = asyncio.create_task(watched.watch.until_listed())
        await watched.reports.until(ComponentState.DEGRADED)
        assert not waiting.done()
        await server.start()
        async with asyncio.timeout(60):
            await waiting
        assert [view.id for view in watched.watch.containers()] == [container_id]


async def test_stream_steps_need_no_listing(server: CriServer, cri: CriClient) -> None:
    async with watching(cri, intervals=SELDOM) as watched:
        await watched.reports.until(ComponentState.READY)
        await server.reader_present()
        container_id = create(server)
        start(server, container_id)
        server.runtime.exit(container_id, exit_code=3)
        remove(server, container_id)
        steps = await watched.steps(4)

    assert [step.kind for step in steps] == list(EventKind)
    assert steps[2].exit_code == 3
    assert server.called().count("ListContainers") == 1


async def test_subscriber_receives_only_its_pod(server: CriServer, cri: CriClient) -> None:
    async with watching(cri, intervals=SELDOM) as watched:
        await watched.reports.until(ComponentState.READY)
        await server.reader_present()
        async with watched.watch.subscribe(POD_UID) as own, watched.watch.subscribe(PodUid("other")) as foreign:
            create(server)
            await watched.steps(1)
            assert own.qsize() == 1
            assert foreign.empty()


async def test_earlier_events_are_not_delivered(server: CriServer, cri: CriClient) -> None:
    start(server, create(server, "old"))
    async with watching(cri, intervals=SELDOM) as watched:
        await watched.reports.until(ComponentState.READY)
        await server.reader_present()
        create(server, "new")
        [step] = await watched.steps(1)

        assert step.container.ref.name == "new"
        assert [view.ref.name for view in watched.watch.containers()] == ["old", "new"]


async def test_events_during_an_outage_are_delivered_afterwards(server: CriServer, cri: CriClient) -> None:
    ended, removed = create(server, "ended"), create(server, "removed")
    start(server, ended)
    async with watching(cri, intervals=SELDOM) as watched:
        await watched.reports.until(ComponentState.READY)
        await server.stop()
        lost = await watched.reports.until(ComponentState.DEGRADED)
        server.runtime.exit(ended, exit_code=1)
        remove(server, removed)
        start(server, create(server, "new"))
        await server.start()
        await watched.reports.until(ComponentState.READY, after=watched.reports.seen.index(lost))
        steps = await watched.steps(4)

    assert [(step.container.ref.name, step.kind) for step in steps] == [
        ("ended", EventKind.STOPPED),
        ("removed", EventKind.DELETED),
        ("new", EventKind.CREATED),
        ("new", EventKind.STARTED),
    ]
    assert server.endpoint in lost.message
    assert lost.hint


async def test_runtime_may_appear_after_the_agent(tmp_path: pathlib.Path) -> None:
    server = CriServer(str(tmp_path / "late.sock"))
    async with CriClient(server.endpoint) as cri, watching(cri, intervals=SELDOM) as watched:
        lost = await watched.reports.until(ComponentState.DEGRADED)
        async with server:
            await watched.reports.until(ComponentState.READY)

    assert "No such file or directory" in lost.message


async def test_runtime_without_stream_is_listed(tmp_path: pathlib.Path) -> None:
    server = CriServer(str(tmp_path / "old.sock"), behaviour=Behaviour(has_events=False))
    async with server, CriClient(server.endpoint) as cri, watching(cri, intervals=OFTEN) as watched:
        await watched.reports.until(ComponentState.READY, containing="no event stream")
        start(server, create(server))
        created = await watched.steps(2)
        remove(server, created[0].container_id)
        gone = await watched.steps(2)

    assert [step.kind for step in created + gone] == list(EventKind)


async def test_silent_stream_is_detected_and_listings_continue(tmp_path: pathlib.Path) -> None:
    server = CriServer(str(tmp_path / "silent.sock"), behaviour=Behaviour(tells_events=False))
    async with server, CriClient(server.endpoint) as cri, watching(cri, intervals=OFTEN) as watched:
        await watched.reports.until(ComponentState.READY)
        start(server, create(server))
        first = await watched.steps(2)
        await watched.reports.until(ComponentState.READY, containing="incomplete")
        server.runtime.exit(first[0].container_id, exit_code=1)
        [stopped] = await watched.steps(1)

    assert stopped.kind is EventKind.STOPPED


async def test_container_storm_is_delivered_completely(server: CriServer, cri: CriClient) -> None:
    count = 200
    async with watching(cri, intervals=SELDOM) as watched:
        await watched.reports.until(ComponentState.READY)
        await server.reader_present()
        for number in range(count):
            container_id = create(server, f"c{number}")
            start(server, container_id)
            remove(server, container_id)
            await asyncio.sleep(0)
        steps = await watched.steps(4 * count)

    lives: dict[str, list[EventKind]] = {}
    for step in steps:
        lives.setdefault(step.container_id, []).append(step.kind)
    assert list(lives.values()) == [list(EventKind)] * count


async def test_stream_steps_need_no_listing_after_the_clock_was_set_back(
    server: CriServer, cri: CriClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    container_id = create(server)
    start(server, container_id)
    async with watching(cri, intervals=SELDOM) as watched:
        await watched.reports.until(ComponentState.READY)
        await server.reader_present()
        set_back = time.time_ns() - 3600 * 10**9
        monkeypatch.setattr(time, "time_ns", lambda: set_back)
        monkeypatch.setattr(server.runtime, "_last_time", set_back)
        server.runtime.exit(container_id, exit_code=3)
        (step,) = await watched.steps(1)

    assert (step.kind, step.exit_code) == (EventKind.STOPPED, 3)
