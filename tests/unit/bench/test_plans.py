"""Kills are drawn at random, reproducible from the seed."""

import random
from collections import Counter

from bench.crash import plans, subjects
from kubemend.agent.clients.cri.events import EventKind

MANY = 400


def drawn(seed: int) -> list[plans.Plan]:
    return list(plans.draw(subjects.ALL, count=MANY, seed=seed))


def test_seed_gives_the_same_plans_again() -> None:
    first = drawn(7)
    random.random()
    assert first == drawn(7)
    assert first != drawn(8)


def test_every_subject_has_its_turn_equally_often() -> None:
    turns = Counter(plan.faults[0].subject.name for plan in drawn(1))
    assert turns.keys() == {subject.name for subject in subjects.ALL}
    assert max(turns.values()) - min(turns.values()) <= 1


def test_plan_hits_no_pod_twice_and_has_several_faults() -> None:
    made = drawn(2)
    for plan in made:
        names = [fault.subject.name for fault in plan.faults]
        assert len(names) == len(set(names))
        assert all(fault.container in fault.subject.mains for fault in plan.faults)
    assert sum(len(plan.faults) for plan in made) > len(made)


def test_all_kinds_of_moments_are_drawn() -> None:
    made = drawn(3)
    assert {plan.event for plan in made} == {None, *EventKind}
    assert {plan.whole for plan in made} == {True, False}
    assert any(plan.again is not None for plan in made)
    assert {plan.away > 1.0 for plan in made} == {True, False}, "kubelet must relist without an agent, but not always"
    assert any(plan.moment > 1.0 for plan in made), "also after the usual end"
    assert all(plan.moment >= 0.0 for plan in made)


def test_one_subject_alone_can_be_drawn() -> None:
    alone = subjects.ALL[:1]
    assert {plan.faults[0].subject for plan in plans.draw(alone, count=5, seed=1)} == set(alone)
