"""What one member holds: caught once, whoever says so first, and never frozen after it was let go."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from agent.actuator.exec_hold import HoldError
from agent.actuator.holding import Holding
from agent.actuator.standby import Held
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


@pytest.fixture
def following(freezer: Freezer) -> Holding:
    """The next one's, such as a later round's."""
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


async def test_what_is_handed_on_stays_frozen_for_the_next(
    rig: Rig, freezer: Freezer, holding: Holding, following: Holding
) -> None:
    await holding.hold(rig.old)
    holding.hand_on(following)
    assert freezer.still() == {rig.old} == following.held
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
    async with being_frozen(freezer, holding, rig.old):
        holding.kill()
        assert freezer.waiting == {rig.old}, "it would run until it is killed"
    assert (freezer.still(), freezer.waiting) == (set(), set())
    assert await rig.running() == []


async def test_one_that_is_being_frozen_as_it_is_handed_on_executes_nothing_before_it_stands_still(
    rig: Rig, freezer: Freezer, holding: Holding, following: Holding
) -> None:
    async with being_frozen(freezer, holding, rig.old):
        holding.hand_on(following)
        assert freezer.waiting == {rig.old}, "it would run until it is frozen"
    await following.hold(rig.old)
    assert freezer.ever == [rig.old], "once"
    assert (freezer.still(), freezer.waiting, following.slipped) == ({rig.old}, set(), 0.0)
    assert following.let_go() == {rig.old}


async def test_what_is_handed_on_as_it_is_being_frozen_is_let_go_by_who_holds_it_then(
    rig: Rig, freezer: Freezer, holding: Holding, following: Holding
) -> None:
    async with being_frozen(freezer, holding, rig.old):
        holding.hand_on(following)
        following.let_go()
        assert holding.let_go() == frozenset()
    assert freezer.still() == set()


@pytest.mark.parametrize("when", ["before", "meanwhile"])
async def test_for_how_long_one_ran_is_told_by_whoever_holds_it_and_not_by_whoever_ends_it(
    rig: Rig, freezer: Freezer, holding: Holding, following: Holding, when: str
) -> None:
    freezer.armable = False
    async with being_frozen(freezer, holding, rig.old):
        if when == "meanwhile":
            holding.hand_on(following)
    holding.hand_on(following)
    last = Holding(freezer, mark="uid-1", names={TARGET.name})
    await following.hold(rig.old)
    following.hand_on(last)
    last.spare([rig.old])
    await last.hold(rig.old)
    assert (following.slipped, last.slipped) == (freezer.slip, 0.0)


async def test_what_could_not_be_frozen_is_tried_anew_by_the_next(
    rig: Rig, freezer: Freezer, holding: Holding, following: Holding
) -> None:
    freezer.refusal = "the runtime does not answer"
    await holding.hold(rig.old)
    freezer.refusal = ""
    holding.hand_on(following)
    assert (following.held, following.failed) == (frozenset(), "")
    assert not following.stands_still(rig.old)
    await following.hold(rig.old)
    assert freezer.still() == {rig.old} == following.held


@pytest.mark.parametrize("is_to_end", [False, True])
async def test_a_failure_after_it_was_handed_on_is_the_next_ones_unless_that_ends_it(
    rig: Rig, freezer: Freezer, holding: Holding, following: Holding, is_to_end: bool
) -> None:
    freezer.refusal = "the runtime does not answer"
    async with being_frozen(freezer, holding, rig.old):
        holding.hand_on(following)
        if is_to_end:
            following.spare([rig.old])
        asked = asyncio.create_task(following.hold(rig.old))
    await asked
    assert following.failed == ("" if is_to_end else freezer.refusal)


async def test_what_stands_still_though_its_freezing_has_failed_is_let_go_by_the_next(
    rig: Rig, freezer: Freezer, holding: Holding, following: Holding
) -> None:
    frozen_by_halves(freezer)
    await holding.hold(rig.old)
    assert holding.failed == "too many open files"
    holding.hand_on(following)
    assert freezer.still() == {rig.old}
    following.let_go()
    assert freezer.still() == set()


async def test_what_is_let_go_meanwhile_runs_though_its_freezing_has_failed(
    rig: Rig, freezer: Freezer, holding: Holding
) -> None:
    frozen_by_halves(freezer)
    async with being_frozen(freezer, holding, rig.old):
        holding.let_go()
    assert freezer.ever == [rig.old]
    assert freezer.still() == set()


async def test_it_is_armed_once_however_often_its_start_is_expected(
    rig: Rig, freezer: Freezer, holding: Holding
) -> None:
    armed = slowly_armed(freezer)
    await asyncio.gather(holding.expect(rig.old), holding.expect(rig.old))
    assert armed == [rig.old]
    holding.let_go()


async def test_one_whose_start_is_expected_stays_armed_as_it_is_handed_on(
    rig: Rig, freezer: Freezer, holding: Holding, following: Holding
) -> None:
    other = ContainerId("other")
    await holding.expect(rig.old)
    slowly_armed(freezer)
    expecting = asyncio.create_task(holding.expect(other))
    await asyncio.sleep(0)  # it is being armed
    holding.hand_on(following)
    await expecting
    assert freezer.waiting == {rig.old, other}
    await following.hold(rig.old)
    assert following.slipped == 0.0
    following.let_go()
    assert freezer.waiting == set()


async def test_nothing_is_armed_that_was_started_first(rig: Rig, freezer: Freezer, holding: Holding) -> None:
    await holding.hold(rig.old)
    await holding.expect(rig.old)
    assert freezer.waiting == set()


async def test_what_an_earlier_agent_has_frozen_is_let_go_with_the_rest(
    rig: Rig, freezer: Freezer, holding: Holding
) -> None:
    await freezer.freeze(rig.old, mark="uid-1")
    holding.adopt({rig.old})
    await holding.hold(rig.old)
    assert freezer.ever == [rig.old]
    assert holding.let_go() == {rig.old}


@contextlib.asynccontextmanager
async def being_frozen(freezer: Freezer, holding: Holding, container: ContainerId) -> AsyncIterator[None]:
    """One that was expected has started, and in the block the runtime has yet to tell its process."""
    freeze, may_freeze = freezer.freeze, asyncio.Event()

    async def slow(container_id: ContainerId, **how: Any) -> float:
        await may_freeze.wait()
        return await freeze(container_id, **how)

    freezer.freeze = slow  # type: ignore[method-assign]
    await holding.expect(container)
    freezing = asyncio.create_task(holding.hold(container))
    await asyncio.sleep(0)  # it has begun
    yield
    may_freeze.set()
    await freezing


def frozen_by_halves(freezer: Freezer) -> None:
    """What is frozen from now on could then not be looked at: that is told as failed."""
    freeze = freezer.freeze

    async def fails(container_id: ContainerId, **how: Any) -> float:
        await freeze(container_id, **how)
        raise HoldError("too many open files")

    freezer.freeze = fails  # type: ignore[method-assign]


def slowly_armed(freezer: Freezer) -> list[ContainerId]:
    """Return what is armed from now on, each after a while."""
    arm, armed = freezer.arm, list[ContainerId]()

    async def slow(container_id: ContainerId) -> Held | None:
        await asyncio.sleep(0)
        armed.append(container_id)
        return await arm(container_id)

    freezer.arm = slow  # type: ignore[method-assign]
    return armed
