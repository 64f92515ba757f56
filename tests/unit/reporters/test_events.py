"""Events, against a real API server."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest

from kubemend.agent.model.event_messages import EventMessage, Level
from kubemend.agent.model.workloads import PodRef, PodUid
from kubemend.agent.reporters import event_objects
from kubemend.agent.reporters.events import EventReporter, Limits, Outcome
from kubemend.common import aio
from kubemend.common.components import ComponentState, ComponentStatus
from kubemend.common.kube import client, paths
from tests.control_plane import Tenant
from tests.unit.reporters.running import connected, started

EVENTS = paths.collection("events")
FAST = Limits(spacing=0.01)


def event_message(
    message: str = "GPU lost", *, about: PodRef | None = None, reason: str = "DeviceUnhealthy", **more: Any
) -> EventMessage:
    return EventMessage(
        **{"about": about, "reason": reason, "message": message, "at": 1000.0, "subject": "GPU-a", **more}
    )


class Env:
    """A running reporter, the outcomes of its messages, and a client of the same server."""

    def __init__(self, tenant: Tenant, api: client.KubeClient, *, limits: Limits) -> None:
        self.tenant = tenant
        self.server = tenant.server
        self.node = tenant.node
        self.api = api
        self.dealt_with: Counter[Outcome] = Counter()
        self.writes = 0
        self.reports: list[ComponentStatus] = []
        self.reporter = EventReporter(
            api=api,
            node_name=tenant.node,
            report=self._reported,
            on_outcome=self._took,
            limits=limits,
            backoff=aio.Backoff(first=0.01, limit=0.05),
        )
        self._news = asyncio.Event()

    def pod(self, name: str = "trainer-0", *, namespace: str = "") -> PodRef:
        """Return a pod that no other test uses; it need not exist."""
        return PodRef(namespace or self.tenant.namespace, name, PodUid(f"uid-of-{name}"))

    def _took(self, outcome: Outcome, occurrences: int) -> None:
        self.dealt_with[outcome] += occurrences
        self.writes += outcome is Outcome.WRITTEN
        self._news.set()

    def _reported(self, status: ComponentStatus) -> None:
        if not self.reports or self.reports[-1] != status:  # as common.components does
            self.reports.append(status)
            self._news.set()

    async def until(self, outcome: Outcome, occurrences: int) -> None:
        """Wait until a number of messages have this outcome."""
        while self.dealt_with[outcome] < occurrences:
            await self._news.wait()
            self._news.clear()

    async def until_part_is(self, state: ComponentState) -> ComponentStatus:
        while not self.reports or self.reports[-1].state is not state:
            await self._news.wait()
            self._news.clear()
        return self.reports[-1]

    async def events(self, selector: str = "") -> list[dict[str, Any]]:
        """Return the Events that this node's agent has written."""
        found = await self.api.list(EVENTS, params={"fieldSelector": selector} if selector else None)
        return [each for each in found.items if each["source"].get("host") == self.node]

    async def event(self) -> dict[str, Any]:
        """Return the only Event that there is."""
        (found,) = await self.events()
        return found


@contextlib.asynccontextmanager
async def running(tenant: Tenant, *, limits: Limits = FAST) -> AsyncIterator[Env]:
    async with connected(tenant) as api:
        env = Env(tenant, api, limits=limits)
        async with started(env.reporter):
            yield env


@pytest.fixture
async def env(tenant: Tenant) -> AsyncIterator[Env]:
    async with running(tenant) as made:
        yield made


async def test_pod_message_is_an_event_shown_by_describe(env: Env) -> None:
    pod = env.pod()
    env.reporter.record(event_message(about=pod, container="trainer"))
    await env.until(Outcome.WRITTEN, 1)
    selector = f"involvedObject.name=trainer-0,involvedObject.namespace={pod.namespace},involvedObject.uid={pod.uid}"
    (event,) = await env.events(selector)
    assert (event["type"], event["reason"], event["message"]) == ("Warning", "DeviceUnhealthy", "GPU lost")
    assert (event["count"], event["firstTimestamp"], event["lastTimestamp"]) == (
        1, "1970-01-01T00:16:40Z", "1970-01-01T00:16:40Z",
    )  # fmt: skip
    assert event["involvedObject"]["fieldPath"] == "spec.containers{trainer}"
    assert event["source"] == {"component": "kubemend", "host": env.node}
    assert env.reports[-1].state is ComponentState.READY


