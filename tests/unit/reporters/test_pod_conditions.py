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
from kubemend.agent.sources import pod_objects
from kubemend.common.kube import client, paths
from tests.control_plane import Tenant
from tests.unit.reporters.running import connected, started

HEALTHY = "kubemend.io/DevicesHealthy"


def condition(message: str, *, status: ConditionStatus = ConditionStatus.FALSE, kind: str = HEALTHY) -> Condition:
    return Condition(kind, status, "Xid31", message)


class Bench:
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
async def running(tenant: Tenant, **options: Any) -> AsyncIterator[Bench]:
    async with connected(tenant) as api:
        bench = Bench(tenant, api, **options)
        async with started(bench.reporter):
            yield bench


@pytest.fixture
async def bench(tenant: Tenant) -> AsyncIterator[Bench]:
    async with running(tenant, spacing=0.01) as made:
        yield made


async def test_set_condition_is_in_the_api(bench: Bench) -> None:
    pod = await bench.pod("a")
    bench.reporter.set(pod, condition("page fault"))
    assert bench.reporter.pending() == 1
    await bench.flush()
    assert bench.reporter.pending() == 0
    found = (await bench.stored(pod))[HEALTHY]
    assert (found["status"], found["reason"], found["message"]) == ("False", "Xid31", "page fault")
    assert found["lastTransitionTime"] == "1970-01-01T00:00:01Z"


async def test_concurrent_changes_are_written_together(bench: Bench) -> None:
    pod = await bench.pod("a")
    for number in range(100):
        bench.reporter.set(pod, condition(f"message {number}"))
        bench.reporter.set(pod, condition(f"message {number}", kind="kubemend.io/DeviceFailure"))
    await bench.flush()
    assert bench.outcomes == [Outcome.WRITTEN]
    assert {item["message"] for item in (await bench.stored(pod)).values()} == {"message 99"}


async def test_same_condition_again_is_not_written(bench: Bench) -> None:
    pod = await bench.pod("a")
    for _ in range(2):
        bench.reporter.set(pod, condition("one"))
        await bench.flush()
    assert bench.outcomes == [Outcome.WRITTEN]


async def test_transition_time_moves_only_with_the_status(bench: Bench) -> None:
    pod = await bench.pod("a")
    times = []
    for now, said in (
        (1.0, condition("one")),
        (2.0, condition("two")),
        (3.0, condition("two", status=ConditionStatus.TRUE)),
    ):
        bench.now = now
        bench.reporter.set(pod, said)
        await bench.flush()
        times.append((await bench.stored(pod))[HEALTHY]["lastTransitionTime"][-3:])
    assert times == ["01Z", "01Z", "03Z"]


async def test_conditions_of_a_previous_agent_are_adopted(tenant: Tenant) -> None:
    async with running(tenant, spacing=0.01) as bench:
        pod = await bench.pod("a")
        bench.reporter.set(pod, condition("one"))
        await bench.flush()
        later = Bench(bench.tenant, bench.api)
        later.views[pod.uid] = await bench.view(pod)
        later.reporter.set(pod, condition("one"))
        assert later.reporter.pending() == 0


async def test_unwatched_pod_is_read_before_it_is_written(bench: Bench) -> None:
    """Otherwise the transition time would move although the status did not change."""
    pod = await bench.pod("a")
    old = {"type": HEALTHY, "status": "False", "lastTransitionTime": "2020-01-01T00:00:00Z"}
    await bench.api.patch_status(paths.pod(bench.namespace, "a"), {"status": {"conditions": [old]}})
    bench.reporter.set(pod, condition("new"))
    await bench.flush()
    assert (await bench.stored(pod))[HEALTHY]["lastTransitionTime"] == "2020-01-01T00:00:00Z"


async def test_outage_delays_and_writes_only_the_newest(bench: Bench) -> None:
    pod = await bench.pod("a")
    await bench.server.stop()
    bench.reporter.set(pod, condition("old"))
    assert await bench.attempts.get() is Outcome.FAILED
    bench.reporter.set(pod, condition("new"))
    assert not await bench.reporter.flush(timeout=0.01)
    await bench.server.start()
    await bench.flush()
    assert (await bench.stored(pod))[HEALTHY]["message"] == "new"
    assert bench.outcomes.count(Outcome.WRITTEN) == 1


