"""Budgets in the engine: exact side by side, known to the next agent, told in conditions and metrics."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from agent.engine.budgets import BudgetGauges, Budgets
from agent.engine.metrics import Metrics
from agent.engine.restarts import Request, Restarts
from agent.engine.suspects import Suspects
from agent.history.store import Store
from agent.model import conditions
from agent.model.actions import ActionClass
from agent.model.findings import Finding, FindingKind
from agent.model.workloads import ContainerState
from agent.restart import admission, asking, intents
from agent.restart.counts import Begun
from common.budgets import Window
from tests.fakes import outside
from tests.unit.actuator.conftest import POD, TARGET, rig
from tests.unit.engine.test_restarts import NOW, World, world
from tests.unit.restart import builders

__all__ = ["rig", "world"]

STORM = Window(limit=2, seconds=300.0)
GPU = outside.GPU.uuid


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    opened = await Store.open(tmp_path / "budgets.db")
    yield opened
    await opened.close()


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
    admission.Reason.ADMITTED,
    strategy=intents.Strategy.SWAP,
    orders={"trainer": intents.Order.STOP_FIRST},
)


def budgets(store: Store) -> Budgets:
    return Budgets(store=store, now=lambda: NOW, storm=STORM)


def counted(made: Budgets) -> int:
    return len(made.history(builders.TARGET, device=GPU).node)


async def test_a_restart_counts_before_it_is_begun_so_that_another_one_knows_of_it(store: Store) -> None:
    made = budgets(store)
    with made.counting(facts(), SWAP), made.counting(facts(), SWAP):
        history = made.history(builders.TARGET, device=GPU)
        assert [len(each) for each in (history.container, history.pod, history.device, history.node)] == [2, 2, 2, 2]
    assert counted(made) == 0


async def test_what_has_begun_counts_once_while_it_goes_on_and_afterwards(store: Store) -> None:
    made = budgets(store)
    with made.counting(facts(), SWAP) as restart:
        restart.has_begun()
        assert counted(made) == 1
    assert counted(made) == 1


async def test_the_restart_of_a_whole_pod_counts_once_and_for_every_container(store: Store) -> None:
    made = budgets(store)
    both = (*builders.pod().containers, replace(builders.pod().containers[0], name="logger"))
    whole = replace(SWAP, strategy=intents.Strategy.RESET, orders={})
    with made.counting(facts(pod=builders.pod(containers=both)), whole) as restart:
        restart.has_begun()
    (begun,) = made.all()
    assert begun == Begun(builders.POD.uid, frozenset({"trainer", "logger"}), NOW, NOW - 1, GPU)


async def test_what_an_earlier_agent_has_begun_counts(store: Store) -> None:
    before = budgets(store)
    with before.counting(facts(), SWAP) as restart:
        await store.begin(builders.intent(), counted=restart.restart)
        restart.has_begun()
    after = budgets(store)
    await after.load()
    await after.load()
    assert after.all() == before.all()


# ---- in a restart ----


@dataclass
class Guarded:
    """The world with a storm guard of two restarts, and what is suspected."""

    world: World
    suspicions: list[Finding]
    registry: CollectorRegistry

    def request(self, **changes: Any) -> Request:
        cause = admission.Cause(code="Xid31", message="Xid 31", happened_at=NOW, device=GPU)
        return Request(target=TARGET, cause=lambda: cause, devices=frozenset(), **changes)

    async def held_for(self, reason: str) -> conditions.Condition:
        """Ask for a restart that is held; return what is said of it."""
        held = asyncio.create_task(self.world.restarts.handle(self.request()))
        async with asyncio.timeout(30):
            condition = await self.world.said.wait_for(POD, conditions.IN_PLACE_RESTART, reason)
        held.cancel()
        await asyncio.gather(held, return_exceptions=True)
        return condition

    def told(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(name, labels)


@pytest.fixture
async def guarded(world: World) -> Guarded:
    """The pod has opted in; one restart of another pod has been begun a minute ago."""
    await world.pod.pods.put(replace(world.pod.pods.pods()[POD.uid], annotations={"kubemend.io/restart": "InPlace"}))
    suspicions: list[Finding] = []
    registry = CollectorRegistry()
    suspects = Suspects(
        ledger=None,  # type: ignore[arg-type]  # nobody looks after suspicions here
        driver=None,  # type: ignore[arg-type]
        processes=None,  # type: ignore[arg-type]
        submit=suspicions.append,
        classify=lambda _, __: ActionClass.OBSERVE,
        now=lambda: NOW,
    )
    world.restarts = Restarts(
        outside=world.outside,
        store=world.store,
        metrics=Metrics(registry),
        now=lambda: NOW,
        storm=STORM,
        suspects=suspects,
    )
    return Guarded(world, suspicions, registry)


async def begin(store: Store, *begun: Begun) -> None:
    """Have restarts in the journal that an earlier agent has begun."""
    for number, each in enumerate(begun):
        await store.begin(builders.intent(id=f"earlier-{number}"), counted=each)
        await store.finish(f"earlier-{number}", outcome="Swapped", now=NOW)


def elsewhere(at: float, *, device: str | None = None) -> Begun:
    return Begun(builders.POD.uid, frozenset({"else"}), at=at, fault_at=at - 0.5, device=device)


async def test_a_storm_of_an_earlier_agents_time_holds_with_the_time_at_which_it_is_over(guarded: Guarded) -> None:
    await begin(guarded.world.store, elsewhere(NOW - 100), elsewhere(NOW - 50))
    condition = await guarded.held_for("NodeStorm")
    assert "opens again at 2286-11-20T17:50:00Z" in condition.message  # NOW - 100 + 300
    assert guarded.told("kubemend_node_restart_budget_left") == 0.0


async def test_a_person_passes_the_storm_guard_and_counts(guarded: Guarded) -> None:
    await begin(guarded.world.store, elsewhere(NOW - 100), elsewhere(NOW - 50))
    async with guarded.world.kubelet():
        await guarded.world.restarts.handle(guarded.request(asked=asking.Asked()))
    condition = guarded.world.said.said[POD, conditions.IN_PLACE_RESTART]
    assert condition.message.endswith("; verified")
    assert len(await guarded.world.store.begun_since(NOW - 1)) == 1


async def test_a_device_on_which_nothing_lasts_is_said_to_be_suspect(guarded: Guarded) -> None:
    await begin(guarded.world.store, *(elsewhere(NOW - 80 + 10 * number, device=GPU) for number in range(8)))
    condition = await guarded.held_for("DeviceBudgetSpent")
    assert "opens again at" in condition.message
    (suspicion,) = guarded.suspicions
    assert (suspicion.kind, suspicion.device.uuid) == (FindingKind.RESTARTS_IN_VAIN, GPU)


# ---- metrics ----


def test_only_what_something_was_taken_from_and_is_still_there_is_told() -> None:
    pods = outside.Pods(builders.pod(annotations={"kubemend.io/max-restarts": "3"}))
    made = Budgets(store=None, now=lambda: NOW, storm=STORM)  # type: ignore[arg-type]  # nothing is loaded
    registry = CollectorRegistry()
    registry.register(BudgetGauges(made, pods=pods, now=lambda: NOW))

    def told() -> dict[tuple[str, tuple[str, ...]], float]:
        samples = (sample for family in registry.collect() for sample in family.samples)
        return {(each.name, tuple(each.labels.values())): each.value for each in samples}

    assert told() == {("kubemend_node_restart_budget_left", ()): 2.0}
    with made.counting(facts(), SWAP) as restart:
        restart.has_begun()
    gone = Begun("uid-gone", frozenset({"trainer"}), at=NOW, fault_at=NOW)  # type: ignore[arg-type]
    made._begun.append(gone)
    made._begun.append(replace(gone, at=NOW - 4000.0, device="GPU-9"))
    assert told() == {
        ("kubemend_restart_budget_left", ("default", "trainer-0", "")): 5.0,
        ("kubemend_restart_budget_left", ("default", "trainer-0", "trainer")): 2.0,
        ("kubemend_device_restart_budget_left", (GPU,)): 7.0,
        ("kubemend_node_restart_budget_left", ()): 0.0,
    }