async def test_node_message_is_in_the_namespace_of_kubelets_events(env: Env) -> None:
    env.reporter.record(event_message(level=Level.NORMAL))
    await env.until(Outcome.WRITTEN, 1)
    event = await env.event()
    assert event["metadata"]["namespace"] == "default"
    assert (event["involvedObject"]["kind"], event["involvedObject"]["uid"]) == ("Node", env.node)
    assert event["type"] == "Normal"


async def test_repetition_is_counted_with_its_newest_text(env: Env) -> None:
    env.reporter.record(event_message("one"))
    await env.until(Outcome.WRITTEN, 1)
    for number in range(4):
        env.reporter.record(event_message(f"again {number}", at=2000.0 + number))
    await env.until(Outcome.WRITTEN, 5)
    event = await env.event()
    assert (event["count"], event["message"]) == (5, "again 3")
    assert (event["firstTimestamp"], event["lastTimestamp"]) == ("1970-01-01T00:16:40Z", "1970-01-01T00:33:23Z")


async def test_different_subjects_reasons_and_objects_are_different_events(env: Env) -> None:
    for each in (
        event_message(),
        event_message(subject="GPU-b"),
        event_message(reason="DeviceDegraded"),
        event_message(about=env.pod()),
        event_message(about=env.pod("trainer-1")),
    ):
        env.reporter.record(each)
    await env.until(Outcome.WRITTEN, 5)
    assert [event["count"] for event in await env.events()] == [1] * 5


async def test_ten_thousand_messages_cause_few_writes(tenant: Tenant) -> None:
    async with running(tenant, limits=Limits(spacing=0.05)) as env:
        for number in range(10_000):
            env.reporter.record(event_message(f"{number}", subject=f"GPU-{number % 8}"))
            if number % 500 == 0:
                await asyncio.sleep(0)
        await env.until(Outcome.WRITTEN, 10_000)
        assert sum(event["count"] for event in await env.events()) == 10_000
        assert env.writes <= 25


async def test_series_is_not_written_before_its_spacing(tenant: Tenant) -> None:
    async with running(tenant, limits=Limits(spacing=3600.0)) as env:
        env.reporter.record(event_message())
        await env.until(Outcome.WRITTEN, 1)
        env.reporter.record(event_message())
        env.reporter.record(event_message(subject="GPU-b"))
        await env.until(Outcome.WRITTEN, 2)
        assert [event["count"] for event in await env.events()] == [1, 1]


async def test_exhausted_allowance_does_not_delay_other_objects(tenant: Tenant) -> None:
    async with running(tenant, limits=Limits(spacing=0.0, burst=3, refill=3600.0)) as env:
        for number in range(10):
            env.reporter.record(event_message(subject=f"GPU-{number}"))
        env.reporter.record(event_message(about=env.pod()))
        await env.until(Outcome.WRITTEN, 4)
        assert Counter(event["involvedObject"]["kind"] for event in await env.events()) == {"Node": 3, "Pod": 1}


async def test_next_agent_continues_the_count(env: Env) -> None:
    env.reporter.record(event_message("found"))
    await env.until(Outcome.WRITTEN, 1)
    later = Env(env.tenant, env.api, limits=FAST)
    async with started(later.reporter):
        later.reporter.record(event_message("found once more, at the start"))
        await later.until(Outcome.KNOWN, 1)
        assert (await env.event())["message"] == "found"
        later.reporter.record(event_message("happened again", at=2000.0))
        await later.until(Outcome.WRITTEN, 1)
        event = await env.event()
        assert (event["count"], event["message"]) == (2, "happened again")


async def test_expired_event_is_created_again(env: Env) -> None:
    env.reporter.record(event_message("one"))
    await env.until(Outcome.WRITTEN, 1)
    event = await env.event()
    await env.api.delete(f"{event_objects.collection(event_message())}/{event['metadata']['name']}")
    env.reporter.record(event_message("two", at=9000.0))
    await env.until(Outcome.WRITTEN, 2)
    event = await env.event()
    assert (event["count"], event["message"], event["firstTimestamp"]) == (1, "two", "1970-01-01T02:30:00Z")


async def test_outage_is_waited_out_for_a_while(env: Env) -> None:
    await env.server.stop()
    env.reporter.record(event_message("during"))
    await env.server.start()
    await env.until(Outcome.WRITTEN, 1)
    assert (await env.event())["message"] == "during"


async def test_quota_that_other_writers_change_at_the_same_time_loses_no_message(env: Env) -> None:
    """Its admission answers 409 as well, although there is no such Event."""
    env.server.fail_next(1, status=409, method="POST", path="/events")
    env.reporter.record(event_message("contended"))
    await env.until(Outcome.WRITTEN, 1)
    assert (await env.event())["message"] == "contended"


