"""Events are recorded in order, each once, while they are recent, and none blocks the others for long."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import cast

import pytest
from structlog.testing import capture_logs

from kubemend.common import aio
from kubemend.common.components import ComponentState, ComponentStatus
from kubemend.common.kube import client, event_recorder, paths, timestamps
from kubemend.common.kube.transport import Json
from tests import eventually
from tests.control_plane import Tenant
from tests.unit.reporters.running import connected, started


class Env:
    """A recorder, the server, and the time."""

    def __init__(self, tenant: Tenant, api: client.KubeClient, *, waiting: int) -> None:
        self.faults = tenant.server
        self.api = api
        self.namespace = tenant.namespace
        self.events = tenant.of("events")
        self.now = 1000.0
        self.reports: list[ComponentStatus] = []
        self.waiting = waiting
        self.renew()

    def renew(self) -> None:
        """Another leader takes over."""
        self.recorder = event_recorder.EventRecorder(
            api=self.api,
            report=self.reports.append,
            clock=lambda: self.now,
            backoff=aio.Backoff(first=0.01, limit=0.05),
            keep=60.0,
            waiting=self.waiting,
        )

    def record(self, name: str, *, path: str = "", may_repeat: bool = False) -> None:
        about = {"kind": "Pod", "namespace": self.namespace, "name": "a"}
        body = {"apiVersion": "v1", "metadata": {"name": name}, "reason": "Reported", "message": name, "count": 1}
        last = {"lastTimestamp": timestamps.rfc3339(self.now)}
        self.recorder.record(
            path or self.events, {**body, **last, "involvedObject": about}, at=self.now, may_repeat=may_repeat
        )

    async def has_reported(self, name: str) -> bool:
        return name in await self.reported()

    async def count(self, name: str) -> int:
        """Return an Event's count."""
        found = {each["message"]: each["count"] for each in (await self.api.list(self.events)).items}
        return int(found.get(name, 0))

    async def until_count(self, name: str, count: int) -> None:
        async def counted() -> bool:
            return await self.count(name) == count

        await eventually.true(counted)

    async def reported(self) -> list[str]:
        found = (await self.api.list(self.events)).items
        return [each["message"] for each in sorted(found, key=lambda each: int(each["metadata"]["resourceVersion"]))]

    async def until_reported(self, *names: str) -> None:
        async def all_reported() -> bool:
            return await self.reported() == [*names]

        await eventually.true(all_reported)


@contextlib.asynccontextmanager
async def running(tenant: Tenant, *, waiting: int = 10) -> AsyncIterator[Env]:
    async with connected(tenant) as api:
        yield Env(tenant, api, waiting=waiting)


async def test_all_are_recorded_in_order_once_the_server_is_back(tenant: Tenant) -> None:
    async with running(tenant) as env:
        env.faults.fail_next(3, status=500, method="POST", path="/events")
        async with started(env.recorder):
            for name in ("a", "b", "c"):
                env.record(name)
            await env.until_reported("a", "b", "c")
        states = [each.state for each in env.reports]
        assert (states[0], states[-1]) == (ComponentState.IDLE, ComponentState.READY)
        assert ComponentState.DEGRADED in states


async def test_quota_that_other_writers_change_at_the_same_time_loses_no_event(tenant: Tenant) -> None:
    async with running(tenant) as env:
        env.faults.fail_next(1, status=409, method="POST", path="/events")
        async with started(env.recorder):
            env.record("a")
            await env.until_reported("a")
        assert ComponentState.DEGRADED not in {each.state for each in env.reports}


async def test_recorded_event_is_not_recorded_again(tenant: Tenant) -> None:
    with capture_logs() as logs:
        async with running(tenant) as env, started(env.recorder):
            for name in ("a", "a", "b"):
                env.record(name)
            await env.until_reported("a", "b")
    assert "event.refused" not in {each["event"] for each in logs}


@pytest.mark.parametrize("status", [403, 404, 409, 422, 500])
async def test_refused_event_blocks_no_other(tenant: Tenant, status: int) -> None:
    async with running(tenant) as env:
        env.faults.fail_next(10_000, status=status, method="POST", path="/namespaces/elsewhere/")
        async with started(env.recorder):
            env.record("a", path=paths.collection("events", namespace="elsewhere"))
            env.record("b")
            await env.until_reported("b")


