"""Count restarts for budgets: exact under concurrency, known to the next agent, shown in conditions and metrics."""

import asyncio
from dataclasses import dataclass, replace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from kubemend.agent.clients.journal.store import COUNT_SECONDS, Store
from kubemend.agent.devices.suspicion import SuspicionTracker
from kubemend.agent.model import conditions
from kubemend.agent.model.actions import ActionClass
from kubemend.agent.model.findings import Finding, FindingKind
from kubemend.agent.model.workloads import ContainerState, PodUid
from kubemend.agent.restart import admission, budget, intents, overrides
from kubemend.agent.restart.counts import Begun, History
from kubemend.agent.restart.reasons import Reason
from kubemend.agent.restarts.budgets import BudgetGauges, Budgets
from kubemend.agent.restarts.requests import Request
from kubemend.agent.restarts.scheduler import RestartScheduler
from kubemend.common import contained
from kubemend.common.budgets import Window
from tests.environments.node import NodeEnv
from tests.environments.restarts import NOW, RestartEnv
from tests.environments.runtime import POD, TARGET
from tests.fakes import outside
from tests.unit.restart import builders

STORM = Window(limit=2, seconds=300.0)
GPU = outside.GPU.uuid


def facts(**changes: Any) -> admission.Facts:
    defaults: dict[str, Any] = {
        "target": builders.TARGET,
        "cause": admission.Cause(code="Xid31", message="Xid 31", happened_at=NOW - 1, device=GPU),
        "pod": builders.pod(),
        "runtime": admission.RuntimeFacts(ContainerState.RUNNING, None, NOW - 100, sandbox_ready=True),
        "owner": admission.OwnerFacts(),
    }
    return admission.Facts(**defaults | changes)


SWAP = admission.Decision(
    admission.Verb.ACT,
    Reason.ADMITTED,
    strategy=intents.Strategy.SWAP,
    orders={"trainer": intents.SwapOrder.STOP_FIRST},
)


def budgets(store: Store) -> Budgets:
    return Budgets(store=store, now=lambda: NOW, storm=STORM)


def counted(made: Budgets) -> int:
    return len(made.history(builders.TARGET, device=GPU).node)


async def test_count_whose_containers_cannot_be_read_counts_for_each_of_its_pod_only(store: Store) -> None:
    await store.begin(
        builders.intent(), counted=Begun(builders.POD.uid, frozenset({"a"}), at=NOW - 1, fault_at=NOW - 1)
    )
    store._connection.execute("UPDATE begun SET containers = '{'")
    before, made = contained.count([contained.Part.RECORD]), budgets(store)
    with capture_logs() as logged:
        await made.load()
    assert [entry["event"] for entry in logged] == ["budget.unreadable"]
    assert contained.count([contained.Part.RECORD]) == before + 1
    assert len(made.history(builders.TARGET, device=None).container) == 1
    other = replace(builders.TARGET, pod=replace(builders.POD, uid=PodUid("other")))
    assert made.history(other, device=None).container == ()


async def test_budgets_admitted_restart_counts_before_it_starts(store: Store) -> None:
    made = budgets(store)
    with made.counting(facts(), SWAP), made.counting(facts(), SWAP):
        history = made.history(builders.TARGET, device=GPU)
        assert [len(each) for each in (history.container, history.pod, history.device, history.node)] == [2, 2, 2, 2]
    assert counted(made) == 0


async def test_budgets_started_restart_counts_once_during_and_after(store: Store) -> None:
    made = budgets(store)
    with made.counting(facts(), SWAP) as restart:
        restart.has_begun()
        assert counted(made) == 1
    assert counted(made) == 1


async def test_budgets_restart_of_more_than_a_day_ago_is_dropped(store: Store) -> None:
    times = [NOW, NOW + COUNT_SECONDS]
    made = Budgets(store=store, now=lambda: times[0], storm=STORM)
    while times:
        with made.counting(facts(), SWAP) as restart:
            restart.has_begun()
        times.pop(0)
    assert [each.at for each in made.all()] == [NOW + COUNT_SECONDS]


async def test_budgets_whole_pod_restart_counts_once_for_every_container(store: Store) -> None:
    made = budgets(store)
    both = (*builders.pod().containers, replace(builders.pod().containers[0], name="logger"))
    whole = replace(SWAP, strategy=intents.Strategy.RESET, orders={})
    with made.counting(facts(pod=builders.pod(containers=both)), whole) as restart:
        restart.has_begun()
    (begun,) = made.all()
    names, namespace = frozenset({"trainer", "logger"}), builders.POD.namespace
    assert begun == Begun(builders.POD.uid, names, NOW, NOW - 1, GPU, namespace)