async def test_message_that_cannot_be_recorded_in_time_is_dropped(tenant: Tenant) -> None:
    async with running(tenant, limits=Limits(keep=0.05)) as env:
        await env.server.stop()
        for number in range(10):
            env.reporter.record(event_message(subject=f"GPU-{number % 2}"))
        await env.until(Outcome.DROPPED, 10)
        await env.server.start()
        assert await env.events() == []


async def test_memory_is_bounded_and_dropped_messages_are_counted(tenant: Tenant) -> None:
    async with running(tenant, limits=Limits(series=5)) as env:
        await env.server.stop()
        for number in range(100):
            env.reporter.record(event_message(subject=f"GPU-{number}"))
        assert env.dealt_with == {Outcome.DROPPED: 95}


async def test_missing_permission_is_reported_once_with_the_needed_rule(env: Env) -> None:
    env.server.fail_next(3, status=403, method="POST")
    env.reporter.record(event_message())
    degraded = await env.until_part_is(ComponentState.DEGRADED)
    assert 'allow verb "create" on resource "events"' in degraded.hint
    await env.until(Outcome.WRITTEN, 1)
    assert [status.state for status in env.reports] == [
        ComponentState.IDLE,
        ComponentState.DEGRADED,
        ComponentState.READY,
    ]


async def test_refusal_does_not_outlast_the_message(tenant: Tenant) -> None:
    """The permission may exist by then, and the next message may come in a month: the agent would not be ready."""
    async with running(tenant, limits=Limits(keep=0.2)) as env:
        env.server.fail_next(10_000, status=403, method="POST")
        env.reporter.record(event_message())
        await env.until_part_is(ComponentState.DEGRADED)
        assert (await env.until_part_is(ComponentState.IDLE)).message == "no events to record"
        assert env.dealt_with == {Outcome.DROPPED: 1}


async def test_refusal_in_one_namespace_does_not_delay_others(env: Env) -> None:
    env.server.fail_next(10_000, status=403, method="POST", path="/namespaces/kube-system/")
    env.reporter.record(event_message(about=env.pod(namespace="kube-system")))
    await env.until_part_is(ComponentState.DEGRADED)
    env.reporter.record(event_message())
    await env.until(Outcome.WRITTEN, 1)


async def test_deleted_namespace_costs_one_message_and_delays_nothing(env: Env) -> None:
    env.reporter.record(event_message(about=env.pod(namespace="nowhere")))
    env.reporter.record(event_message())
    await env.until(Outcome.REFUSED, 1)
    await env.until(Outcome.WRITTEN, 1)


async def test_policy_of_one_namespace_degrades_nothing(env: Env) -> None:
    denied = 'events "x" is forbidden: ValidatingAdmissionPolicy "no-events" with binding "team" denied request: none'
    env.server.fail_next(1, status=403, method="POST", message=denied)
    env.reporter.record(event_message(about=env.pod()))
    await env.until(Outcome.REFUSED, 1)
    env.reporter.record(event_message("another", reason="Other"))
    await env.until(Outcome.WRITTEN, 1)
    assert ComponentState.DEGRADED not in {each.state for each in env.reports}


async def test_event_refused_by_the_server_is_not_repeated(env: Env) -> None:
    env.server.fail_next(1, status=422, method="POST")
    env.reporter.record(event_message())
    await env.until(Outcome.REFUSED, 1)


def test_event_name_is_a_dns_name() -> None:
    about = PodRef("default", "a" * 229 + "." + "b" * 20, PodUid("u"))
    long = event_objects.name(event_message(about=about), node="node-1")
    assert len(long) <= 253
    assert ".." not in long


def test_message_has_no_control_characters() -> None:
    body = event_objects.created(event_message("no heartbeat in /a\x1b[2J\nb"), node="n", count=1, first=0.0)
    assert body["message"] == "no heartbeat in /a [2J b"


def test_long_message_is_cut() -> None:
    event = event_objects.continued(event_message("x" * 5000), count=1)
    assert len(event["message"]) == event_objects.MAX_MESSAGE


async def test_unrecordable_message_does_not_affect_others(env: Env, monkeypatch: pytest.MonkeyPatch) -> None:
    created = event_objects.created

    def worded(about: EventMessage, **more: Any) -> dict[str, Any]:
        if about.message == "bad":
            raise IndexError
        return created(about, **more)

    monkeypatch.setattr(event_objects, "created", worded)
    env.reporter.record(event_message("bad", about=env.pod("bad")))
    env.reporter.record(event_message("good", about=env.pod("good")))
    await env.until(Outcome.DROPPED, 1)
    await env.until(Outcome.WRITTEN, 1)
    assert (await env.event())["message"] == "good"
