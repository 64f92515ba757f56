"""Events are told in their order, each once, as long as they are news, and none keeps the others waiting for long."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from common import aio
from common.kube import client, paths, telling, timestamps
from common.parts import PartState, PartStatus
from hack.devnode.api import standin
from tests import eventually
from tests.unit.reporters.running import connected, started

EVENTS = paths.collection("events", namespace="default")


class Bench:
    """A teller, the server, and the time."""

    def __init__(self, server: standin.StandIn, api: client.KubeClient, *, waiting: int) -> None:
        self.faults = server.handler.faults
        self.api = api
        self.now = 1000.0
        self.reports: list[PartStatus] = []
        self.waiting = waiting
        self.renew()

    def renew(self) -> None:
        """Another leader takes over."""
        self.teller = telling.Teller(
            api=self.api,
            report=self.reports.append,
            clock=lambda: self.now,
            backoff=aio.Backoff(first=0.01, limit=0.05),
            keep=60.0,
            waiting=self.waiting,
        )

    def tell(self, name: str, *, path: str = EVENTS, may_repeat: bool = False) -> None:
        about = {"kind": "Pod", "namespace": "default", "name": "a"}
        body = {"apiVersion": "v1", "metadata": {"name": name}, "reason": "Told", "message": name, "count": 1}
        last = {"lastTimestamp": timestamps.rfc3339(self.now)}
        self.teller.tell(path, {**body, **last, "involvedObject": about}, at=self.now, may_repeat=may_repeat)

    async def has_told(self, name: str) -> bool:
        return name in await self.told()

    async def count(self, name: str) -> int:
        """Return how often an Event says that it has happened."""
        found = {each["message"]: each["count"] for each in (await self.api.list(EVENTS)).items}
        return int(found.get(name, 0))

    async def until_count(self, name: str, count: int) -> None:
        async def counted() -> bool:
            return await self.count(name) == count

        await eventually.true(counted)

    async def told(self) -> list[str]:
        found = (await self.api.list(EVENTS)).items
        return [each["message"] for each in sorted(found, key=lambda each: int(each["metadata"]["resourceVersion"]))]

    async def until_told(self, *names: str) -> None:
        async def all_told() -> bool:
            return await self.told() == [*names]

        await eventually.true(all_told)


@contextlib.asynccontextmanager
async def running(tmp_path: Path, *, waiting: int = 10) -> AsyncIterator[Bench]:
    async with connected(tmp_path) as (server, api):
        yield Bench(server, api, waiting=waiting)


async def test_all_are_told_in_their_order_once_the_server_is_there_again(tmp_path: Path) -> None:
    async with running(tmp_path) as bench:
        bench.faults.fail_next(3, status=500, method="POST", path="/events")
        async with started(bench.teller):
            for name in ("a", "b", "c"):
                bench.tell(name)
            await bench.until_told("a", "b", "c")
        states = [each.state for each in bench.reports]
        assert (states[0], states[-1]) == (PartState.IDLE, PartState.READY)
        assert PartState.DEGRADED in states


async def test_what_was_told_before_is_not_told_again(tmp_path: Path) -> None:
    with capture_logs() as logs:
        async with running(tmp_path) as bench, started(bench.teller):
            for name in ("a", "a", "b"):
                bench.tell(name)
            await bench.until_told("a", "b")
    assert "event.refused" not in {each["event"] for each in logs}


@pytest.mark.parametrize("status", [403, 404, 409, 422])
async def test_what_is_refused_keeps_no_other_waiting(tmp_path: Path, status: int) -> None:
    async with running(tmp_path) as bench:
        bench.faults.fail_next(10_000, status=status, method="POST", path="/namespaces/elsewhere/")
        async with started(bench.teller):
            bench.tell("a", path=paths.collection("events", namespace="elsewhere"))
            bench.tell("b")
            await bench.until_told("b")


async def test_what_is_no_news_any_more_is_not_told(tmp_path: Path) -> None:
    async with running(tmp_path) as bench:
        bench.tell("a")
        bench.now += 61.0
        bench.tell("b")
        async with started(bench.teller):
            await bench.until_told("b")


async def test_the_oldest_make_room(tmp_path: Path) -> None:
    async with running(tmp_path, waiting=2) as bench:
        for name in ("a", "b", "c"):
            bench.tell(name)
        async with started(bench.teller):
            await bench.until_told("b", "c")


async def test_what_happens_again_is_counted_in_one_event(tmp_path: Path) -> None:
    async with running(tmp_path) as bench, started(bench.teller):
        bench.tell("a", may_repeat=True)
        await bench.until_count("a", 1)
        bench.now += 61.0
        bench.tell("a", may_repeat=True)
        await bench.until_count("a", 2)
        assert await bench.told() == ["a"]


async def test_what_happens_often_is_written_seldom_and_counted_in_full(tmp_path: Path) -> None:
    async with running(tmp_path) as bench, started(bench.teller):
        for _ in range(3):  # before the first could be written
            bench.tell("a", may_repeat=True)
        await bench.until_count("a", 3)
        for _ in range(5):
            bench.tell("a", may_repeat=True)
        bench.tell("b")
        await eventually.true(lambda: bench.has_told("b"))
        assert await bench.count("a") == 3, "a minute has not gone by"
        bench.now += 61.0
        bench.tell("a", may_repeat=True)
        await bench.until_count("a", 3 + 5 + 1)


async def test_a_successor_goes_on_counting_and_a_lost_answer_counts_once(tmp_path: Path) -> None:
    async with running(tmp_path) as bench:
        async with started(bench.teller):
            bench.tell("a", may_repeat=True)
            await bench.until_count("a", 1)
        bench.renew()
        async with started(bench.teller):
            bench.tell("a", may_repeat=True)  # at the same time: the attempt whose answer was lost
            bench.tell("b")
            await eventually.true(lambda: bench.has_told("b"))
            assert await bench.count("a") == 1
            bench.now += 61.0
            bench.tell("a", may_repeat=True)
            await bench.until_count("a", 2)


async def test_an_event_whose_hour_is_over_is_told_anew(tmp_path: Path) -> None:
    async with running(tmp_path) as bench, started(bench.teller):
        bench.tell("a", may_repeat=True)
        await bench.until_count("a", 1)
        await bench.api.delete(f"{EVENTS}/a")
        bench.now += 61.0
        bench.tell("a", may_repeat=True)
        await bench.until_count("a", 1)
