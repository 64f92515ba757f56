"""The reporter against a real API server."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from kubemend.agent.model.conditions import Condition, ConditionStatus
from kubemend.agent.model.workloads import PodRef, PodUid, PodView
from kubemend.agent.reporters import status_conditions
from kubemend.agent.reporters.pod_conditions import Outcome, PodConditionReporter
from kubemend.agent.restarts.slots import Slots
from kubemend.agent.sources import pod_objects
from kubemend.common import aio
from kubemend.common.kube import client, paths
from tests.control_plane import Tenant
from tests.unit.reporters.running import connected, started

HEALTHY = "kubemend.io/DevicesHealthy"


def condition(message: str, *, status: ConditionStatus = ConditionStatus.FALSE, kind: str = HEALTHY) -> Condition:
    return Condition(kind, status, "Xid31", message)


class Env:
    """A running reporter, the outcomes of its attempts, and a client of the same server."""

    def __init__(self, tenant: Tenant, api: client.KubeClient, **options: Any) -> None:
        self.tenant = tenant
        self.server = tenant.server
        self.namespace = tenant.namespace
        self.api = api
        self.now = 1.0
        self.views: dict[PodUid, PodView] = {}
        self.outcomes: list[Outcome] = []
        self.attempts: asyncio.Queue[Outcome] = asyncio.Queue()
        self.reporter = PodConditionReporter(
            api=api,
            look_up=self.views.get,
            slots=Slots(8),
            on_outcome=self._took,
            clock=lambda: self.now,
            **options,
        )

    def _took(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)
        self.attempts.put_nowait(outcome)

    async def pod(self, name: str) -> PodRef:
        """Create a pod."""
        body = {"metadata": {"name": name}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
        created = await self.api.create(self.tenant.of("pods"), body)
        return PodRef(self.namespace, name, PodUid(created["metadata"]["uid"]))

    async def view(self, pod: PodRef) -> PodView:
        """Return the pod as a watch would show it."""
        return pod_objects.pod_view(await self.api.get(paths.pod(pod.namespace, pod.name)))

    async def stored(self, pod: PodRef) -> dict[str, dict[str, Any]]:
        """Return the pod's conditions as the API has them."""
        found = await self.api.get(paths.pod(pod.namespace, pod.name))
        return {item["type"]: item for item in found["status"].get("conditions", ())}

    async def flush(self) -> None:
        assert await self.reporter.flush(timeout=60)


@contextlib.asynccontextmanager
async def running(tenant: Tenant, **options: Any) -> AsyncIterator[Env]:
    async with connected(tenant) as api:
        env = Env(tenant, api, **options)
        async with started(env.reporter):
            yield env


@pytest.fixture
async def env(tenant: Tenant) -> AsyncIterator[Env]:
    async with running(tenant, spacing=0.01) as made:
        yield made


async def test_set_condition_is_in_the_api(env: Env) -> None:
    pod = await env.pod("a")
    env.reporter.set(pod, condition("page fault"))
    assert env.reporter.pending() == 1
    await env.flush()
    assert env.reporter.pending() == 0
    found = (await env.stored(pod))[HEALTHY]
    assert (found["status"], found["reason"], found["message"]) == ("False", "Xid31", "page fault")
    assert found["lastTransitionTime"] == "1970-01-01T00:00:01Z"


async def test_concurrent_changes_are_written_together(env: Env) -> None:
    pod = await env.pod("a")
    for number in range(100):
        env.reporter.set(pod, condition(f"message {number}"))
        env.reporter.set(pod, condition(f"message {number}", kind="kubemend.io/DeviceFailure"))
    await env.flush()
    assert env.outcomes == [Outcome.WRITTEN]
    assert {item["message"] for item in (await env.stored(pod)).values()} == {"message 99"}


async def test_same_condition_again_is_not_written(env: Env) -> None:
    pod = await env.pod("a")
    for _ in range(2):
        env.reporter.set(pod, condition("one"))
        await env.flush()
    assert env.outcomes == [Outcome.WRITTEN]


async def test_flapping_device_does_not_write_indefinitely(tenant: Tenant) -> None:
    """A program that fails and is restarted in its container changes its device's health several times a second."""
    async with running(tenant, spacing=0.0, burst=3, refill=3600.0) as env:
        flapping, other = await env.pod("a"), await env.pod("b")
        for number in range(3):
            env.reporter.set(flapping, condition(f"message {number}"))
            await env.flush()
        env.reporter.set(flapping, condition("message 3"))
        env.reporter.set(other, condition("another pod's"))
        while env.reporter.pending() > 1:
            await env.attempts.get()
        assert (await env.stored(flapping))[HEALTHY]["message"] == "message 2"
        assert env.outcomes == [Outcome.WRITTEN] * 4
        env.reporter.set(flapping, condition("message 2"))
        assert env.reporter.pending() == 0  # it is as before, so nothing is left to write