async def test_new_pod_of_the_same_name_is_never_patched(bench: Bench) -> None:
    old = await bench.pod("a")
    bench.views[old.uid] = await bench.view(old)  # the watch lags behind
    await bench.api.delete(paths.pod(bench.namespace, "a"))
    new = await bench.pod("a")
    bench.reporter.set(old, condition("of the old one"))
    await bench.flush()
    assert bench.outcomes == [Outcome.POD_GONE]
    assert await bench.stored(new) == {}


async def test_deleted_pod_is_forgotten(bench: Bench) -> None:
    pod = await bench.pod("a")
    await bench.api.delete(paths.pod(bench.namespace, "a"))
    bench.reporter.set(pod, condition("too late"))
    await bench.flush()
    assert bench.outcomes == [Outcome.POD_GONE]


async def test_forgotten_pod_is_not_pending(bench: Bench) -> None:
    pod = await bench.pod("a")
    await bench.server.stop()
    bench.reporter.set(pod, condition("x"))
    await bench.attempts.get()
    bench.reporter.forget(pod.uid)
    assert bench.reporter.pending() == 0
    await bench.flush()


async def test_conflict_is_read_and_retried(bench: Bench) -> None:
    pod = await bench.pod("a")
    bench.server.fail_next(1, status=409, method="PATCH")
    bench.reporter.set(pod, condition("x"))
    await bench.flush()
    assert bench.outcomes == [Outcome.FAILED, Outcome.WRITTEN]


async def test_refused_condition_is_not_repeated(bench: Bench) -> None:
    pod = await bench.pod("a")
    bench.server.fail_next(1, status=422, method="PATCH")
    bench.reporter.set(pod, condition("x"))
    await bench.flush()
    assert bench.outcomes == [Outcome.REFUSED]


async def test_missing_permission_is_waited_out(bench: Bench) -> None:
    pod = await bench.pod("a")
    bench.server.fail_next(2, status=403, method="PATCH")
    bench.reporter.set(pod, condition("x"))
    await bench.flush()
    assert bench.outcomes == [Outcome.FAILED, Outcome.FAILED, Outcome.WRITTEN]


async def test_condition_changed_by_another_writer_is_repaired(tenant: Tenant) -> None:
    async with running(tenant, spacing=0.01, repair_after=0.05) as bench:
        pod = await bench.pod("a")
        bench.reporter.set(pod, condition("ours"))
        await bench.flush()
        theirs = {"type": HEALTHY, "status": "True", "reason": "Fake", "message": ""}
        await bench.api.patch_status(paths.pod(bench.namespace, "a"), {"status": {"conditions": [theirs]}})
        bench.reporter.observe(await bench.view(pod))
        assert bench.reporter.pending() == 1
        await bench.flush()
        assert (await bench.stored(pod))[HEALTHY]["message"] == "ours"


async def test_late_older_state_changes_nothing(bench: Bench) -> None:
    pod = await bench.pod("a")
    before = await bench.view(pod)
    bench.reporter.set(pod, condition("ours"))
    await bench.flush()
    bench.reporter.observe(before)
    assert bench.reporter.pending() == 0


async def test_memory_is_bounded(tenant: Tenant) -> None:
    async with running(tenant, max_pods=2) as bench:
        await bench.server.stop()
        for name in "abc":
            bench.reporter.set(PodRef(bench.namespace, name, PodUid(name)), condition("x"))
        assert bench.reporter.pending() == 2
        assert Outcome.DROPPED in bench.outcomes


async def test_unwritable_pod_does_not_affect_others(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bad, good = await bench.pod("bad"), await bench.pod("good")
    write = status_conditions.write

    async def written(api: Any, target: Any, **more: Any) -> bool:
        if target.uid == bad.uid:
            raise IndexError
        return await write(api, target, **more)

    with monkeypatch.context() as patched:
        patched.setattr(status_conditions, "write", written)
        for pod in (bad, good):
            bench.reporter.set(pod, condition("one"))
        await bench.flush()
        assert HEALTHY in await bench.stored(good)
    bench.reporter.set(bad, condition("two"))
    await bench.flush()
    assert (await bench.stored(bad))[HEALTHY]["message"] == "two"
