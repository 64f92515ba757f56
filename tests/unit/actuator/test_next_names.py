"""While a successor of a container that ended by itself is created, kubelet cannot create the next attempt."""

import asyncio
from dataclasses import replace
from typing import Any

import grpc
import pytest

from kubemend.agent.actuator import next_names
from kubemend.agent.actuator.device_processes import NoDriver, NoProcesses
from kubemend.agent.actuator.device_release import ReleaseGates
from kubemend.agent.actuator.next_names import NameAhead, NextNames
from kubemend.agent.actuator.swap import SwapActuator
from kubemend.agent.clients.cri.errors import NameReserved
from kubemend.agent.model.outcomes import Result
from kubemend.agent.model.workloads import ContainerId, ContainerSummary
from kubemend.agent.restart import intents, reservations
from tests import eventually
from tests.environments.runtime import TARGET, CriEnv

ORDERS = pytest.mark.parametrize("order", intents.SwapOrder)
CREATES_FIRST = pytest.mark.parametrize("order", [each for each in intents.SwapOrder if each.value != "stop-first"])


async def reserved(cri_env: CriEnv) -> list[ContainerSummary]:
    views = await cri_env.cri.list_containers(sandbox_id=cri_env.sandbox_id)
    return [view for view in views if reservations.reserves(view)]


async def assert_blocks_kubelet_until_released(cri_env: CriEnv, actuator: SwapActuator, intent: intents.Intent) -> None:
    with pytest.raises(NameReserved):
        await cri_env.kubelet_creates(attempt=2)
    await actuator.give_back(intent)
    assert await reserved(cri_env) == []
    await cri_env.kubelet_creates(attempt=2)


@ORDERS
async def test_reserved_name_blocks_kubelets_copy_until_released(cri_env: CriEnv, order: intents.SwapOrder) -> None:
    cri_env.server.runtime.exit(cri_env.old, exit_code=1)
    intent, actuator = cri_env.intent(order=order), cri_env.actuator()
    outcome = await actuator.carry_out(intent, successor_spec=await cri_env.successor_spec(intent))
    assert outcome.result is Result.SWAPPED
    await assert_blocks_kubelet_until_released(cri_env, actuator, intent)


async def test_name_is_reserved_before_the_successor_is_visible(cri_env: CriEnv) -> None:
    cri_env.server.runtime.exit(cri_env.old, exit_code=1)
    intent = cri_env.intent()
    await cri_env.actuator().carry_out(intent, successor_spec=await cri_env.successor_spec(intent))
    made = [call.request for call in cri_env.server.calls if call.method == "CreateContainer"]
    assert [request.config.metadata.attempt for request in made] == [2, 1]  # type: ignore[attr-defined]


@CREATES_FIRST
@pytest.mark.parametrize("dying", [True, False], ids=["dying", "unfreezable"])
async def test_name_is_reserved_if_the_old_container_may_end_by_itself(
    cri_env: CriEnv, order: intents.SwapOrder, *, dying: bool
) -> None:
    """A program that dies of the fault is listed as running, and wakes kubelet while its successor is in CREATED."""
    assert cri_env.standbys is not None
    cri_env.standbys.dying = dying
    cri_env.standbys.refusal = None if dying else "no cgroup version 2"
    intent, actuator = cri_env.intent(order=order), cri_env.actuator()
    await actuator.carry_out(intent, successor_spec=await cri_env.successor_spec(intent))
    made = [call.request for call in cri_env.server.calls if call.method == "CreateContainer"]
    assert [request.config.metadata.attempt for request in made][:2] == [2, 1]  # type: ignore[attr-defined]
    await actuator.give_back(intent)
    assert await reserved(cri_env) == []