async def test_budgets_restart_of_previous_agent_counts(store: Store) -> None:
    before = budgets(store)
    with before.counting(facts(), SWAP) as restart:
        await store.begin(builders.intent(), counted=restart.restart)
        restart.has_begun()
    after = budgets(store)
    await asyncio.gather(after.load(), after.load())  # two faults at the agent's start
    assert after.all() == tuple(replace(each, namespace="") for each in before.all())


async def test_budgets_the_count_of_a_previous_agents_restart_is_the_latest_of_its_containers_before_it(
    store: Store,
) -> None:
    intent = builders.intent(created_at=NOW - 5)
    mine = Begun(builders.POD.uid, frozenset({"trainer", "logger"}), at=NOW - 6, fault_at=NOW - 7)
    earlier, later = replace(mine, at=NOW - 60), replace(mine, at=NOW - 1)
    others = (
        replace(mine, pod=PodUid("other"), at=NOW - 5.5),
        replace(mine, containers=frozenset({"logger"}), at=NOW - 5),
    )
    await begin(store, earlier, mine, later, *others)
    made = budgets(store)
    await made.load()
    found = made.of_previous([intent])
    assert found is not None
    assert found.restart == mine
    assert made.of_previous([replace(intent, created_at=NOW - 90)]) is None


async def test_budgets_only_what_replaces_a_cancelled_restart_takes_it_from_the_journal(store: Store) -> None:
    made = budgets(store)
    later = replace(facts().cause, happened_at=NOW - 0.5)
    causes = {"cancelled": facts().cause, "other-fault": later, "replacement": facts().cause}
    for name, cause in causes.items():
        with made.counting(facts(cause=cause), SWAP) as restart:
            await store.begin(builders.intent(id=name), counted=restart.restart, instead_of=restart.replaced())
            restart.has_begun()
        if name == "cancelled":
            restart.cancel()
        assert len(await store.begun_since(0.0)) == (1 if name == "cancelled" else 2)
    assert sorted(each.fault_at for each in await store.begun_since(0.0)) == [NOW - 1, NOW - 0.5]
    assert sorted(each.fault_at for each in made.all()) == [NOW - 1, NOW - 0.5]


# ---- in a restart ----


