"""Wall clocks are set, by an hour and more: how decisions treat times recorded before and after that."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubemend.agent.restart import admission, budget, counts
from kubemend.agent.restart.admission import Verb
from kubemend.agent.restart.reasons import Reason
from kubemend.common import budgets
from tests.unit.restart import builders
from tests.unit.restart.test_admission import NOW, cause, facts, runtime

HOUR = 3600.0
JUMPS = st.one_of(st.floats(-2 * HOUR, -budgets.CLOCK_SLACK - 1), st.floats(budgets.CLOCK_SLACK + 1, 2 * HOUR))
AGES = st.floats(0.0, 2 * HOUR)

AGES_OF_RESTARTS = st.lists(AGES, max_size=40)


def noted(at: float) -> counts.Begun:
    return counts.Begun(
        pod=builders.POD.uid, containers=frozenset({"trainer"}), at=at, fault_at=at - 0.1, device="GPU-0"
    )


def history(ages: list[float], *, set_ago: float, jump: float) -> counts.History:
    """Return restarts of given ages, as recorded by a clock that was set by ``jump`` a given time ago."""
    times = [NOW - age - (jump if age > set_ago else 0.0) for age in sorted(ages, reverse=True)]
    return counts.History.of(map(noted, times), target=builders.TARGET, device="GPU-0", now=NOW)


@given(ages=AGES_OF_RESTARTS, set_ago=AGES, jump=JUMPS)
def test_clock_jump_never_delays_beyond_the_longest_budget(ages: list[float], set_ago: float, jump: float) -> None:
    past = history(ages, set_ago=set_ago, jump=jump)
    spent = budget.spent(past, container=budget.Budget(), now=NOW, died_at=NOW)
    assert spent is None or spent.closed.until - NOW <= HOUR + budgets.CLOCK_SLACK


@given(since=st.lists(st.floats(0.0, 600.0), min_size=10, max_size=20), set_ago=st.floats(600.0, HOUR), jump=JUMPS)
def test_restarts_since_the_jump_count_in_full(since: list[float], set_ago: float, jump: float) -> None:
    past = history(since, set_ago=set_ago, jump=jump)
    spent = budget.spent(past, container=budget.Budget(limit=len(since)), now=NOW, died_at=NOW)
    assert spent is not None


@given(
    ages=AGES_OF_RESTARTS,
    started=AGES,
    fault=AGES,
    offset=st.floats(-1e6, 1e6),
)
def test_only_time_differences_count(ages: list[float], started: float, fault: float, offset: float) -> None:
    """All clocks of a node are set alike; a decision that depended on the time of day would be wrong once a day."""

    def decision(now: float) -> admission.Decision:
        begun = [noted(now - round(age)) for age in ages]
        return admission.decide(
            facts(
                runtime=runtime(started_at=now - round(started)),
                cause=cause(happened_at=now - round(fault)),
                history=counts.History.of(begun, target=builders.TARGET, device=None, now=now),
            ),
            now=now,
        )

    here, there = decision(NOW), decision(NOW + round(offset))
    assert (here.verb, here.reason, here.strategy) == (there.verb, there.reason, there.strategy)


@given(lived=st.floats(0.0, HOUR), jump=JUMPS)
def test_clock_set_back_before_the_fault_refuses_the_restart(lived: float, jump: float) -> None:
    """If set back, its start seems to be later than its fault: it is left alone, with a true reason."""
    happened_at = NOW - 1.0
    started_at = happened_at - lived - jump
    decision = admission.decide(
        facts(runtime=runtime(started_at=started_at), cause=cause(happened_at=happened_at)), now=NOW
    )
    assert (decision.verb is Verb.ACT) is (started_at <= happened_at)
    assert decision.reason in (Reason.ADMITTED, Reason.ALREADY_REPLACED)


@pytest.mark.parametrize("jump", [-HOUR, HOUR])
def test_budget_time_is_rechecked_by_the_new_clock(jump: float) -> None:
    """Holds are decided again each time: no time from an earlier decision is kept."""
    past = history([5.0 * number for number in range(1, 11)], set_ago=0.0, jump=0.0)
    assert admission.decide(facts(history=past), now=NOW).verb is Verb.POSTPONE
    later = NOW + jump
    known = counts.History.of(past.node, target=builders.TARGET, device=None, now=later)
    again = admission.decide(
        replace(facts(history=known), runtime=runtime(started_at=later - 500), cause=cause(happened_at=later - 1)),
        now=later,
    )
    assert again.verb is Verb.ACT
