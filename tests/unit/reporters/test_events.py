"""Events, against the API stand-in."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from agent.model.announcements import Announcement, Level
from agent.model.workloads import PodRef, PodUid
from agent.reporters import event_objects
from agent.reporters.events import EventReporter, Limits, Outcome
from common import aio
from common.kube import client, paths
from common.parts import PartState, PartStatus
from hack.devnode.api import standin
from tests.unit.reporters.running import connected, started

NODE = "node-1"
EVENTS = paths.collection("events")
FAST = Limits(spacing=0.01)


def pod(name: str = "trainer-0", *, namespace: str = "default") -> PodRef:
    return PodRef(namespace, name, PodUid(f"uid-of-{name}"))


def announcement(
    message: str = "GPU lost", *, about: PodRef | None = None, reason: str = "DeviceUnhealthy", **more: Any
) -> Announcement:
    return Announcement(
        **{"about": about, "reason": reason, "message": message, "at": 1000.0, "subject": "GPU-a", **more}
    )


class Bench:
    """A reporter that runs, what became of its announcements, and a client of the same server."""

    def __init__(self, server: standin.StandIn, api: client.KubeClient, *, limits: Limits) -> None:
        self.server = server
        self.api = api
        self.dealt_with: Counter[Outcome] = Counter()
        self.writes = 0
        self.reports: list[PartStatus] = []
        self.reporter = EventReporter(
            api=api,
            node_name=NODE,
            report=self._told,
            on_outcome=self._took,
            limits=limits,
            backoff=aio.Backoff(first=0.01, limit=0.05),
        )
        self._news = asyncio.Event()

    def _took(self, outcome: Outcome, announcements: int) -> None:
        self.dealt_with[outcome] += announcements
        self.writes += outcome is Outcome.TOLD
        self._news.set()

    def _told(self, status: PartStatus) -> None:
        if not self.reports or self.reports[-1] != status:  # as common.parts does
            self.reports.append(status)
            self._news.set()

    async def until(self, outcome: Outcome, announcements: int) -> None:
        """Wait until so many announcements have ended like this."""
        while self.dealt_with[outcome] < announcements:
            await self._news.wait()
            self._news.clear()

    async def until_part_is(self, state: PartState) -> PartStatus:
        while not self.reports or self.reports[-1].state is not state:
            await self._news.wait()
            self._news.clear()
        return self.reports[-1]

    async def events(self, selector: str = "") -> list[dict[str, Any]]:
        return (await self.api.list(EVENTS, params={"fieldSelector": selector} if selector else None)).items

    async def event(self) -> dict[str, Any]:
        """Return the only Event that there is."""
        (found,) = await self.events()
        return found


@contextlib.asynccontextmanager
async def running(tmp_path: Path, *, limits: Limits = FAST) -> AsyncIterator[Bench]:
    async with connected(tmp_path) as (server, api):
        bench = Bench(server, api, limits=limits)
        async with started(bench.reporter):
            yield bench


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with running(tmp_path) as made:
        yield made


async def test_announcement_of_a_pod_is_an_event_that_describe_shows(bench: Bench) -> None:
    bench.reporter.tell(announcement(about=pod(), container="trainer"))
    await bench.until(Outcome.TOLD, 1)
    selector = f"involvedObject.name=trainer-0,involvedObject.namespace=default,involvedObject.uid={pod().uid}"
    (event,) = await bench.events(selector)
    assert (event["type"], event["reason"], event["message"]) == ("Warning", "DeviceUnhealthy", "GPU lost")
    assert (event["count"], event["firstTimestamp"], event["lastTimestamp"]) == (
        1, "1970-01-01T00:16:40Z", "1970-01-01T00:16:40Z",
    )  # fmt: skip
    assert event["involvedObject"]["fieldPath"] == "spec.containers{trainer}"
    assert event["source"] == {"component": "kubemend", "host": NODE}
    assert bench.reports[-1].state is PartState.READY


async def test_announcement_of_the_node_is_where_kubelets_are(bench: Bench) -> None:
    bench.reporter.tell(announcement(level=Level.NORMAL))
    await bench.until(Outcome.TOLD, 1)
    event = await bench.event()
    assert event["metadata"]["namespace"] == "default"
    assert (event["involvedObject"]["kind"], event["involvedObject"]["uid"]) == ("Node", NODE)
    assert event["type"] == "Normal"


async def test_what_repeats_is_counted_with_its_newest_words(bench: Bench) -> None:
    bench.reporter.tell(announcement("one"))
    await bench.until(Outcome.TOLD, 1)
    for number in range(4):
        bench.reporter.tell(announcement(f"again {number}", at=2000.0 + number))
    await bench.until(Outcome.TOLD, 5)
    event = await bench.event()
    assert (event["count"], event["message"]) == (5, "again 3")
    assert (event["firstTimestamp"], event["lastTimestamp"]) == ("1970-01-01T00:16:40Z", "1970-01-01T00:33:23Z")


async def test_different_subjects_reasons_and_objects_are_different_events(bench: Bench) -> None:
    for each in (
        announcement(),
        announcement(subject="GPU-b"),
        announcement(reason="DeviceDegraded"),
        announcement(about=pod()),
        announcement(about=pod("trainer-1")),
    ):
        bench.reporter.tell(each)
    await bench.until(Outcome.TOLD, 5)
    assert [event["count"] for event in await bench.events()] == [1] * 5


async def test_storm_of_ten_thousand_writes_a_handful(tmp_path: Path) -> None:
    async with running(tmp_path, limits=Limits(spacing=0.05)) as bench:
        for number in range(10_000):
            bench.reporter.tell(announcement(f"{number}", subject=f"GPU-{number % 8}"))
            if number % 500 == 0:
                await asyncio.sleep(0)
        await bench.until(Outcome.TOLD, 10_000)
        assert sum(event["count"] for event in await bench.events()) == 10_000
        assert bench.writes <= 25


async def test_series_is_not_written_again_before_its_time(tmp_path: Path) -> None:
    async with running(tmp_path, limits=Limits(spacing=3600.0)) as bench:
        bench.reporter.tell(announcement())
        await bench.until(Outcome.TOLD, 1)
        bench.reporter.tell(announcement())
        bench.reporter.tell(announcement(subject="GPU-b"))
        await bench.until(Outcome.TOLD, 2)
        assert [event["count"] for event in await bench.events()] == [1, 1]


async def test_object_that_has_spent_its_allowance_does_not_hold_up_another(tmp_path: Path) -> None:
    async with running(tmp_path, limits=Limits(spacing=0.0, burst=3, refill=3600.0)) as bench:
        for number in range(10):
            bench.reporter.tell(announcement(subject=f"GPU-{number}"))
        bench.reporter.tell(announcement(about=pod()))
        await bench.until(Outcome.TOLD, 4)
        assert Counter(event["involvedObject"]["kind"] for event in await bench.events()) == {"Node": 3, "Pod": 1}


async def test_next_agent_tells_nothing_twice_and_goes_on_counting(bench: Bench) -> None:
    bench.reporter.tell(announcement("found"))
    await bench.until(Outcome.TOLD, 1)
    later = Bench(bench.server, bench.api, limits=FAST)
    async with started(later.reporter):
        later.reporter.tell(announcement("found once more, at the start"))
        await later.until(Outcome.KNOWN, 1)
        assert (await bench.event())["message"] == "found"
        later.reporter.tell(announcement("happened again", at=2000.0))
        await later.until(Outcome.TOLD, 1)
        event = await bench.event()
        assert (event["count"], event["message"]) == (2, "happened again")


async def test_event_that_has_expired_is_written_anew(bench: Bench) -> None:
    bench.reporter.tell(announcement("one"))
    await bench.until(Outcome.TOLD, 1)
    event = await bench.event()
    await bench.api.delete(f"{event_objects.collection(announcement())}/{event['metadata']['name']}")
    bench.reporter.tell(announcement("two", at=9000.0))
    await bench.until(Outcome.TOLD, 2)
    event = await bench.event()
    assert (event["count"], event["message"], event["firstTimestamp"]) == (1, "two", "1970-01-01T02:30:00Z")


async def test_outage_is_waited_out_for_a_while(bench: Bench) -> None:
    await bench.server.stop()
    bench.reporter.tell(announcement("during"))
    await bench.server.start()
    await bench.until(Outcome.TOLD, 1)
    assert (await bench.event())["message"] == "during"


async def test_what_cannot_be_told_in_time_is_dropped_and_counted(tmp_path: Path) -> None:
    async with running(tmp_path, limits=Limits(keep=0.05)) as bench:
        await bench.server.stop()
        for number in range(10):
            bench.reporter.tell(announcement(subject=f"GPU-{number % 2}"))
        await bench.until(Outcome.DROPPED, 10)
        await bench.server.start()
        assert await bench.events() == []


async def test_memory_is_bounded_and_what_does_not_fit_is_counted(tmp_path: Path) -> None:
    async with running(tmp_path, limits=Limits(series=5)) as bench:
        await bench.server.stop()
        for number in range(100):
            bench.reporter.tell(announcement(subject=f"GPU-{number}"))
        assert bench.dealt_with == {Outcome.DROPPED: 95}


async def test_lacking_permission_is_said_once_with_the_rule_that_is_needed(bench: Bench) -> None:
    bench.server.handler.faults.fail_next(3, status=403, method="POST")
    bench.reporter.tell(announcement())
    degraded = await bench.until_part_is(PartState.DEGRADED)
    assert 'allow verb "create" on resource "events"' in degraded.mend
    await bench.until(Outcome.TOLD, 1)
    assert [status.state for status in bench.reports] == [PartState.IDLE, PartState.DEGRADED, PartState.READY]


async def test_what_is_refused_in_one_namespace_does_not_hold_up_another(bench: Bench) -> None:
    bench.server.handler.faults.fail_next(10_000, status=403, method="POST", path="/namespaces/kube-system/")
    bench.reporter.tell(announcement(about=pod(namespace="kube-system")))
    await bench.until_part_is(PartState.DEGRADED)
    bench.reporter.tell(announcement())
    await bench.until(Outcome.TOLD, 1)


async def test_namespace_that_is_gone_costs_one_announcement_and_holds_up_nothing(bench: Bench) -> None:
    bench.reporter.tell(announcement(about=pod(namespace="nowhere")))
    bench.reporter.tell(announcement())
    await bench.until(Outcome.REFUSED, 1)
    await bench.until(Outcome.TOLD, 1)


async def test_event_that_the_server_refuses_is_not_repeated(bench: Bench) -> None:
    bench.server.handler.faults.fail_next(1, status=422, method="POST")
    bench.reporter.tell(announcement())
    await bench.until(Outcome.REFUSED, 1)


def test_name_is_a_dns_name_whatever_the_objects_is() -> None:
    long = event_objects.name(announcement(about=pod("a" * 229 + "." + "b" * 20)), node=NODE)
    assert len(long) <= 253
    assert ".." not in long


def test_long_message_is_cut() -> None:
    event = event_objects.continued(announcement("x" * 5000), count=1)
    assert len(event["message"]) == event_objects.MAX_MESSAGE


async def test_an_announcement_that_cannot_be_told_leaves_the_others(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    created = event_objects.created

    def worded(about: Announcement, **more: Any) -> dict[str, Any]:
        if about.message == "bad":
            raise IndexError
        return created(about, **more)

    monkeypatch.setattr(event_objects, "created", worded)
    bench.reporter.tell(announcement("bad", about=pod("bad")))
    bench.reporter.tell(announcement("good", about=pod("good")))
    await bench.until(Outcome.DROPPED, 1)
    await bench.until(Outcome.TOLD, 1)
    assert (await bench.event())["message"] == "good"