@pytest.mark.parametrize("order", [intents.SwapOrder.STOP_FIRST, intents.SwapOrder.CREATE_FIRST])
@pytest.mark.parametrize("grace", [0.0, 0.01], ids=["kill", "grace"])
async def test_name_is_reserved_before_a_stop_that_leaves_no_container_running(
    cri_env: CriEnv, order: intents.SwapOrder, grace: float
) -> None:
    intent, actuator = cri_env.intent(order=order, grace_seconds=grace), cri_env.actuator()
    outcome = await actuator.carry_out(intent, successor_spec=await cri_env.successor_spec(intent))
    assert outcome.result is Result.SWAPPED
    called = cri_env.server.called()
    assert called.index("CreateContainer") < called.index("StopContainer")
    made = [call.request for call in cri_env.server.calls if call.method == "CreateContainer"]
    assert [request.config.metadata.attempt for request in made] == [2, 1]  # type: ignore[attr-defined]
    with pytest.raises(NameReserved):
        await cri_env.kubelet_creates(attempt=2)
    await actuator.give_back(intent)
    assert await reserved(cri_env) == []


@pytest.mark.parametrize("order", [each for each in intents.SwapOrder if each.starts_first])
async def test_stop_next_to_a_held_successor_needs_no_reservation(cri_env: CriEnv, order: intents.SwapOrder) -> None:
    intent, actuator = cri_env.intent(order=order), cri_env.actuator()
    await actuator.carry_out(intent, successor_spec=await cri_env.successor_spec(intent))
    assert cri_env.server.called().count("CreateContainer") == 1


async def test_stop_next_to_kubelets_container_needs_no_reservation(cri_env: CriEnv) -> None:
    intent, actuator = cri_env.intent(order=intents.SwapOrder.STOP_FIRST), cri_env.actuator()
    successor_spec = await cri_env.successor_spec(intent)
    theirs = await cri_env.kubelet_creates(attempt=1)
    calls = cri_env.server.called().count("CreateContainer")
    outcome = await actuator.carry_out(intent, successor_spec=successor_spec)
    assert (outcome.result, outcome.current["trainer"]) == (Result.ADOPTED, theirs)
    assert cri_env.server.called().count("CreateContainer") == calls


async def test_reservation_does_not_belong_to_the_pod(cri_env: CriEnv) -> None:
    cri_env.server.runtime.exit(cri_env.old, exit_code=1)
    intent, actuator = cri_env.intent(), cri_env.actuator()
    outcome = await actuator.carry_out(intent, successor_spec=await cri_env.successor_spec(intent))
    assert {view.id for view in await cri_env.containers()} == {cri_env.old, outcome.current["trainer"]}
    assert [view.ref.pod for view in await reserved(cri_env)] != [TARGET.pod]


async def test_kubelets_earlier_container_is_adopted(cri_env: CriEnv) -> None:
    cri_env.server.runtime.exit(cri_env.old, exit_code=1)
    intent, actuator = cri_env.intent(), cri_env.actuator()
    successor_spec, seen = await cri_env.successor_spec(intent), await cri_env.containers()
    theirs = await cri_env.kubelet_creates(attempt=1)
    outcome = await actuator.carry_out(intent, successor_spec=successor_spec, seen=seen)
    assert (outcome.result, outcome.current["trainer"]) == (Result.ADOPTED, theirs)
    await actuator.give_back(intent)
    assert await reserved(cri_env) == []


async def test_unavailable_name_does_not_prevent_the_restart(cri_env: CriEnv) -> None:
    cri_env.server.runtime.exit(cri_env.old, exit_code=1)
    intent, actuator = cri_env.intent(), cri_env.actuator()
    successor_spec = await cri_env.successor_spec(intent)
    copy = await cri_env.kubelet_creates(attempt=2, start=False)  # it has the name already
    work = asyncio.create_task(actuator.carry_out(intent, successor_spec=successor_spec, seen=_old_only(cri_env)))
    async with cri_env.watch.subscribe(TARGET.pod.uid) as events:
        while not any(view.restart_id == intent.id for view in await cri_env.containers()):
            await events.get()
    await cri_env.cri.start_container(copy)
    assert (await work).current["trainer"] == copy
    await actuator.give_back(intent)


