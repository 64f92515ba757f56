"""Whom an agent obeys: nobody who claims to lead after more leaders than there can have been."""

import pytest

from agent.coordination.fence import Fence
from agent.history.store import HistoryError
from common import epochs

NOW = 1_800_000_000.0
HIGHEST = int(NOW) + 2 * epochs.CLOCK_SKEW


class Kept:
    """What is on disk; ``broken`` says that the disk takes nothing."""

    def __init__(self, epoch: int = 0) -> None:
        self.epoch = epoch
        self.broken = False

    async def obeyed_epoch(self) -> int:
        return self.epoch

    async def obey(self, epoch: int, *, highest: int | None = None) -> None:
        if self.broken:
            raise HistoryError("no space left")
        self.epoch = max(epoch, self.epoch if highest is None or self.epoch <= highest else 0)


class Clock:
    """Unix seconds, as the test has them."""

    def __init__(self, now: float = NOW) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize("epoch", [HIGHEST + 1, 10**18, 2**64 - 1])
async def test_an_epoch_beyond_belief_is_not_obeyed_and_binds_nobody(epoch: int) -> None:
    kept = Kept()
    fence = Fence(kept, clock=Clock())
    await fence.load()
    assert await fence.admits(7)
    assert not await fence.admits(epoch)
    assert await fence.admits(7)
    assert (fence.obeyed, kept.epoch) == (7, 7)


async def test_above_the_highest_that_was_believed_there_is_one_a_second_later() -> None:
    clock = Clock()
    fence = Fence(Kept(), clock=clock)
    assert await fence.admits(HIGHEST)
    assert not await fence.admits(HIGHEST + 1)
    clock.now += 1
    assert await fence.admits(HIGHEST + 1)


@pytest.mark.parametrize("stored", [HIGHEST + 1, 10**18])
async def test_what_an_earlier_agent_believed_too_much_is_forgotten(stored: int) -> None:
    kept = Kept(stored)
    fence = Fence(kept, clock=Clock())
    await fence.load()
    assert fence.obeyed == 0
    assert await fence.admits(8)
    assert kept.epoch == 8


async def test_a_node_whose_clock_begins_in_1970_obeys_its_leader() -> None:
    kept = Kept(1000)
    fence = Fence(kept, clock=Clock(5.0))
    await fence.load()
    assert fence.obeyed == 1000
    assert await fence.admits(1001)


async def test_what_a_leader_may_take_by_its_clock_is_obeyed_by_one_that_is_a_minute_behind() -> None:
    fence = Fence(Kept(), clock=Clock(NOW - epochs.CLOCK_SKEW))
    assert await fence.admits(epochs.highest(NOW))
