"""While a successor of a container that ended by itself is created, kubelet cannot create the next attempt."""

import asyncio
from typing import Any

import grpc
import pytest

from kubemend.agent.actuator.next_names import NameAhead, NextNames
from kubemend.agent.actuator.swap import SwapActuator
from kubemend.agent.clients.cri.errors import NameReserved
from kubemend.agent.model.outcomes import Result
from kubemend.agent.model.workloads import ContainerId, ContainerSummary
from kubemend.agent.restart import intents, reservations
from tests.environments.runtime import TARGET, Rig

ORDERS = pytest.mark.parametrize("order", intents.SwapOrder)
CREATES_FIRST = pytest.mark.parametrize("order", [each for each in intents.SwapOrder if each.value != "stop-first"])


async def reserved(rig: Rig) -> list[ContainerSummary]:
    views = await rig.cri.list_containers(sandbox_id=rig.sandbox_id)
    return [view for view in views if reservations.reserves(view)]


async def assert_blocks_kubelet_until_released(rig: Rig, actuator: SwapActuator, intent: intents.Intent) -> None:
    with pytest.raises(NameReserved):
        await rig.kubelet_creates(attempt=2)
    await actuator.give_back(intent)
    assert await reserved(rig) == []
    await rig.kubelet_creates(attempt=2)


@ORDERS
async def test_reserved_name_blocks_kubelets_copy_until_released(rig: Rig, order: intents.SwapOrder) -> None:
    rig.server.runtime.exit(rig.old, exit_code=1)
    intent, actuator = rig.intent(order=order), rig.actuator()
    outcome = await actuator.carry_out(intent, successor_spec=await rig.successor_spec(intent))
    assert outcome.result is Result.SWAPPED
    await assert_blocks_kubelet_until_released(rig, actuator, intent)


async def test_name_is_reserved_before_the_successor_is_visible(rig: Rig) -> None:
    rig.server.runtime.exit(rig.old, exit_code=1)
    intent = rig.intent()
    await rig.actuator().carry_out(intent, successor_spec=await rig.successor_spec(intent))
    made = [call.request for call in rig.server.calls if call.method == "CreateContainer"]
    assert [request.config.metadata.attempt for request in made] == [2, 1]  # type: ignore[attr-defined]


@CREATES_FIRST
@pytest.mark.parametrize("dying", [True, False], ids=["dying", "unfreezable"])
async def test_name_is_reserved_if_the_old_container_may_end_by_itself(
    rig: Rig, order: intents.SwapOrder, *, dying: bool
) -> None:
    """A program that dies of the fault is listed as running, and wakes kubelet while its successor is in CREATED."""
    assert rig.standbys is not None
    rig.standbys.dying = dying
    rig.standbys.refusal = None if dying else "no cgroup version 2"
    intent, actuator = rig.intent(order=order), rig.actuator()
    await actuator.carry_out(intent, successor_spec=await rig.successor_spec(intent))
    made = [call.request for call in rig.server.calls if call.method == "CreateContainer"]
    assert [request.config.metadata.attempt for request in made][:2] == [2, 1]  # type: ignore[attr-defined]
    await actuator.give_back(intent)
    assert await reserved(rig) == []


@pytest.mark.parametrize("order", [intents.SwapOrder.STOP_FIRST, intents.SwapOrder.CREATE_FIRST])
@pytest.mark.parametrize("grace", [0.0, 0.01], ids=["kill", "grace"])
async def test_name_is_reserved_before_a_stop_that_leaves_no_container_running(
    rig: Rig, order: intents.SwapOrder, grace: float
) -> None:
    intent, actuator = rig.intent(order=order, grace_seconds=grace), rig.actuator()
    outcome = await actuator.carry_out(intent, successor_spec=await rig.successor_spec(intent))
    assert outcome.result is Result.SWAPPED
    called = rig.server.called()
    assert called.index("CreateContainer") < called.index("StopContainer")
    made = [call.request for call in rig.server.calls if call.method == "CreateContainer"]
    assert [request.config.metadata.attempt for request in made] == [2, 1]  # type: ignore[attr-defined]
    with pytest.raises(NameReserved):
        await rig.kubelet_creates(attempt=2)
    await actuator.give_back(intent)
    assert await reserved(rig) == []


@pytest.mark.parametrize("order", [each for each in intents.SwapOrder if each.starts_first])
async def test_stop_beside_a_held_successor_needs_no_reservation(rig: Rig, order: intents.SwapOrder) -> None:
    intent, actuator = rig.intent(order=order), rig.actuator()
    await actuator.carry_out(intent, successor_spec=await rig.successor_spec(intent))
    assert rig.server.called().count("CreateContainer") == 1


async def test_stop_beside_kubelets_container_needs_no_reservation(rig: Rig) -> None:
    intent, actuator = rig.intent(order=intents.SwapOrder.STOP_FIRST), rig.actuator()
    successor_spec = await rig.successor_spec(intent)
    theirs = await rig.kubelet_creates(attempt=1)
    calls = rig.server.called().count("CreateContainer")
    outcome = await actuator.carry_out(intent, successor_spec=successor_spec)
    assert (outcome.result, outcome.current["trainer"]) == (Result.ADOPTED, theirs)
    assert rig.server.called().count("CreateContainer") == calls