@pytest.mark.parametrize(
    ("method", "details"),
    [
        ("CreateContainer", 'failed to reserve container name "x": name "x" is reserved for "y"'),
        ("StartContainer", "container is already in starting state"),
    ],
    ids=["creates", "starts"],
)
async def test_swap_waits_while_kubelet_acts_on_the_same_container(cri_env: CriEnv, method: str, details: str) -> None:
    """It may take longer than three tries."""
    cri_env.server.runtime.exit(cri_env.old, exit_code=1)
    intent, actuator = cri_env.intent(), cri_env.actuator()
    successor_spec = await cri_env.successor_spec(intent)
    cri_env.server.fail(method, grpc.StatusCode.UNKNOWN, details=details, times=6)
    outcome = await actuator.carry_out(intent, successor_spec=successor_spec)
    assert outcome.result is Result.SWAPPED
    await actuator.give_back(intent)


async def test_reservation_of_a_dead_agent_is_removed_when_needed(cri_env: CriEnv) -> None:
    cri_env.server.runtime.exit(cri_env.old, exit_code=1)
    first = cri_env.intent()
    outcome = await cri_env.actuator().carry_out(first, successor_spec=await cri_env.successor_spec(first))
    (left,) = await reserved(cri_env)
    cri_env.old = outcome.current["trainer"]
    second = cri_env.intent(id="r2", old=cri_env.old, old_attempt=1)
    again = await cri_env.actuator().carry_out(second, successor_spec=await cri_env.successor_spec(second))
    assert again.result is Result.SWAPPED
    (current,) = await cri_env.running()
    assert (current.attempt, current.restart_id) == (2, "r2")
    assert left.id not in {view.id for view in await reserved(cri_env)}


@pytest.mark.parametrize("code", [grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.UNAVAILABLE])
@pytest.mark.parametrize("ahead", [False, True])
async def test_reservation_with_a_lost_answer_is_removed(
    cri_env: CriEnv, code: grpc.StatusCode, *, ahead: bool
) -> None:
    cri_env.server.runtime.exit(cri_env.old, exit_code=1)
    intent, actuator = cri_env.intent(), cri_env.actuator()
    spec = await cri_env.successor_spec(intent)
    cri_env.server.fail("CreateContainer", code, carried_out=True)
    if ahead:
        (old,) = [view for view in await cri_env.containers() if view.id == cri_env.old]
        actuator.reserve_ahead(NameAhead(old, spec.successor.config, 2, spec.sandbox_config))
    assert (await actuator.carry_out(intent, successor_spec=spec)).result is Result.SWAPPED
    await assert_blocks_kubelet_until_released(cri_env, actuator, intent)


async def test_reservation_that_was_not_answered_is_tried_again(cri_env: CriEnv) -> None:
    names, intent = NextNames(cri_env.cri), cri_env.intent()
    spec = await cri_env.successor_spec(intent)
    for carried_out in (False, True):
        cri_env.server.fail("CreateContainer", grpc.StatusCode.DEADLINE_EXCEEDED, carried_out=carried_out)
        await names.reserve(intent, spec.successor.config, sandbox_config=spec.sandbox_config)
    await names.reserve(intent, spec.successor.config, sandbox_config=spec.sandbox_config)
    assert len(await reserved(cri_env)) == 1
    await names.give_back(intent)
    assert await reserved(cri_env) == []


async def test_name_that_an_earlier_restart_could_not_release_is_released_by_the_next_one(cri_env: CriEnv) -> None:
    names, first, second = NextNames(cri_env.cri), cri_env.intent(), cri_env.intent(id="r2")
    spec = await cri_env.successor_spec(first)
    await names.reserve(first, spec.successor.config, sandbox_config=spec.sandbox_config)
    cri_env.server.fail("RemoveContainer", grpc.StatusCode.UNAVAILABLE)
    await names.give_back(first)
    await names.reserve(second, spec.successor.config, sandbox_config=spec.sandbox_config)
    await names.give_back(second)
    assert await reserved(cri_env) == []


