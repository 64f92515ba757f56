"""Reject leaders with an epoch that is higher than there can have been leaders."""

import pytest

from kubemend.agent.clients.journal.store import JournalError
from kubemend.agent.hub.fence import Fence
from kubemend.common import epochs

NOW = 1_800_000_000.0
HIGHEST = int(NOW) + 2 * epochs.CLOCK_SKEW


class Kept:
    """The state on disk; ``broken``: writes fail."""

    def __init__(self, epoch: int = 0) -> None:
        self.epoch = epoch
        self.broken = False

    async def obeyed_epoch(self) -> int:
        return self.epoch

    async def obey(self, epoch: int, *, highest: int | None = None) -> None:
        if self.broken:
            raise JournalError("no space left")
        self.epoch = max(epoch, self.epoch if highest is None or self.epoch <= highest else 0)


class Clock:
    """Unix seconds, as the test sets them."""

    def __init__(self, now: float = NOW) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize("epoch", [HIGHEST + 1, 10**18, 2**64 - 1])
async def test_implausible_epoch_is_neither_accepted_nor_stored(epoch: int) -> None:
    kept = Kept()
    fence = Fence(kept, clock=Clock())
    await fence.load()
    assert await fence.admits(7)
    assert not await fence.admits(epoch)
    assert await fence.admits(7)
    assert (fence.obeyed, kept.epoch) == (7, 7)


async def test_epoch_above_highest_is_plausible_one_second_later() -> None:
    clock = Clock()
    fence = Fence(Kept(), clock=clock)
    assert await fence.admits(HIGHEST)
    assert not await fence.admits(HIGHEST + 1)
    clock.now += 1
    assert await fence.admits(HIGHEST + 1)


@pytest.mark.parametrize("stored", [HIGHEST + 1, 10**18])
async def test_implausible_stored_epoch_is_forgotten(stored: int) -> None:
    kept = Kept(stored)
    fence = Fence(kept, clock=Clock())
    await fence.load()
    assert fence.obeyed == 0
    assert await fence.admits(8)
    assert kept.epoch == 8


async def test_leader_is_accepted_with_clock_in_1970() -> None:
    kept = Kept(1000)
    fence = Fence(kept, clock=Clock(5.0))
    await fence.load()
    assert fence.obeyed == 1000
    assert await fence.admits(1001)


async def test_epoch_of_leader_one_minute_ahead_is_accepted() -> None:
    fence = Fence(Kept(), clock=Clock(NOW - epochs.CLOCK_SKEW))
    assert await fence.admits(epochs.highest(NOW))
