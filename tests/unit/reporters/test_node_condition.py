"""The node's condition, against a real API server."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from kubemend.agent.model.conditions import Condition, ConditionStatus
from kubemend.agent.reporters.node_condition import Intervals, NodeConditionReporter, Outcome
from kubemend.common import aio
from kubemend.common.components import ComponentState, ComponentStatus
from kubemend.common.kube import client, paths
from tests.control_plane import Tenant
from tests.unit.reporters.running import connected, started

KIND = "kubemend.io/DevicesHealthy"
FAST = Intervals(changed=0.0, reworded=0.0, burst=1000)


def condition(
    message: str = "", *, status: ConditionStatus = ConditionStatus.FALSE, reason: str = "Xid79"
) -> Condition:
    return Condition(KIND, status, reason, message)


class Env:
    """A running reporter, the outcomes of its attempts, and a client of the same server."""

    def __init__(self, tenant: Tenant, api: client.KubeClient, *, intervals: Intervals) -> None:
        self.server = tenant.server
        self.name = tenant.node
        self.path = f"{paths.NODES}/{tenant.node}"
        self.api = api
        self.now = 1.0
        self.outcomes: list[Outcome] = []
        self.attempts: asyncio.Queue[Outcome] = asyncio.Queue()
        self.reports: list[ComponentStatus] = []
        self.reporter = NodeConditionReporter(
            api=api,
            node_name=tenant.node,
            report=self._reported,
            on_outcome=self._took,
            clock=lambda: self.now,
            intervals=intervals,
            backoff=aio.Backoff(first=0.01, limit=0.05),
        )

    def _took(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)
        self.attempts.put_nowait(outcome)

    def _reported(self, status: ComponentStatus) -> None:
        if not self.reports or self.reports[-1] != status:  # as common.components does
            self.reports.append(status)

    async def node(self) -> None:
        """Create the node, with a condition of kubelet's."""
        ready = {"type": "Ready", "status": "True"}
        await self.api.create(paths.NODES, {"metadata": {"name": self.name}, "status": {"conditions": [ready]}})

    async def stored(self) -> dict[str, dict[str, Any]]:
        """Return the node's conditions as the API has them."""
        found = await self.api.get(self.path)
        return {item["type"]: item for item in found["status"].get("conditions", ())}

    async def version(self) -> str:
        found = await self.api.get(self.path)
        return str(found["metadata"]["resourceVersion"])

    async def until(self, outcome: Outcome) -> None:
        """Wait for an attempt with this outcome."""
        while await self.attempts.get() is not outcome:
            pass


@contextlib.asynccontextmanager
async def running(tenant: Tenant, *, intervals: Intervals = FAST, with_node: bool = True) -> AsyncIterator[Env]:
    async with connected(tenant) as api:
        env = Env(tenant, api, intervals=intervals)
        if with_node:
            await env.node()
        async with started(env.reporter):
            yield env


@pytest.fixture
async def env(tenant: Tenant) -> AsyncIterator[Env]:
    async with running(tenant) as made:
        yield made


async def test_set_condition_is_in_the_api_and_others_stay(env: Env) -> None:
    env.reporter.set(condition("GPU lost"))
    await env.until(Outcome.WRITTEN)
    stored = await env.stored()
    assert stored[KIND] == {
        "type": KIND,
        "status": "False",
        "reason": "Xid79",
        "message": "GPU lost",
        "lastHeartbeatTime": "1970-01-01T00:00:01Z",
        "lastTransitionTime": "1970-01-01T00:00:01Z",
    }
    assert stored["Ready"]["status"] == "True"
    assert env.reports[-1].state is ComponentState.READY


async def test_nothing_is_written_before_the_first_set(env: Env) -> None:
    env.reporter.set(condition("the first condition"))
    await env.until(Outcome.WRITTEN)
    assert env.reports[0].state is ComponentState.IDLE
    assert env.outcomes == [Outcome.WRITTEN]


async def test_transition_time_moves_only_with_the_status(env: Env) -> None:
    """Peer projects reset it when two reasons alternate, so that no repair ever began."""
    times = []
    for now, said in (
        (1.0, condition(reason="Xid79")),
        (2.0, condition(reason="Xid48")),
        (3.0, condition(reason="Xid79", message="again")),
        (4.0, condition(status=ConditionStatus.TRUE)),
    ):
        env.now = now
        env.reporter.set(said)
        await env.until(Outcome.WRITTEN)
        times.append((await env.stored())[KIND]["lastTransitionTime"][-3:])
    assert times == ["01Z", "01Z", "01Z", "04Z"]


async def test_same_condition_again_is_not_written(env: Env) -> None:
    env.reporter.set(condition("one"))
    await env.until(Outcome.WRITTEN)
    written = await env.version()
    env.reporter.set(condition("one"))
    for _ in range(5):  # more turns than a write takes
        assert await env.version() == written
    assert env.outcomes == [Outcome.WRITTEN]


async def test_ten_thousand_changes_cause_few_writes_and_end_correctly(tenant: Tenant) -> None:
    async with running(tenant, intervals=Intervals(changed=0.1, reworded=0.1)) as env:
        for number in range(10_000):
            env.reporter.set(condition(f"message {number}", reason=f"Xid{number}"))
            if number % 1000 == 0:
                await asyncio.sleep(0)
        await env.until(Outcome.WRITTEN)
        while (await env.stored())[KIND]["message"] != "message 9999":
            await env.until(Outcome.WRITTEN)
        assert len(env.outcomes) <= 3