async def test_reservation_does_not_belong_to_the_pod(rig: Rig) -> None:
    rig.server.runtime.exit(rig.old, exit_code=1)
    intent, actuator = rig.intent(), rig.actuator()
    outcome = await actuator.carry_out(intent, successor_spec=await rig.successor_spec(intent))
    assert {view.id for view in await rig.containers()} == {rig.old, outcome.current["trainer"]}
    assert [view.ref.pod for view in await reserved(rig)] != [TARGET.pod]


async def test_kubelets_earlier_container_is_adopted(rig: Rig) -> None:
    rig.server.runtime.exit(rig.old, exit_code=1)
    intent, actuator = rig.intent(), rig.actuator()
    successor_spec, seen = await rig.successor_spec(intent), await rig.containers()
    theirs = await rig.kubelet_creates(attempt=1)
    outcome = await actuator.carry_out(intent, successor_spec=successor_spec, seen=seen)
    assert (outcome.result, outcome.current["trainer"]) == (Result.ADOPTED, theirs)
    await actuator.give_back(intent)
    assert await reserved(rig) == []


async def test_unavailable_name_does_not_prevent_the_restart(rig: Rig) -> None:
    rig.server.runtime.exit(rig.old, exit_code=1)
    intent, actuator = rig.intent(), rig.actuator()
    successor_spec = await rig.successor_spec(intent)
    copy = await rig.kubelet_creates(attempt=2, start=False)  # it has the name already
    work = asyncio.create_task(actuator.carry_out(intent, successor_spec=successor_spec, seen=_old_only(rig)))
    async with rig.watch.subscribe(TARGET.pod.uid) as events:
        while not any(view.restart_id == intent.id for view in await rig.containers()):
            await events.get()
    await rig.cri.start_container(copy)
    assert (await work).current["trainer"] == copy
    await actuator.give_back(intent)


async def test_reservation_of_a_dead_agent_is_removed_when_needed(rig: Rig) -> None:
    rig.server.runtime.exit(rig.old, exit_code=1)
    first = rig.intent()
    outcome = await rig.actuator().carry_out(first, successor_spec=await rig.successor_spec(first))
    (left,) = await reserved(rig)
    rig.old = outcome.current["trainer"]
    second = rig.intent(id="r2", old=rig.old, old_attempt=1)
    again = await rig.actuator().carry_out(second, successor_spec=await rig.successor_spec(second))
    assert again.result is Result.SWAPPED
    (current,) = await rig.running()
    assert (current.attempt, current.restart_id) == (2, "r2")
    assert left.id not in {view.id for view in await reserved(rig)}


@pytest.mark.parametrize("code", [grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.UNAVAILABLE])
@pytest.mark.parametrize("ahead", [False, True])
async def test_reservation_with_a_lost_answer_is_removed(rig: Rig, code: grpc.StatusCode, *, ahead: bool) -> None:
    rig.server.runtime.exit(rig.old, exit_code=1)
    intent, actuator = rig.intent(), rig.actuator()
    spec = await rig.successor_spec(intent)
    rig.server.fail("CreateContainer", code, carried_out=True)
    if ahead:
        (old,) = [view for view in await rig.containers() if view.id == rig.old]
        actuator.reserve_ahead(NameAhead(old, spec.successor.config, 2, spec.sandbox_config))
    assert (await actuator.carry_out(intent, successor_spec=spec)).result is Result.SWAPPED
    await assert_blocks_kubelet_until_released(rig, actuator, intent)


async def test_reservation_that_was_not_answered_is_tried_again(rig: Rig) -> None:
    names, intent = NextNames(rig.cri), rig.intent()
    spec = await rig.successor_spec(intent)
    for carried_out in (False, True):
        rig.server.fail("CreateContainer", grpc.StatusCode.DEADLINE_EXCEEDED, carried_out=carried_out)
        await names.reserve(intent, spec.successor.config, sandbox_config=spec.sandbox_config)
    await names.reserve(intent, spec.successor.config, sandbox_config=spec.sandbox_config)
    assert len(await reserved(rig)) == 1
    await names.give_back(intent)
    assert await reserved(rig) == []


async def test_reservation_whose_creation_outlasts_the_time_limit_is_removed(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The runtime creates it, and does not answer in time."""
    rig.server.runtime.exit(rig.old, exit_code=1)
    intent, actuator = rig.intent(), rig.actuator(time_limit=0.2)
    successor_spec, create = await rig.successor_spec(intent), rig.cri.create_container

    async def hangs(**how: Any) -> ContainerId:
        await create(**how)
        return await asyncio.Event().wait()  # type: ignore[return-value]

    monkeypatch.setattr(rig.cri, "create_container", hangs)
    outcome = await actuator.carry_out(intent, successor_spec=successor_spec)
    assert outcome.result is Result.UNFINISHED
    assert len(await reserved(rig)) == 1
    monkeypatch.undo()
    assert (await actuator.carry_out(intent, successor_spec=successor_spec)).result is Result.SWAPPED
    await actuator.give_back(intent)
    assert await reserved(rig) == []


async def test_unreleasable_name_fails_nothing(rig: Rig) -> None:
    rig.server.runtime.exit(rig.old, exit_code=1)
    intent, actuator = rig.intent(), rig.actuator()
    await actuator.carry_out(intent, successor_spec=await rig.successor_spec(intent))
    rig.server.fail("RemoveContainer", grpc.StatusCode.INTERNAL)
    await actuator.give_back(intent)
    assert len(await reserved(rig)) == 1, "kubelet's garbage collector takes it within a minute"


def _old_only(rig: Rig) -> tuple[ContainerSummary, ...]:
    return tuple(view for view in rig.watch.containers() if view.id == rig.old)