@dataclass
class Guarded:
    """The env with a storm guard of two restarts, and the suspicions that were raised."""

    env: RestartEnv
    suspicions: list[Finding]
    registry: CollectorRegistry

    def request(self, **changes: Any) -> Request:
        cause = admission.Cause(code="Xid31", message="Xid 31", happened_at=NOW, device=GPU)
        return Request(target=TARGET, cause=lambda: cause, devices=frozenset(), **changes)

    async def held_for(self, reason: str) -> conditions.Condition:
        """Request a restart that is put on hold; return the condition's message."""
        held = asyncio.create_task(self.env.restarts.submit(self.request()))
        async with asyncio.timeout(30):
            condition = await self.env.said.wait_for(POD, conditions.IN_PLACE_RESTART, reason)
        held.cancel()
        await asyncio.gather(held, return_exceptions=True)
        return condition

    def reported(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(name, labels)


@pytest.fixture
async def guarded(env: RestartEnv) -> Guarded:
    """The pod has opted in; a restart of another pod started a minute ago."""
    await env.pod.pods.put(replace(env.pod.pods.pods()[POD.uid], annotations={"kubemend.io/restart": "InPlace"}))
    suspicions: list[Finding] = []
    node = NodeEnv(store=env.store)
    suspects = SuspicionTracker(
        verdict_store=None,  # type: ignore[arg-type]  # nothing checks suspicions here
        driver=None,  # type: ignore[arg-type]
        processes=None,  # type: ignore[arg-type]
        submit=suspicions.append,
        classify=lambda _, __: ActionClass.OBSERVE,
        now=lambda: NOW,
    )
    env.restarts = RestartScheduler(
        dependencies=env.dependencies,
        store=env.store,
        metrics=node.metrics,
        now=lambda: NOW,
        storm=STORM,
        suspects=suspects,
    )
    return Guarded(env, suspicions, node.registry)


async def begin(store: Store, *begun: Begun) -> None:
    """Journal restarts that a previous agent started."""
    for number, each in enumerate(begun):
        await store.begin(builders.intent(id=f"earlier-{number}"), counted=each)
        await store.finish(f"earlier-{number}", outcome="Swapped", now=NOW)


def elsewhere(at: float, *, device: str | None = None) -> Begun:
    return Begun(builders.POD.uid, frozenset({"else"}), at=at, fault_at=at - 0.5, device=device)


async def test_storm_of_previous_agent_holds_until_its_end(guarded: Guarded) -> None:
    await begin(guarded.env.store, elsewhere(NOW - 100), elsewhere(NOW - 50))
    condition = await guarded.held_for("NodeStorm")
    assert "opens again at 2286-11-20T17:50:00Z" in condition.message  # NOW - 100 + 300
    assert guarded.reported("kubemend_node_restart_budget_left") == 0.0


async def test_storm_guard_manual_request_passes_and_counts(guarded: Guarded) -> None:
    await begin(guarded.env.store, elsewhere(NOW - 100), elsewhere(NOW - 50))
    async with guarded.env.kubelet():
        await guarded.env.restarts.submit(guarded.request(asked=overrides.RestartOverrides()))
    condition = guarded.env.said.said[POD, conditions.IN_PLACE_RESTART]
    assert condition.message.endswith("; verified")
    assert len(await guarded.env.store.begun_since(NOW - 1)) == 1


async def test_device_budget_spent_marks_device_suspect(guarded: Guarded) -> None:
    await begin(guarded.env.store, *(elsewhere(NOW - 80 + 10 * number, device=GPU) for number in range(8)))
    condition = await guarded.held_for("DeviceBudgetSpent")
    assert "opens again at" in condition.message
    (suspicion,) = guarded.suspicions
    assert (suspicion.kind, suspicion.device.uuid) == (FindingKind.RESTARTS_INEFFECTIVE, GPU)


# ---- metrics ----


def test_gauges_show_only_used_budgets_of_present_pods() -> None:
    pods = outside.Pods(builders.pod(annotations={"kubemend.io/max-restarts": "3"}))
    made = Budgets(store=None, now=lambda: NOW, storm=STORM)  # type: ignore[arg-type]  # nothing is loaded
    registry = CollectorRegistry()
    registry.register(BudgetGauges(made, pods=pods, now=lambda: NOW))

    def reported() -> dict[tuple[str, tuple[str, ...]], float]:
        samples = (sample for family in registry.collect() for sample in family.samples)
        return {(each.name, tuple(each.labels.values())): each.value for each in samples}

    assert reported() == {("kubemend_node_restart_budget_left", ()): 2.0}
    with made.counting(facts(), SWAP) as restart:
        restart.has_begun()
    gone = Begun("uid-gone", frozenset({"trainer"}), at=NOW, fault_at=NOW)  # type: ignore[arg-type]
    made._begun.append(gone)
    made._begun.append(replace(gone, at=NOW - 4000.0, device="GPU-9"))
    assert reported() == {
        ("kubemend_restart_budget_left", ("default", "trainer-0", "")): 5.0,
        ("kubemend_restart_budget_left", ("default", "trainer-0", "trainer")): 2.0,
        ("kubemend_device_restart_budget_left", (GPU,)): 7.0,
        ("kubemend_node_restart_budget_left", ()): 0.0,
    }


class Names(frozenset[str]):
    """Names of containers that count how often they are searched."""

    searched = 0

    def __contains__(self, name: object) -> bool:
        Names.searched += 1
        return super().__contains__(name)


def test_scrape_looks_at_each_restart_once_per_container() -> None:
    """A pod may raise its budget: after a day at the storm limit each scrape blocked the agent for most of a minute."""
    pods, restarts = outside.Pods(builders.pod(annotations={"kubemend.io/max-restarts": "999999999"})), 500
    made = Budgets(store=None, now=lambda: NOW, storm=STORM)  # type: ignore[arg-type]
    each = replace(elsewhere(NOW), containers=Names({"trainer", "logger"}))
    made._begun += [replace(each, at=NOW - number / 60) for number in range(restarts)]
    made._begun += [replace(each, at=NOW - 4000 - number) for number in range(restarts)]
    registry = CollectorRegistry()
    registry.register(BudgetGauges(made, pods=pods, now=lambda: NOW))
    labels = {"namespace": "default", "pod": "trainer-0", "container": "logger"}
    Names.searched = 0
    assert registry.get_sample_value("kubemend_restart_budget_left", labels) == 999999999 - restarts
    assert Names.searched == 2 * restarts


@pytest.mark.parametrize(("restarts", "left"), [(0, 6.0), (5, 1.0), (6, 0.0)])
def test_storm_of_one_namespace_is_shown(restarts: int, left: float) -> None:
    """The pods of a node are often those of one namespace, which is stopped before the node's own limit."""
    made = Budgets(store=None, now=lambda: NOW, storm=Window(limit=8, seconds=300.0))  # type: ignore[arg-type]
    made._begun += [replace(elsewhere(NOW - 9), namespace="team")] * restarts
    registry = CollectorRegistry()
    registry.register(BudgetGauges(made, pods=outside.Pods(), now=lambda: NOW))
    assert registry.get_sample_value("kubemend_node_restart_budget_left") == left
    history = History.of(made.all(), target=replace(TARGET, pod=replace(POD, namespace="team")), device=None, now=NOW)
    spent = budget.spent(history, container=budget.Budget(), node=made.storm, now=NOW, died_at=NOW)
    assert (spent is not None) is (left == 0)
