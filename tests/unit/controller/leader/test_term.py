"""A term's epoch: the events that raise it, and the tasks that are notified."""

import asyncio

import pytest

from kubemend.common import epochs
from kubemend.controller.leader.election import LostError, Term, leader_text

NOW = 1_800_000_000.0
HIGHEST = epochs.highest(NOW)


def begun(*, epoch: int) -> Term:
    return Term(epoch=epoch, renewed_at=0.0, clock=lambda: NOW)


@pytest.mark.parametrize("seen", [7, 8, 10_007, HIGHEST - 1])
def test_equal_or_higher_epoch_raises_the_own_one(seen: int) -> None:
    term = begun(epoch=7)
    term.raise_above(seen)
    assert term.seen == seen
    assert term.raise_requested.is_set()


@pytest.mark.parametrize("seen", [0, 6, HIGHEST, 2**63])
def test_lower_or_impossible_epoch_changes_nothing(seen: int) -> None:
    term = begun(epoch=7)
    term.raise_above(seen)
    assert term.seen == 6
    assert not term.raise_requested.is_set()


def test_pending_raise_is_not_requested_again() -> None:
    term = begun(epoch=1)
    term.raise_above(8)
    term.raise_requested.clear()  # a renewal is under way
    for seen in (8, 3, 1):
        term.raise_above(seen)
    assert term.seen == 8
    assert not term.raise_requested.is_set()
    term.renewed(epoch=9, at=1.0)
    term.raise_above(8)
    assert not term.raise_requested.is_set()
    assert term.floor == 9


def test_raise_after_many_waits_but_is_not_lost() -> None:
    now = NOW
    term = Term(epoch=1, renewed_at=0.0, clock=lambda: now)
    for seen in (2, 4, 6, 8):
        term.raise_above(seen)
        assert (term.raise_requested.is_set(), term.floor) == (True, seen + 1)
        term.raise_requested.clear()
        term.renewed(epoch=seen + 1, at=1.0)
    term.raise_above(20)
    assert (term.raise_requested.is_set(), term.floor) == (False, 9)
    now += 60.0
    assert term.floor == 21  # of the next renewal
    term.raise_above(30)
    assert term.raise_requested.is_set()


async def test_risen_ignores_mere_renewals() -> None:
    term = begun(epoch=1)
    waiting = asyncio.create_task(term.risen(above=1))
    await asyncio.sleep(0)
    term.renewed(epoch=1, at=1.0)
    await asyncio.sleep(0)
    assert not waiting.done()
    term.renewed(epoch=9, at=2.0)
    assert await waiting == 9
    assert await term.risen(above=8) == 9


async def test_risen_raises_at_end_of_term() -> None:
    term = begun(epoch=1)
    waiting = asyncio.create_task(term.risen(above=1))
    await asyncio.sleep(0)
    term.end()
    with pytest.raises(LostError):
        await waiting


def test_lease_without_holder_has_full_sentence() -> None:
    assert leader_text("") == "no replica leads yet"
    assert leader_text("pod-a_uid-a_1") == "pod-a_uid-a_1 leads"
