"""A term's epoch: what it is raised for, and who hears of it."""

import asyncio

import pytest

from common import epochs
from controller.leader.election import LostError, Term

NOW = 1_800_000_000.0
HIGHEST = epochs.highest(NOW)


def begun(*, epoch: int) -> Term:
    return Term(epoch=epoch, renewed_at=0.0, clock=lambda: NOW)


@pytest.mark.parametrize("seen", [7, 8, 10_007, HIGHEST - 1])
def test_an_epoch_that_is_as_high_or_higher_is_risen_above(seen: int) -> None:
    term = begun(epoch=7)
    term.raise_above(seen)
    assert term.seen == seen
    assert term.wish.is_set()


@pytest.mark.parametrize("seen", [0, 6, HIGHEST, 2**63])
def test_a_lower_epoch_and_one_beyond_belief_change_nothing(seen: int) -> None:
    term = begun(epoch=7)
    term.raise_above(seen)
    assert term.seen == 6
    assert not term.wish.is_set()


def test_what_is_asked_for_already_is_not_asked_for_again() -> None:
    term = begun(epoch=1)
    term.raise_above(8)
    term.wish.clear()  # a renewal is under way
    for seen in (8, 3, 1):
        term.raise_above(seen)
    assert term.seen == 8
    assert not term.wish.is_set()
    term.renewed(epoch=9, at=1.0)
    term.raise_above(8)
    assert not term.wish.is_set()
    term.raise_above(9)
    assert term.wish.is_set()


async def test_who_waits_for_a_higher_epoch_hears_of_it_and_of_no_mere_renewal() -> None:
    term = begun(epoch=1)
    waiting = asyncio.create_task(term.risen(above=1))
    await asyncio.sleep(0)
    term.renewed(epoch=1, at=1.0)
    await asyncio.sleep(0)
    assert not waiting.done()
    term.renewed(epoch=9, at=2.0)
    assert await waiting == 9
    assert await term.risen(above=8) == 9


async def test_who_waits_for_a_higher_epoch_hears_of_the_terms_end() -> None:
    term = begun(epoch=1)
    waiting = asyncio.create_task(term.risen(above=1))
    await asyncio.sleep(0)
    term.end()
    with pytest.raises(LostError):
        await waiting
