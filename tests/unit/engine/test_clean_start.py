"""What a pod wants cleaned before its successor runs: prepared for every strategy, and always reported."""

from dataclasses import replace

import pytest

from agent.actuator.tools import Material
from agent.engine import acts, preparing
from agent.model.conditions import ConditionStatus
from agent.restart import intents
from tests.unit.actuator.conftest import POD, rig
from tests.unit.engine.test_restarts import NOW, World, world

__all__ = ["rig", "world"]


_UNKNOWN_PLACE = "/dev/shm: not emptied: the runtime does not tell where it is"
_KUBELET_FIRST = "/dev/shm: not emptied: a container of kubelet's has run already"


@pytest.mark.parametrize(
    ("strategy", "notes"),
    [
        ("swap", [_UNKNOWN_PLACE]),
        ("rerun", [_UNKNOWN_PLACE, _KUBELET_FIRST]),  # in a rerun kubelet may be first
        ("reset", ["/dev/shm: not emptied: the successor did not wait for it"]),
    ],
)
async def test_what_could_not_be_cleaned_keeps_nobody_from_starting_and_is_said(
    world: World, strategy: str, notes: list[str]
) -> None:
    condition = await world.ask(strategy=strategy, clean="shm")
    assert condition.status is ConditionStatus.TRUE
    assert "because Xid 31; " in condition.message
    # kubelet may have run an init container, too, which is noted as well
    assert any(f"; {note}; " in condition.message for note in notes), condition.message
    assert condition.message.endswith("; verified")


async def test_who_does_not_ask_hears_nothing_of_it(world: World) -> None:
    assert "/dev/shm" not in (await world.ask(strategy="swap")).message


async def resumed(world: World, **annotations: str) -> Material:
    """Return what an open swap that an earlier agent has left is carried on with."""
    wishes = {f"kubemend.io/{key}": text for key, text in annotations.items()}
    await world.pod.pods.put(replace(world.pod.pods.pods()[POD.uid], annotations=wishes))
    intent = world.pod.rig.intent(created_at=NOW, order=intents.Order.CREATE_FIRST)
    act = await preparing.resume(world.outside, intent)
    assert isinstance(act, acts.SwapAct)
    (swap,) = act.swaps
    assert swap.material is not None
    return swap.material


async def test_a_restart_that_is_taken_up_cleans_too(world: World) -> None:
    assert (await resumed(world, clean="shm")).sweep is not None
    assert (await resumed(world)).sweep is None


@pytest.mark.parametrize("annotations", [{"containers": "trainer,logger"}, {"strategy": "of-tomorrow"}])
async def test_but_not_where_it_is_not_known_what_else_has_been_started(
    world: World, annotations: dict[str, str]
) -> None:
    assert (await resumed(world, clean="shm", **annotations)).sweep is None


async def test_a_pod_that_the_api_has_not_told_of_yet_is_asked_through_its_sandbox(world: World) -> None:
    sandboxes = world.pod.rig.server.runtime.sandboxes
    sandboxes[world.pod.rig.sandbox_id].config.annotations["kubemend.io/clean"] = "shm"
    world.pod.pods._pods.clear()
    act = await preparing.resume(world.outside, world.pod.rig.intent(created_at=NOW))
    assert isinstance(act, acts.SwapAct)
    material = act.swaps[0].material
    assert material is not None
    assert material.sweep is not None
