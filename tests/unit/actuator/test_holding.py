"""What one member holds: caught once, whoever says so first, and never frozen after it was let go."""

import asyncio
from typing import Any

import pytest

from agent.actuator.holding import Holding
from agent.model.workloads import ContainerId
from tests.fakes.freezer import Freezer
from tests.unit.actuator.conftest import TARGET, Rig, rig

__all__ = ["rig"]


@pytest.fixture
def freezer(rig: Rig) -> Freezer:
    return Freezer(rig.server.runtime)


@pytest.fixture
def holding(freezer: Freezer) -> Holding:
    return Holding(freezer, mark="uid-1", names={TARGET.name})


async def test_what_is_held_is_marked_and_stands_still_until_it_is_let_go(
    rig: Rig, freezer: Freezer, holding: Holding
) -> None:
    await holding.hold(rig.old)
    assert freezer.frozen == {rig.old: "uid-1"}
    assert holding.held == {rig.old}
    assert holding.let_go() == {rig.old}
    assert freezer.frozen == {}
    assert holding.held == frozenset()


async def test_it_is_frozen_once_however_often_that_is_said(rig: Rig, freezer: Freezer, holding: Holding) -> None:
    await asyncio.gather(holding.hold(rig.old), holding.hold(rig.old, foreign=True), holding.hold(rig.old))
    assert freezer.ever == [rig.old]


async def test_what_is_to_end_is_not_held(rig: Rig, freezer: Freezer, holding: Holding) -> None:
    holding.spare([rig.old])
    await holding.hold(rig.old)
    assert freezer.ever == []


async def test_one_that_is_armed_has_not_run_and_is_disarmed_when_it_is_frozen(
    rig: Rig, freezer: Freezer, holding: Holding
) -> None:
    await holding.expect(rig.old)
    assert freezer.waiting == {rig.old}
    await holding.hold(rig.old)
    assert freezer.waiting == set()
    assert holding.slipped == 0.0


async def test_one_that_could_not_be_armed_tells_for_how_long_it_ran(
    rig: Rig, freezer: Freezer, holding: Holding
) -> None:
    freezer.armable = False
    await holding.expect(rig.old)
    await holding.hold(rig.old, foreign=True)
    assert (holding.slipped, holding.foreign) == (freezer.slip, 1)


async def test_nothing_stays_armed_or_is_held_after_it_was_let_go(rig: Rig, freezer: Freezer, holding: Holding) -> None:
    await holding.expect(rig.old)
    holding.let_go()
    assert freezer.waiting == set()
    await holding.expect(rig.old)
    await holding.hold(rig.old)
    assert (freezer.waiting, freezer.ever) == (set(), [])
    assert not holding.takes(TARGET.name)


async def test_one_that_is_being_frozen_as_it_is_let_go_runs(rig: Rig, freezer: Freezer, holding: Holding) -> None:
    freezing = asyncio.create_task(holding.hold(rig.old))
    await asyncio.sleep(0)  # it has begun
    holding.let_go()
    await freezing
    assert freezer.still() == set()


async def test_what_is_handed_on_stays_frozen_for_the_next(rig: Rig, freezer: Freezer, holding: Holding) -> None:
    await holding.hold(rig.old)
    following = Holding(freezer, mark="uid-1")
    following.adopt(holding.hand_on())
    assert freezer.still() == {rig.old}
    assert holding.let_go() == frozenset()
    assert following.let_go() == {rig.old}


async def test_what_is_killed_never_runs(rig: Rig, freezer: Freezer, holding: Holding) -> None:
    await holding.hold(rig.old)
    holding.kill()
    assert freezer.killed == [rig.old]
    assert await rig.running() == []


async def test_why_one_cannot_be_held_is_kept(rig: Rig, freezer: Freezer, holding: Holding) -> None:
    freezer.refusal = "no cgroup version 2"
    await holding.hold(rig.old)
    assert holding.failed == "no cgroup version 2"


async def test_what_something_else_holds_at_its_first_instruction_is_left_to_that(
    rig: Rig, freezer: Freezer, holding: Holding
) -> None:
    standby = await freezer.arm(rig.old)
    assert standby is not None
    await holding.expect(rig.old, by=standby)
    await holding.hold(rig.old)
    assert freezer.waiting == {rig.old}
    standby.release()


async def test_nobody_else_is_held(holding: Holding) -> None:
    assert not holding.takes("another")
    assert holding.held == frozenset[ContainerId]()


async def test_one_that_is_being_frozen_as_all_are_killed_ends_too(
    rig: Rig, freezer: Freezer, holding: Holding
) -> None:
    freeze, may_freeze = freezer.freeze, asyncio.Event()

    async def slow(container_id: ContainerId, **how: Any) -> float:
        await may_freeze.wait()  # the runtime has yet to tell its process
        return await freeze(container_id, **how)

    freezer.freeze = slow  # type: ignore[method-assign]
    freezing = asyncio.create_task(holding.hold(rig.old))
    await asyncio.sleep(0)  # it has begun
    holding.kill()
    may_freeze.set()
    await freezing
    assert freezer.still() == set()
    assert await rig.running() == []