async def test_newest_condition_is_written_when_the_allowance_permits(tenant: Tenant) -> None:
    async with running(tenant, spacing=0.0, burst=1, refill=0.3) as env:
        pod = await env.pod("a")
        for number in range(10):
            env.reporter.set(pod, condition(f"message {number}"))
            await asyncio.sleep(0)
        await env.flush()
        assert (await env.stored(pod))[HEALTHY]["message"] == "message 9"
        assert len(env.outcomes) <= 2


async def test_transition_time_moves_only_with_the_status(env: Env) -> None:
    pod = await env.pod("a")
    times = []
    for now, said in (
        (1.0, condition("one")),
        (2.0, condition("two")),
        (3.0, condition("two", status=ConditionStatus.TRUE)),
    ):
        env.now = now
        env.reporter.set(pod, said)
        await env.flush()
        times.append((await env.stored(pod))[HEALTHY]["lastTransitionTime"][-3:])
    assert times == ["01Z", "01Z", "03Z"]


async def test_conditions_of_a_previous_agent_are_adopted(tenant: Tenant) -> None:
    async with running(tenant, spacing=0.01) as env:
        pod = await env.pod("a")
        env.reporter.set(pod, condition("one"))
        await env.flush()
        later = Env(env.tenant, env.api)
        later.views[pod.uid] = await env.view(pod)
        later.reporter.set(pod, condition("one"))
        assert later.reporter.pending() == 0


async def test_unwatched_pod_is_read_before_it_is_written(env: Env) -> None:
    """Otherwise the transition time would move although the status did not change."""
    pod = await env.pod("a")
    old = {"type": HEALTHY, "status": "False", "lastTransitionTime": "2020-01-01T00:00:00Z"}
    await env.api.patch_status(paths.pod(env.namespace, "a"), {"status": {"conditions": [old]}})
    env.reporter.set(pod, condition("new"))
    await env.flush()
    assert (await env.stored(pod))[HEALTHY]["lastTransitionTime"] == "2020-01-01T00:00:00Z"


async def test_outage_delays_and_writes_only_the_newest(env: Env) -> None:
    pod = await env.pod("a")
    await env.server.stop()
    env.reporter.set(pod, condition("old"))
    assert await env.attempts.get() is Outcome.FAILED
    env.reporter.set(pod, condition("new"))
    assert not await env.reporter.flush(timeout=0.01)
    await env.server.start()
    await env.flush()
    assert (await env.stored(pod))[HEALTHY]["message"] == "new"
    assert env.outcomes.count(Outcome.WRITTEN) == 1


async def test_new_pod_of_the_same_name_is_never_patched(env: Env) -> None:
    old = await env.pod("a")
    env.views[old.uid] = await env.view(old)  # the watch lags behind
    await env.api.delete(paths.pod(env.namespace, "a"))
    new = await env.pod("a")
    env.reporter.set(old, condition("of the old one"))
    await env.flush()
    assert env.outcomes == [Outcome.POD_GONE]
    assert await env.stored(new) == {}


async def test_deleted_pod_is_forgotten(env: Env) -> None:
    pod = await env.pod("a")
    await env.api.delete(paths.pod(env.namespace, "a"))
    env.reporter.set(pod, condition("too late"))
    await env.flush()
    assert env.outcomes == [Outcome.POD_GONE]


async def test_forgotten_pod_is_not_pending(env: Env) -> None:
    pod = await env.pod("a")
    await env.server.stop()
    env.reporter.set(pod, condition("x"))
    await env.attempts.get()
    env.reporter.forget(pod.uid)
    assert env.reporter.pending() == 0
    await env.flush()


async def test_conflict_is_read_and_retried(env: Env) -> None:
    pod = await env.pod("a")
    env.server.fail_next(1, status=409, method="PATCH")
    env.reporter.set(pod, condition("x"))
    await env.flush()
    assert env.outcomes == [Outcome.FAILED, Outcome.WRITTEN]


async def test_refused_condition_is_not_repeated(env: Env) -> None:
    pod = await env.pod("a")
    env.server.fail_next(1, status=422, method="PATCH")
    env.reporter.set(pod, condition("x"))
    await env.flush()
    assert env.outcomes == [Outcome.REFUSED]


