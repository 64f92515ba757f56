"""Budgets never allow more than their limit, and name to the second when they open again."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubemend.agent.model.workloads import PodUid
from kubemend.agent.restart import budget, counts
from kubemend.agent.restart.budget import Budget, DeviceBudget, Scope
from kubemend.agent.restart.counts import Begun
from kubemend.common import budgets
from kubemend.common.budgets import Closed, Window
from tests.unit.restart import builders

SMALL = Budget(limit=5, window=1000.0)
ON_DEVICE = DeviceBudget(limit=4, window=1000.0)


def begun(at: float, fault_at: float | None = None, *, device: str | None = "GPU-0", pod: str = "uid-1") -> Begun:
    """A restart, by default for a fault a moment before."""
    fault = at - 0.1 if fault_at is None else fault_at
    return Begun(pod=PodUid(pod), containers=frozenset({"trainer"}), at=at, fault_at=fault, device=device)


def row(*times: float) -> list[Begun]:
    return [begun(time) for time in times]


def opens_at(closed: Closed | None) -> float | None:
    return closed.until if closed is not None else None


def test_restart_of_unknown_containers_counts_for_each_of_its_pod() -> None:
    past = [replace(begun(1.0), containers=names) for names in (frozenset[str](), frozenset({"other"}))]
    history = counts.History.of(past, target=builders.TARGET, device=None, now=2.0)
    assert (history.container, history.pod) == ((past[0],), tuple(past))


def test_a_pod_has_twice_the_budget_of_a_container() -> None:
    assert SMALL.of_pod == Window(10, 1000.0)


# ---- one container ----


def test_first_three_restarts_are_immediate() -> None:
    assert Budget().closed(row(0, 1), now=2, died_at=2) is None


def test_fourth_early_failure_in_a_row_waits() -> None:
    assert opens_at(Budget().closed(row(0, 1, 2), now=3, died_at=3)) == 12.0


def test_waits_double_up_to_a_limit() -> None:
    allowance = Budget(limit=10_000)
    waits = [opens_at(allowance.closed(row(*[0.0] * (3 + n)), now=1, died_at=1)) for n in (0, 1, 2, 3, 4, 5, 6, 2000)]
    assert waits == [10.0, 20.0, 40.0, 80.0, 160.0, 300.0, 300.0, 300.0]


def test_long_lived_successor_resets_the_backoff() -> None:
    assert Budget().closed(row(0, 1, 2), now=62, died_at=62) is None


def test_waiting_for_the_budget_is_not_lifetime() -> None:
    past = row(0, 1, 2, 12, 32, 72)  # the next one has to wait for 80 s
    closed = Budget().closed(past, now=150, died_at=73)
    assert opens_at(closed) == 152.0
    again = [*past, begun(152, fault_at=73)]  # it failed early, and waited: the streak continues
    assert opens_at(Budget().closed(again, now=153, died_at=153)) == 152 + 160


def test_full_window_opens_when_its_oldest_restart_expires() -> None:
    past = row(*(float(100 * number) for number in range(10)))
    assert opens_at(Budget().closed(past, now=1000, died_at=1000)) == 3600.0


def test_budget_of_zero_never_opens() -> None:
    assert opens_at(Budget(limit=0).closed([], now=1, died_at=1)) == math.inf


# ---- one device ----


def test_device_budget_closes_when_no_restart_lasts() -> None:
    past = [begun(10.0 * number, pod=f"uid-{number}") for number in range(4)]
    assert ON_DEVICE.closed(past[:3], now=31, died_at=31) is None
    assert opens_at(ON_DEVICE.closed(past, now=41, died_at=41)) == 1000.0


def test_lasting_restart_clears_earlier_failures() -> None:
    past = row(0, 10, 20, 100, 110)
    assert ON_DEVICE.closed(past, now=120, died_at=120) is None


def test_fault_of_many_containers_counts_once_per_device() -> None:
    wave = [begun(100 + number / 10, fault_at=99.9 + number / 100, pod=f"uid-{number}") for number in range(7)]
    assert ON_DEVICE.closed(wave, now=101, died_at=99.99) is None  # one more container that the same fault has hit
    assert ON_DEVICE.left(wave, now=110) == ON_DEVICE.limit - 1


def test_last_containers_of_a_fault_are_restarted_despite_spent_budget() -> None:
    past = row(0, 10, 20, 30)
    assert ON_DEVICE.closed(past, now=31, died_at=30.5) is None
    assert ON_DEVICE.closed(past, now=33, died_at=33) is not None


def test_each_fault_of_a_device_counts_once_however_many_containers_it_hits() -> None:
    past = [begun(fault + delay, fault) for fault in (0, 10, 20, 30) for delay in (0.25, 0.5)]
    assert ON_DEVICE.closed(past[:-2], now=31, died_at=31) is None
    assert opens_at(ON_DEVICE.closed(past, now=41, died_at=41)) == 1000.25


# ---- the node ----


def test_fault_of_every_gpu_is_no_storm() -> None:
    past: list[Begun] = []
    for number in range(8):  # NVSwitch: 8 pods at once
        history = counts.History(node=tuple(past))
        assert budget.spent(history, container=Budget(), now=100.0, died_at=99.0) is None
        past.append(begun(100.0, fault_at=99.0, pod=f"uid-{number}"))


def test_one_namespace_leaves_others_a_part_of_the_nodes_budget() -> None:
    theirs = [replace(begun(float(number), pod=f"uid-{number}"), namespace="loops") for number in range(60)]

    def spent(namespace: str) -> budget.Spent | None:
        target = replace(builders.TARGET, pod=replace(builders.POD, namespace=namespace))
        history = counts.History.of(theirs, target=target, device=None, now=100.0)
        return budget.spent(history, container=Budget(), now=100.0, died_at=100.0)

    assert spent("team") is None
    closed = spent("loops")
    assert closed is not None
    assert (closed.scope, closed.closed.until) == (Scope.NODE, 300.0)
    assert closed.closed.reason == "60 restarts in its namespace within 5 min"


def test_budget_that_opens_last_is_named() -> None:
    past = tuple(row(*range(90, 100)))
    history = counts.History(container=past, pod=past, node=past * 6)
    spent = budget.spent(history, container=Budget(), now=100.0, died_at=100.0)
    assert spent is not None
    assert (spent.scope, spent.closed.until) == (Scope.CONTAINER, 3690.0)


def test_history_is_sorted_by_pod_container_and_device() -> None:
    sibling = Begun(builders.POD.uid, frozenset({"logger"}), at=1.0, fault_at=0.0, device="GPU-1")
    mine = Begun(builders.POD.uid, frozenset({"trainer", "logger"}), at=3.0, fault_at=2.0)
    other = begun(2.0, pod="uid-2")
    history = counts.History.of([mine, other, sibling], target=builders.TARGET, device="GPU-1", now=5.0)
    assert history == counts.History(
        container=(mine,), pod=(sibling, mine), device=(sibling,), node=(sibling, other, mine)
    )


def test_restart_without_device_uses_no_device_budget() -> None:
    nameless = [begun(float(number), device=None) for number in range(20)]
    assert counts.History.of(nameless, target=builders.TARGET, device=None, now=30.0).device == ()


def test_times_before_a_clock_set_back_are_ignored() -> None:
    history = counts.History.of([begun(1_000_000.0), begun(130.0)], target=builders.TARGET, device=None, now=100.0)
    assert [each.at for each in history.node] == [130.0]  # a clock that is nudged has not been set


@pytest.mark.parametrize(("seconds", "text"), [(3600.0, "1 h"), (300.0, "5 min"), (90.0, "90 s"), (0.5, "0.5 s")])
def test_spans_are_readable(seconds: float, text: str) -> None:
    assert budgets.span(seconds) == text


def test_times_use_kubernetes_format_and_are_never_too_early() -> None:
    assert budgets.clock(1_700_000_000.2) == "2023-11-14T22:13:21Z"


# ---- properties of all of them ----

Ask = Callable[[Sequence[Begun], float, float], Closed | None]
"""Query a budget: the restarts so far, now, and the time of the fault."""

BUDGETS: list[tuple[str, Ask]] = [
    ("window", lambda past, now, died_at: Window(5, 1000.0).closed(past, now=now)),
    ("container", lambda past, now, died_at: SMALL.closed(past, now=now, died_at=died_at)),
    ("pod", lambda past, now, died_at: SMALL.of_pod.closed(past, now=now)),
    ("device", lambda past, now, died_at: ON_DEVICE.closed(past, now=now, died_at=died_at)),
    (
        "all",
        lambda past, now, died_at: (
            spent.closed
            if (
                spent := budget.spent(
                    counts.History(tuple(past), tuple(past), tuple(past), tuple(past)),
                    container=SMALL,
                    device=ON_DEVICE,
                    node=Window(7, 500.0),
                    now=now,
                    died_at=died_at,
                )
            )
            else None
        ),
    ),
]
every_budget = pytest.mark.parametrize("ask", [ask for _, ask in BUDGETS], ids=[name for name, _ in BUDGETS])

moments = st.floats(0.0, 5000.0)
lives = st.lists(st.floats(0.0, 200.0), min_size=1, max_size=60)


def run(ask: Ask, lived: Sequence[float]) -> list[Begun]:
    """Restart a container that lives for a given time each, as soon as the budget allows."""
    past: list[Begun] = []
    now = 0.0
    for life in lived:
        died_at = now + life
        closed = ask(past, died_at, died_at)
        now = died_at if closed is None else closed.until
        assert ask(past, now, died_at) is None, "the named time is when it opens"
        past.append(begun(now, fault_at=died_at))
    return past


def most_in_any(past: Sequence[Begun], seconds: float) -> int:
    return max(sum(first.at <= each.at < first.at + seconds for each in past) for first in past)


@given(lived=lives)
def test_window_never_exceeds_its_limit(lived: list[float]) -> None:
    assert most_in_any(run(BUDGETS[0][1], lived), 1000.0) <= 5
    assert most_in_any(run(BUDGETS[1][1], lived), 1000.0) <= SMALL.limit
    assert most_in_any(run(BUDGETS[2][1], lived), 1000.0) <= 2 * SMALL.limit


@given(lived=st.lists(st.floats(2.5, 59.0), min_size=1, max_size=40))
def test_device_window_never_exceeds_its_limit_of_failures(lived: list[float]) -> None:
    assert most_in_any(run(BUDGETS[3][1], lived), 1000.0) <= ON_DEVICE.limit


@every_budget
@given(lived=lives, waited=st.floats(0.0, 3000.0), share=st.floats(0.0, 1.0))
def test_budget_opens_at_the_named_time_and_stays_open(
    ask: Ask, lived: list[float], waited: float, share: float
) -> None:
    past = run(ask, lived)
    died_at = past[-1].at + 1.0
    closed = ask(past, died_at, died_at)
    if closed is None:
        assert ask(past, died_at + waited, died_at) is None
        return
    before = died_at + share * (closed.until - died_at)
    if before < closed.until:
        assert opens_at(ask(past, before, died_at)) == closed.until
    assert ask(past, closed.until + waited, died_at) is None


@given(times=st.lists(moments, max_size=20), more=moments, now=moments, limit=st.integers(0, 6))
def test_window_opens_no_earlier_for_more_restarts(times: list[float], more: float, now: float, limit: int) -> None:
    def at(limit: int, moments: Sequence[float]) -> float:
        closed = Window(limit, 1000.0).closed(row(*sorted(time for time in moments if time <= now)), now=now)
        return closed.until if closed is not None else -math.inf

    assert at(limit, times) <= at(limit, [*times, more])
    assert at(limit + 1, times) <= at(limit, times)


@given(times=st.lists(moments, max_size=20), now=moments)
def test_left_and_closed_agree(times: list[float], now: float) -> None:
    past = row(*sorted(time for time in times if time <= now))
    window = Window(5, 1000.0)
    assert (window.left(past, now=now) == 0) is (window.closed(past, now=now) is not None)