async def test_message_change_waits_longer_than_status_change(tenant: Tenant) -> None:
    async with running(tenant, intervals=Intervals(changed=0.0, reworded=3600.0)) as env:
        env.reporter.set(condition("61 degrees"))
        await env.until(Outcome.WRITTEN)
        env.reporter.set(condition("62 degrees"))
        for _ in range(5):  # more turns than a write takes
            assert (await env.stored())[KIND]["message"] == "61 degrees"
        env.reporter.set(condition("63 degrees", status=ConditionStatus.TRUE))
        await env.until(Outcome.WRITTEN)
        env.reporter.set(condition("64 degrees", reason="Xid48", status=ConditionStatus.TRUE))
        await env.until(Outcome.WRITTEN)
        assert (await env.stored())[KIND]["message"] == "64 degrees"


async def test_flapping_device_does_not_write_indefinitely(tenant: Tenant) -> None:
    async with running(tenant, intervals=Intervals(changed=0.0, burst=3, refill=3600.0)) as env:
        for number in range(3):
            env.reporter.set(condition(reason=f"Xid{number}"))
            await env.until(Outcome.WRITTEN)
        env.reporter.set(condition(reason="Xid99"))
        for _ in range(5):  # more turns than a write takes
            assert (await env.stored())[KIND]["reason"] == "Xid2"
        assert env.outcomes == [Outcome.WRITTEN] * 3


async def test_heartbeat_updates_the_time(tenant: Tenant) -> None:
    async with running(tenant, intervals=Intervals(heartbeat=0.05)) as env:
        env.reporter.set(condition("one"))
        await env.until(Outcome.WRITTEN)
        env.now = 30.0
        await env.until(Outcome.WRITTEN)
        await env.until(Outcome.WRITTEN)
        found = (await env.stored())[KIND]
        assert (found["lastHeartbeatTime"][-3:], found["lastTransitionTime"][-3:]) == ("30Z", "01Z")


async def test_heartbeat_repairs_changes_by_other_writers(tenant: Tenant) -> None:
    async with running(tenant, intervals=Intervals(heartbeat=0.05)) as env:
        env.reporter.set(condition("ours"))
        await env.until(Outcome.WRITTEN)
        gone = {"status": {"conditions": [{"$patch": "delete", "type": KIND}]}}
        await env.api.patch_status(env.path, gone)
        await env.until(Outcome.WRITTEN)
        await env.until(Outcome.WRITTEN)
        found = (await env.stored())[KIND]
        assert found["message"] == "ours"
        assert "lastTransitionTime" in found


async def test_condition_of_a_previous_agent_keeps_its_transition_time(env: Env) -> None:
    old = {"type": KIND, "status": "False", "reason": "Xid79", "lastTransitionTime": "2020-01-01T00:00:00Z"}
    await env.api.patch_status(env.path, {"status": {"conditions": [old]}})
    env.reporter.set(condition("still"))
    await env.until(Outcome.WRITTEN)
    found = (await env.stored())[KIND]
    assert (found["message"], found["lastTransitionTime"]) == ("still", "2020-01-01T00:00:00Z")


async def test_outage_delays_and_writes_only_the_newest(env: Env) -> None:
    await env.server.stop()
    env.reporter.set(condition("old"))
    await env.until(Outcome.FAILED)
    assert [status.state for status in env.reports] == [ComponentState.IDLE]  # the API watch reports that
    env.reporter.set(condition("new", reason="Xid48"))
    await env.server.start()
    await env.until(Outcome.WRITTEN)
    assert (await env.stored())[KIND]["message"] == "new"
    assert env.outcomes.count(Outcome.WRITTEN) == 1
    assert env.reports[-1].state is ComponentState.READY


async def test_missing_node_is_waited_for(tenant: Tenant) -> None:
    async with running(tenant, with_node=False) as env:
        env.reporter.set(condition("waits"))
        await env.until(Outcome.NODE_GONE)
        assert env.reports[-1].message == f"the API server has no node {env.name}"
        assert "NODE_NAME" in env.reports[-1].hint
        await env.node()
        await env.until(Outcome.WRITTEN)
        assert (await env.stored())[KIND]["message"] == "waits"


async def test_recreated_node_gets_the_whole_condition(env: Env) -> None:
    env.reporter.set(condition("one"))
    await env.until(Outcome.WRITTEN)
    await env.api.delete(env.path)
    await env.node()
    env.now = 5.0
    env.reporter.set(condition("two"))
    await env.until(Outcome.WRITTEN)
    found = (await env.stored())[KIND]
    assert (found["message"], found["lastTransitionTime"][-3:]) == ("two", "05Z")


async def test_missing_permission_is_reported_once_with_the_needed_rule(env: Env) -> None:
    env.server.fail_next(4, status=403, method="PATCH")
    env.reporter.set(condition("x"))
    await env.until(Outcome.WRITTEN)
    assert env.outcomes == [Outcome.FAILED] * 4 + [Outcome.WRITTEN]
    (degraded,) = [status for status in env.reports if status.state is ComponentState.DEGRADED]
    assert 'allow verb "patch" on resource "nodes/status"' in degraded.hint


async def test_conflict_is_read_and_retried(env: Env) -> None:
    env.server.fail_next(1, status=409, method="PATCH")
    env.reporter.set(condition("x"))
    await env.until(Outcome.WRITTEN)
    assert env.outcomes == [Outcome.FAILED, Outcome.WRITTEN]


async def test_refused_condition_is_not_repeated(env: Env) -> None:
    env.server.fail_next(1, status=422, method="PATCH")
    env.reporter.set(condition("x"))
    await env.until(Outcome.REFUSED)
    assert env.reports[-1].state is ComponentState.DEGRADED
    env.reporter.set(condition("y"))
    await env.until(Outcome.WRITTEN)
    assert env.outcomes == [Outcome.REFUSED, Outcome.WRITTEN]