async def test_missing_permission_is_waited_out(env: Env) -> None:
    pod = await env.pod("a")
    env.server.fail_next(2, status=403, method="PATCH")
    env.reporter.set(pod, condition("x"))
    assert [await env.attempts.get() for _ in range(3)] == [Outcome.FAILED, Outcome.FAILED, Outcome.WRITTEN]


async def test_stop_does_not_wait_for_what_a_policy_forbids(env: Env) -> None:
    pod = await env.pod("a")
    forbidding = env.server.fail_next(10_000, status=403, method="PATCH", message="denied by a policy")
    env.reporter.set(pod, condition("x"))
    assert not await env.reporter.flush(timeout=0.0), "the first write may succeed"
    assert await env.attempts.get() is Outcome.FAILED
    await env.flush()
    assert env.reporter.pending() == 1
    env.server.rules.remove(forbidding)
    while await env.attempts.get() is not Outcome.WRITTEN:
        pass
    assert env.reporter.pending() == 0


async def test_forbidden_conditions_are_tried_ever_more_rarely(env: Env, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: asyncio.Queue[float] = asyncio.Queue()

    async def waited(backoff: aio.Backoff) -> None:
        waits.put_nowait(backoff.next_wait())
        await asyncio.sleep(0)

    monkeypatch.setattr(aio.Backoff, "wait", waited)
    env.server.fail_next(10_000, status=403, method="PATCH", message="denied by a policy")
    env.reporter.set(await env.pod("a"), condition("x"))
    assert [await waits.get() for _ in range(14)][-1] > 200.0


async def test_condition_changed_by_another_writer_is_repaired(tenant: Tenant) -> None:
    async with running(tenant, spacing=0.01, repair_after=0.05) as env:
        pod = await env.pod("a")
        env.reporter.set(pod, condition("ours"))
        await env.flush()
        theirs = {"type": HEALTHY, "status": "True", "reason": "Fake", "message": ""}
        await env.api.patch_status(paths.pod(env.namespace, "a"), {"status": {"conditions": [theirs]}})
        env.reporter.observe(await env.view(pod))
        assert env.reporter.pending() == 1
        await env.flush()
        assert (await env.stored(pod))[HEALTHY]["message"] == "ours"


async def test_late_older_state_changes_nothing(env: Env) -> None:
    pod = await env.pod("a")
    before = await env.view(pod)
    env.reporter.set(pod, condition("ours"))
    await env.flush()
    env.reporter.observe(before)
    assert env.reporter.pending() == 0


async def test_memory_is_bounded(tenant: Tenant) -> None:
    async with running(tenant, max_pods=2) as env:
        await env.server.stop()
        for name in "abc":
            env.reporter.set(PodRef(env.namespace, name, PodUid(name)), condition("x"))
        assert env.reporter.pending() == 2
        assert Outcome.DROPPED in env.outcomes


async def test_unwritable_pod_does_not_affect_others(env: Env, monkeypatch: pytest.MonkeyPatch) -> None:
    bad, good = await env.pod("bad"), await env.pod("good")
    write = status_conditions.write

    async def written(api: Any, target: Any, **more: Any) -> bool:
        if target.uid == bad.uid:
            raise IndexError
        return await write(api, target, **more)

    with monkeypatch.context() as patched:
        patched.setattr(status_conditions, "write", written)
        for pod in (bad, good):
            env.reporter.set(pod, condition("one"))
        await env.flush()
        assert HEALTHY in await env.stored(good)
    env.reporter.set(bad, condition("two"))
    await env.flush()
    assert (await env.stored(bad))[HEALTHY]["message"] == "two"


async def test_namespace_whose_writes_hang_does_not_delay_others(env: Env, monkeypatch: pytest.MonkeyPatch) -> None:
    good, write, answered = await env.pod("good"), status_conditions.write, asyncio.Event()

    async def written(api: Any, target: Any, **more: Any) -> bool:
        if target.uid != good.uid:
            await answered.wait()  # a webhook of that namespace does not answer
        return await write(api, target, **more)

    monkeypatch.setattr(status_conditions, "write", written)
    for number in range(20):
        env.reporter.set(PodRef("slow", f"pod-{number}", PodUid(f"slow-{number}")), condition("one"))
    env.reporter.set(good, condition("one"))
    async with asyncio.timeout(60):
        assert await env.attempts.get() is Outcome.WRITTEN
    assert HEALTHY in await env.stored(good)
    answered.set()
    await env.flush()
    assert env.outcomes.count(Outcome.POD_GONE) == 20
