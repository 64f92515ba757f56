"""A member's holds: a container is frozen once, by any first report, and never after its release."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from kubemend.agent.actuator.hold.exec_hold import HoldError
from kubemend.agent.actuator.hold.hold_set import HoldSet
from kubemend.agent.actuator.hold.standby import Held
from kubemend.agent.model.workloads import ContainerId
from tests.environments.runtime import TARGET, CriEnv
from tests.fakes.freezer import Freezer


@pytest.fixture
def freezer(cri_env: CriEnv) -> Freezer:
    return Freezer(cri_env.server.runtime)


@pytest.fixture
def holding(freezer: Freezer) -> HoldSet:
    return HoldSet(freezer, mark="uid-1", names={TARGET.name})


@pytest.fixture
def following(freezer: Freezer) -> HoldSet:
    """The next holder's, such as a later round's."""
    return HoldSet(freezer, mark="uid-1", names={TARGET.name})


async def test_held_container_is_marked_and_frozen_until_release(
    cri_env: CriEnv, freezer: Freezer, holding: HoldSet
) -> None:
    await holding.hold(cri_env.old)
    assert freezer.frozen == {cri_env.old: "uid-1"}
    assert holding.held == {cri_env.old}
    assert holding.release() == {cri_env.old}
    assert freezer.frozen == {}
    assert holding.held == frozenset()


async def test_repeated_hold_freezes_once(cri_env: CriEnv, freezer: Freezer, holding: HoldSet) -> None:
    await asyncio.gather(holding.hold(cri_env.old), holding.hold(cri_env.old, foreign=True), holding.hold(cri_env.old))
    assert freezer.ever == [cri_env.old]


async def test_spared_container_is_not_held(cri_env: CriEnv, freezer: Freezer, holding: HoldSet) -> None:
    holding.exclude([cri_env.old])
    await holding.hold(cri_env.old)
    assert freezer.ever == []


async def test_armed_container_never_ran_and_is_disarmed_once_frozen(
    cri_env: CriEnv, freezer: Freezer, holding: HoldSet
) -> None:
    await holding.expect(cri_env.old)
    assert freezer.waiting == {cri_env.old}
    await holding.hold(cri_env.old)
    assert freezer.waiting == set()
    assert holding.unheld_seconds == 0.0


async def test_unarmed_container_reports_how_long_it_ran(cri_env: CriEnv, freezer: Freezer, holding: HoldSet) -> None:
    freezer.armable = False
    await holding.expect(cri_env.old)
    await holding.hold(cri_env.old, foreign=True)
    assert (holding.unheld_seconds, holding.foreign) == (freezer.slip, 1)


async def test_release_leaves_nothing_armed_or_held(cri_env: CriEnv, freezer: Freezer, holding: HoldSet) -> None:
    await holding.expect(cri_env.old)
    holding.release()
    assert freezer.waiting == set()
    await holding.expect(cri_env.old)
    await holding.hold(cri_env.old)
    assert (freezer.waiting, freezer.ever) == (set(), [])
    assert not holding.must_hold(TARGET.name)


async def test_release_during_freeze_lets_container_run(cri_env: CriEnv, freezer: Freezer, holding: HoldSet) -> None:
    freezing = asyncio.create_task(holding.hold(cri_env.old))
    await asyncio.sleep(0)  # it has begun
    holding.release()
    await freezing
    assert freezer.still() == set()


async def test_transferred_container_stays_frozen(
    cri_env: CriEnv, freezer: Freezer, holding: HoldSet, following: HoldSet
) -> None:
    await holding.hold(cri_env.old)
    holding.transfer_to(following)
    assert freezer.still() == {cri_env.old} == following.held
    assert holding.release() == frozenset()
    assert following.release() == {cri_env.old}


async def test_killed_container_never_runs(cri_env: CriEnv, freezer: Freezer, holding: HoldSet) -> None:
    await holding.hold(cri_env.old)
    holding.kill()
    assert freezer.killed == [cri_env.old]
    assert await cri_env.running() == []


async def test_hold_failure_reason_is_kept(cri_env: CriEnv, freezer: Freezer, holding: HoldSet) -> None:
    freezer.refusal = "no cgroup version 2"
    await holding.hold(cri_env.old)
    assert holding.failed == "no cgroup version 2"


async def test_borrowed_hold_is_released_by_its_owner(cri_env: CriEnv, freezer: Freezer, holding: HoldSet) -> None:
    standby = await freezer.arm(cri_env.old)
    assert standby is not None
    await holding.expect(cri_env.old, by=standby)
    await holding.hold(cri_env.old)
    assert freezer.waiting == {cri_env.old}
    standby.release()


async def test_other_names_are_not_held(holding: HoldSet) -> None:
    assert not holding.must_hold("another")
    assert holding.held == frozenset[ContainerId]()


async def test_kill_during_freeze_ends_the_container(cri_env: CriEnv, freezer: Freezer, holding: HoldSet) -> None:
    async with being_frozen(freezer, holding, cri_env.old):
        holding.kill()
        assert freezer.waiting == {cri_env.old}, "it would run until it is killed"
    assert (freezer.still(), freezer.waiting) == (set(), set())
    assert await cri_env.running() == []


async def test_transfer_during_freeze_keeps_container_armed_until_frozen(
    cri_env: CriEnv, freezer: Freezer, holding: HoldSet, following: HoldSet
) -> None:
    async with being_frozen(freezer, holding, cri_env.old):
        holding.transfer_to(following)
        assert freezer.waiting == {cri_env.old}, "it would run until it is frozen"
    await following.hold(cri_env.old)
    assert freezer.ever == [cri_env.old], "once"
    assert (freezer.still(), freezer.waiting, following.unheld_seconds) == ({cri_env.old}, set(), 0.0)
    assert following.release() == {cri_env.old}


async def test_transfer_during_freeze_is_released_by_new_holder(
    cri_env: CriEnv, freezer: Freezer, holding: HoldSet, following: HoldSet
) -> None:
    async with being_frozen(freezer, holding, cri_env.old):
        holding.transfer_to(following)
        following.release()
        assert holding.release() == frozenset()
    assert freezer.still() == set()


@pytest.mark.parametrize("when", ["before", "during"])
async def test_unheld_seconds_count_for_the_set_that_was_asked(
    cri_env: CriEnv, freezer: Freezer, holding: HoldSet, following: HoldSet, when: str
) -> None:
    freezer.armable = False
    async with being_frozen(freezer, holding, cri_env.old):
        if when == "during":
            holding.transfer_to(following)
    holding.transfer_to(following)
    last = HoldSet(freezer, mark="uid-1", names={TARGET.name})
    await following.hold(cri_env.old)
    following.transfer_to(last)
    last.exclude([cri_env.old])
    await last.hold(cri_env.old)
    assert (following.unheld_seconds, last.unheld_seconds) == (freezer.slip, 0.0)


async def test_failed_freeze_is_retried_after_transfer(
    cri_env: CriEnv, freezer: Freezer, holding: HoldSet, following: HoldSet
) -> None:
    freezer.refusal = "the runtime does not answer"
    await holding.hold(cri_env.old)
    freezer.refusal = ""
    holding.transfer_to(following)
    assert (following.held, following.failed) == (frozenset(), "")
    assert not following.is_frozen(cri_env.old)
    await following.hold(cri_env.old)
    assert freezer.still() == {cri_env.old} == following.held


@pytest.mark.parametrize("is_to_end", [False, True])
async def test_freeze_failure_after_transfer_counts_for_the_new_holder(
    cri_env: CriEnv, freezer: Freezer, holding: HoldSet, following: HoldSet, is_to_end: bool
) -> None:
    freezer.refusal = "the runtime does not answer"
    async with being_frozen(freezer, holding, cri_env.old):
        holding.transfer_to(following)
        if is_to_end:
            following.exclude([cri_env.old])
        asked = asyncio.create_task(following.hold(cri_env.old))
    await asked
    assert following.failed == ("" if is_to_end else freezer.refusal)


async def test_container_frozen_despite_error_is_released_after_transfer(
    cri_env: CriEnv, freezer: Freezer, holding: HoldSet, following: HoldSet
) -> None:
    frozen_by_halves(freezer)
    await holding.hold(cri_env.old)
    assert holding.failed == "too many open files"
    holding.transfer_to(following)
    assert freezer.still() == {cri_env.old}
    following.release()
    assert freezer.still() == set()


async def test_container_released_during_failed_freeze_runs(
    cri_env: CriEnv, freezer: Freezer, holding: HoldSet
) -> None:
    frozen_by_halves(freezer)
    async with being_frozen(freezer, holding, cri_env.old):
        holding.release()
    assert freezer.ever == [cri_env.old]
    assert freezer.still() == set()


@pytest.mark.parametrize("when", ["frozen", "during", "failed"])
async def test_end_of_a_released_container_is_its_own(
    cri_env: CriEnv, freezer: Freezer, holding: HoldSet, when: str
) -> None:
    if when == "failed":
        frozen_by_halves(freezer)
    async with being_frozen(freezer, holding, cri_env.old):
        if when != "frozen":
            holding.release()
    holding.release()
    cri_env.server.runtime.exit(cri_env.old, exit_code=1)
    assert holding.ended == frozenset()


@pytest.mark.parametrize("when", ["frozen", "during", "killed"])
async def test_end_of_a_held_container_is_the_holders(
    cri_env: CriEnv, freezer: Freezer, holding: HoldSet, when: str
) -> None:
    async with being_frozen(freezer, holding, cri_env.old):
        if when == "during":
            cri_env.server.runtime.exit(cri_env.old, exit_code=137)
            holding.release()
    if when == "frozen":
        cri_env.server.runtime.exit(cri_env.old, exit_code=137)
    holding.kill() if when == "killed" else holding.release()
    assert holding.ended == {cri_env.old}


async def test_container_that_the_next_holder_releases_has_not_ended(
    cri_env: CriEnv, holding: HoldSet, following: HoldSet
) -> None:
    await holding.hold(cri_env.old)
    holding.transfer_to(following)
    assert following.release() == {cri_env.old}
    assert holding.ended == following.ended == frozenset()


async def test_repeated_expect_arms_once(cri_env: CriEnv, freezer: Freezer, holding: HoldSet) -> None:
    armed = slowly_armed(freezer)
    await asyncio.gather(holding.expect(cri_env.old), holding.expect(cri_env.old))
    assert armed == [cri_env.old]
    holding.release()


async def test_expected_container_stays_armed_after_transfer(
    cri_env: CriEnv, freezer: Freezer, holding: HoldSet, following: HoldSet
) -> None:
    other = ContainerId("other")
    await holding.expect(cri_env.old)
    slowly_armed(freezer)
    expecting = asyncio.create_task(holding.expect(other))
    await asyncio.sleep(0)  # it is being armed
    holding.transfer_to(following)
    await expecting
    assert freezer.waiting == {cri_env.old, other}
    await following.hold(cri_env.old)
    assert following.unheld_seconds == 0.0
    following.release()
    assert freezer.waiting == set()


async def test_started_container_is_not_armed(cri_env: CriEnv, freezer: Freezer, holding: HoldSet) -> None:
    await holding.hold(cri_env.old)
    await holding.expect(cri_env.old)
    assert freezer.waiting == set()


async def test_adopted_container_is_released_with_the_rest(cri_env: CriEnv, freezer: Freezer, holding: HoldSet) -> None:
    await freezer.freeze(cri_env.old, mark="uid-1")
    holding.adopt({cri_env.old})
    await holding.hold(cri_env.old)
    assert freezer.ever == [cri_env.old]
    assert holding.release() == {cri_env.old}


@contextlib.asynccontextmanager
async def being_frozen(freezer: Freezer, holding: HoldSet, container: ContainerId) -> AsyncIterator[None]:
    """An expected container has started; in the block the runtime has not reported its process yet."""
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
    """Make later freezes unable to read the processes, which is reported as failed."""
    freeze = freezer.freeze

    async def fails(container_id: ContainerId, **how: Any) -> float:
        await freeze(container_id, **how)
        raise HoldError("too many open files")

    freezer.freeze = fails  # type: ignore[method-assign]


def slowly_armed(freezer: Freezer) -> list[ContainerId]:
    """Return the holds armed from now on, each after a delay."""
    arm, armed = freezer.arm, list[ContainerId]()

    async def slow(container_id: ContainerId) -> Held | None:
        await asyncio.sleep(0)
        armed.append(container_id)
        return await arm(container_id)

    freezer.arm = slow  # type: ignore[method-assign]
    return armed
