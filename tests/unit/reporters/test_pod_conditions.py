"""The reporter against the API stand-in."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from agent.model.conditions import Condition, ConditionStatus
from agent.model.workloads import PodRef, PodUid, PodView
from agent.reporters import status_conditions
from agent.reporters.pod_conditions import Outcome, PodConditionReporter
from agent.sources import pod_objects
from common.kube import client, paths
from hack.devnode.api import standin

HEALTHY = "kubemend.io/DevicesHealthy"


def condition(message: str, *, status: ConditionStatus = ConditionStatus.FALSE, kind: str = HEALTHY) -> Condition:
    return Condition(kind, status, "Xid31", message)


class Bench:
    """A reporter that runs, what became of its attempts, and a client of the same server."""

    def __init__(self, server: standin.StandIn, api: client.KubeClient, **options: Any) -> None:
        self.server = server
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
        created = await self.api.create(paths.collection("pods", namespace="default"), body)
        return PodRef("default", name, PodUid(created["metadata"]["uid"]))

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
async def running(tmp_path: Path, **options: Any) -> AsyncIterator[Bench]:
    async with (
        asyncio.timeout(60),
        standin.StandIn(kubeconfig=tmp_path / "kubeconfig") as server,
        client.connect(kubeconfig=server.kubeconfig, deadlines=client.Deadlines(call=1.0)) as api,
    ):
        bench = Bench(server, api, **options)
        task = asyncio.create_task(bench.reporter.run())
        try:
            yield bench
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with running(tmp_path, spacing=0.01) as made:
        yield made


async def test_what_is_set_is_in_the_api(bench: Bench) -> None:
    pod = await bench.pod("a")
    bench.reporter.set(pod, condition("page fault"))
    assert bench.reporter.pending() == 1
    await bench.flush()
    assert bench.reporter.pending() == 0
    found = (await bench.stored(pod))[HEALTHY]
    assert (found["status"], found["reason"], found["message"]) == ("False", "Xid31", "page fault")
    assert found["lastTransitionTime"] == "1970-01-01T00:00:01Z"


async def test_changes_that_come_together_go_out_together(bench: Bench) -> None:
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


async def test_conditions_of_an_earlier_agent_are_adopted(tmp_path: Path) -> None:
    async with running(tmp_path, spacing=0.01) as bench:
        pod = await bench.pod("a")
        bench.reporter.set(pod, condition("one"))
        await bench.flush()
        later = Bench(bench.server, bench.api)
        later.views[pod.uid] = await bench.view(pod)
        later.reporter.set(pod, condition("one"))
        assert later.reporter.pending() == 0


async def test_unwatched_pod_is_read_before_it_is_written(bench: Bench) -> None:
    """Else the transition time would move although the status did not change."""
    pod = await bench.pod("a")
    old = {"type": HEALTHY, "status": "False", "lastTransitionTime": "2020-01-01T00:00:00Z"}
    await bench.api.patch_status(paths.pod("default", "a"), {"status": {"conditions": [old]}})
    bench.reporter.set(pod, condition("new"))
    await bench.flush()
    assert (await bench.stored(pod))[HEALTHY]["lastTransitionTime"] == "2020-01-01T00:00:00Z"


async def test_outage_delays_and_delivers_only_the_newest(bench: Bench) -> None:
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
    await bench.api.delete(paths.pod("default", "a"))
    new = await bench.pod("a")
    bench.reporter.set(old, condition("of the old one"))
    await bench.flush()
    assert bench.outcomes == [Outcome.POD_GONE]
    assert await bench.stored(new) == {}


async def test_pod_that_is_gone_is_forgotten(bench: Bench) -> None:
    pod = await bench.pod("a")
    await bench.api.delete(paths.pod("default", "a"))
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


async def test_conflict_is_looked_at_and_tried_again(bench: Bench) -> None:
    pod = await bench.pod("a")
    bench.server.handler.faults.fail_next(1, status=409, method="PATCH")
    bench.reporter.set(pod, condition("x"))
    await bench.flush()
    assert bench.outcomes == [Outcome.FAILED, Outcome.WRITTEN]


async def test_refused_condition_is_not_repeated(bench: Bench) -> None:
    pod = await bench.pod("a")
    bench.server.handler.faults.fail_next(1, status=422, method="PATCH")
    bench.reporter.set(pod, condition("x"))
    await bench.flush()
    assert bench.outcomes == [Outcome.REFUSED]


async def test_lacking_permission_is_waited_out(bench: Bench) -> None:
    pod = await bench.pod("a")
    bench.server.handler.faults.fail_next(2, status=403, method="PATCH")
    bench.reporter.set(pod, condition("x"))
    await bench.flush()
    assert bench.outcomes == [Outcome.FAILED, Outcome.FAILED, Outcome.WRITTEN]


async def test_condition_that_another_writer_changed_is_set_right(tmp_path: Path) -> None:
    async with running(tmp_path, spacing=0.01, repair_after=0.05) as bench:
        pod = await bench.pod("a")
        bench.reporter.set(pod, condition("ours"))
        await bench.flush()
        theirs = {"type": HEALTHY, "status": "True", "reason": "Fake", "message": ""}
        await bench.api.patch_status(paths.pod("default", "a"), {"status": {"conditions": [theirs]}})
        bench.reporter.observe(await bench.view(pod))
        assert bench.reporter.pending() == 1
        await bench.flush()
        assert (await bench.stored(pod))[HEALTHY]["message"] == "ours"


async def test_late_echo_of_an_older_state_changes_nothing(bench: Bench) -> None:
    pod = await bench.pod("a")
    before = await bench.view(pod)
    bench.reporter.set(pod, condition("ours"))
    await bench.flush()
    bench.reporter.observe(before)
    assert bench.reporter.pending() == 0


async def test_memory_is_bounded(tmp_path: Path) -> None:
    async with running(tmp_path, max_pods=2) as bench:
        await bench.server.stop()
        for name in "abc":
            bench.reporter.set(PodRef("default", name, PodUid(name)), condition("x"))
        assert bench.reporter.pending() == 2
        assert Outcome.DROPPED in bench.outcomes


async def test_a_pod_that_cannot_be_written_about_leaves_the_others(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
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