async def test_name_ahead_of_another_attempt_is_not_taken_over(cri_env: CriEnv) -> None:
    """Kubelet has created a container of the name in the meantime."""
    names, intent = NextNames(cri_env.cri), cri_env.intent()
    spec, (old,) = await cri_env.successor_spec(intent), await cri_env.containers()
    names.reserve_ahead(NameAhead(old, spec.successor.config, 3, spec.sandbox_config))
    await names.reserve(intent, spec.successor.config, sandbox_config=spec.sandbox_config)
    await names.give_back_ahead(old.id)
    assert [view.attempt for view in await reserved(cri_env)] == [2]
    await names.give_back(intent)
    assert await reserved(cri_env) == []


async def test_reservation_whose_creation_outlasts_the_time_limit_is_removed(
    cri_env: CriEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The runtime creates it, and does not answer in time."""
    cri_env.server.runtime.exit(cri_env.old, exit_code=1)
    intent, actuator = cri_env.intent(), cri_env.actuator(time_limit=0.2)
    successor_spec, create = await cri_env.successor_spec(intent), cri_env.cri.create_container

    async def hangs(**how: Any) -> ContainerId:
        await create(**how)
        return await asyncio.Event().wait()  # type: ignore[return-value]

    monkeypatch.setattr(cri_env.cri, "create_container", hangs)
    outcome = await actuator.carry_out(intent, successor_spec=successor_spec)
    assert outcome.result is Result.UNFINISHED
    assert len(await reserved(cri_env)) == 1
    monkeypatch.undo()
    assert (await actuator.carry_out(intent, successor_spec=successor_spec)).result is Result.SWAPPED
    await actuator.give_back(intent)
    assert await reserved(cri_env) == []


async def test_unreleasable_name_fails_nothing(cri_env: CriEnv) -> None:
    cri_env.server.runtime.exit(cri_env.old, exit_code=1)
    intent, actuator = cri_env.intent(), cri_env.actuator()
    await actuator.carry_out(intent, successor_spec=await cri_env.successor_spec(intent))
    cri_env.server.fail("RemoveContainer", grpc.StatusCode.INTERNAL)
    await actuator.give_back(intent)
    assert len(await reserved(cri_env)) == 1, "kubelet's garbage collector takes it within a minute"


def _old_only(cri_env: CriEnv) -> tuple[ContainerSummary, ...]:
    return tuple(view for view in cri_env.watch.containers() if view.id == cri_env.old)


async def test_name_is_reserved_again_while_the_successor_waits_for_its_devices(
    cri_env: CriEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kubelet's garbage collector removes reservations once a minute, and kubelet's copy would not wait."""
    monkeypatch.setattr(next_names, "_CHECK_SECONDS", 0.0)
    cri_env.server.runtime.exit(cri_env.old, exit_code=1)
    intent, gates = cri_env.intent(order=intents.SwapOrder.STOP_FIRST), ShutGates()
    actuator = SwapActuator(replace(cri_env.tools(), gates=gates))
    work = asyncio.create_task(actuator.carry_out(intent, successor_spec=await cri_env.successor_spec(intent)))
    await gates.reached.wait()
    (collected,) = await reserved(cri_env)
    await cri_env.cri.remove_container(collected.id)

    async def is_reserved_again() -> bool:
        return [view.id for view in await reserved(cri_env)] not in ([], [collected.id])

    await eventually.true(is_reserved_again)
    gates.is_open = True
    assert (await work).result is Result.SWAPPED
    await assert_blocks_kubelet_until_released(cri_env, actuator, intent)


class ShutGates(ReleaseGates):
    """Gates that stay shut until they are opened."""

    def __init__(self) -> None:
        super().__init__(driver=NoDriver(), processes=NoProcesses())
        self.reached = asyncio.Event()
        self.is_open = False

    async def opens(self, restart: str, *, timeout: float | None = None) -> bool:
        self.reached.set()
        await asyncio.sleep(0)
        return self.is_open