async def test_old_event_is_not_recorded(tenant: Tenant) -> None:
    async with running(tenant) as env:
        env.record("a")
        env.now += 61.0
        env.record("b")
        async with started(env.recorder):
            await env.until_reported("b")


async def test_error_does_not_outlast_the_last_event(tenant: Tenant) -> None:
    async with running(tenant) as env:
        env.faults.fail_next(10_000, status=500, method="POST", path="/events")
        async with started(env.recorder):
            env.record("a")
            await eventually.true(lambda: ComponentState.DEGRADED in {each.state for each in env.reports})
            env.now += 61.0
            await eventually.true(lambda: env.reports[-1].state is ComponentState.IDLE)


async def test_the_oldest_make_room(tenant: Tenant) -> None:
    async with running(tenant, waiting=2) as env:
        for name in ("a", "b", "c"):
            env.record(name)
        async with started(env.recorder):
            await env.until_reported("b", "c")


async def test_recurrence_is_counted_in_one_event(tenant: Tenant) -> None:
    async with running(tenant) as env, started(env.recorder):
        env.record("a", may_repeat=True)
        await env.until_count("a", 1)
        env.now += 61.0
        env.record("a", may_repeat=True)
        await env.until_count("a", 2)
        assert await env.reported() == ["a"]


async def test_frequent_event_is_written_rarely_and_counted_in_full(tenant: Tenant) -> None:
    async with running(tenant) as env, started(env.recorder):
        for _ in range(3):  # before the first could be written
            env.record("a", may_repeat=True)
        await env.until_count("a", 3)
        for _ in range(5):
            env.record("a", may_repeat=True)
        env.record("b")
        await eventually.true(lambda: env.has_reported("b"))
        assert await env.count("a") == 3, "a minute has not gone by"
        env.now += 61.0
        env.record("a", may_repeat=True)
        await env.until_count("a", 3 + 5 + 1)


async def test_a_successor_continues_the_count_and_a_lost_answer_counts_once(tenant: Tenant) -> None:
    async with running(tenant) as env:
        async with started(env.recorder):
            env.record("a", may_repeat=True)
            await env.until_count("a", 1)
        env.renew()
        async with started(env.recorder):
            env.record("a", may_repeat=True)  # at the same time: the attempt whose answer was lost
            env.record("b")
            await eventually.true(lambda: env.has_reported("b"))
            assert await env.count("a") == 1
            env.now += 61.0
            env.record("a", may_repeat=True)
            await env.until_count("a", 2)


class SlowApi:
    """An API server that answers a creation when it ``may_answer``."""

    def __init__(self) -> None:
        self.may_answer = asyncio.Event()
        self.counts: asyncio.Queue[int] = asyncio.Queue()

    async def create(self, path: str, body: Json) -> Json:
        await self.counts.put(1)
        await self.may_answer.wait()
        return body

    async def patch(self, path: str, change: Json, *, content_type: client.Patch) -> Json:
        await self.counts.put(change["count"])
        return change


@pytest.mark.parametrize(("later", "count"), [(59.0, 3), (60.0, 2)])
async def test_recurrence_during_a_slow_write_waits_for_no_other(later: float, count: int) -> None:
    """One that comes a minute after the first is written by itself; an earlier one with the next."""
    api, now = SlowApi(), 1000.0
    recorder = event_recorder.EventRecorder(api=cast("client.KubeClient", api), clock=lambda: now)
    body = {"apiVersion": "v1", "metadata": {"name": "a"}, "reason": "Failed", "count": 1}
    async with asyncio.timeout(30), started(recorder):
        recorder.record("/events", body, at=now, may_repeat=True)
        assert await api.counts.get() == 1
        recorder.record("/events", body, at=now + later, may_repeat=True)
        api.may_answer.set()
        await eventually.true(lambda: later < 60.0 or api.counts.qsize() == 1)
        now += 120.0
        recorder.record("/events", body, at=now, may_repeat=True)
        assert await api.counts.get() == count


async def test_expired_event_is_recorded_again(tenant: Tenant) -> None:
    async with running(tenant) as env, started(env.recorder):
        env.record("a", may_repeat=True)
        await env.until_count("a", 1)
        await env.api.delete(f"{env.events}/a")
        env.now += 61.0
        env.record("a", may_repeat=True)
        await env.until_count("a", 1)
