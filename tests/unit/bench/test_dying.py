"""The judge of trainers that die by themselves, and the moments at which they do."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from bench import dying
from bench.crash.judging import Life, Now
from bench.crash.subjects import Subject
from bench.dying import Wrong

SUBJECT = Subject("always", policy="Always", dies=True)
OLD = Life("trainer", created=90.0, began=90.0, ended=100.2)
NEW = Life("trainer", created=100.25, began=100.3, ours=True)


def now(*, count: int = 0, phases: Sequence[str] = ("Running",), lives: Sequence[Life] = (OLD,)) -> Now:
    return Now(
        subject=SUBJECT,
        phases=phases,
        running={},
        shown={},
        restart_counts={"trainer": count, "shipper": 0},
        lives=lives,
    )


def outcome(
    *lives: Life,
    count: int = 1,
    phases: Sequence[str] = ("Running",),
    waited: Sequence[str] = (),
    left: str = "",
    policy: str = "Always",
    died: bool = True,
) -> dying.Outcome:
    return dying.Outcome(
        plan=dying.Plan(1, replace(SUBJECT, policy=policy), exits_after=0.1),
        line_at=100.0,
        before=now(),
        after=now(count=count, phases=phases, lives=(OLD, *lives)),
        lives=(OLD, *lives),
        waited=waited,
        died=died,
        left=[left] if left else [],
    )


def test_one_successor_of_the_agent_is_right() -> None:
    seen = outcome(NEW)
    assert dying.judge(seen) == frozenset()
    assert seen.took == pytest.approx(0.3)


def test_reserved_name_is_no_successor() -> None:
    assert dying.judge(outcome(Life("trainer", created=100.22), NEW)) == frozenset()


@pytest.mark.parametrize(
    ("seen", "wrong"),
    [
        (outcome(NEW, phases=("Running", "Failed")), {Wrong.FAILED}),
        (outcome(count=0), {Wrong.LOST}),
        (outcome(NEW, count=2), {Wrong.COUNT}),
        (outcome(Life("trainer", created=100.25, began=100.3)), {Wrong.BY_KUBELET}),
        (outcome(NEW, waited=["CrashLoopBackOff"]), {Wrong.CRASH_LOOP}),
        (outcome(NEW, left="kubelet_disagrees: kubelet shows none"), {Wrong.UNSETTLED}),
        (
            outcome(Life("trainer", created=100.26, began=100.29, ended=100.4), NEW),
            {Wrong.TWO_RAN},
        ),
    ],
)
def test_each_violation_is_found(seen: dying.Outcome, wrong: set[Wrong]) -> None:
    assert dying.judge(seen) == wrong


ADOPTED = Life("trainer", created=100.25, began=100.3)


@pytest.mark.parametrize(
    ("seen", "beyond"),
    [
        (outcome(ADOPTED), {Wrong.CRASH_LOOP, Wrong.BY_KUBELET}),
        (outcome(NEW), {Wrong.CRASH_LOOP}),
        (outcome(Life("trainer", created=100.22, ours=True), ADOPTED), {Wrong.CRASH_LOOP}),
        (outcome(policy="Never"), {Wrong.CRASH_LOOP, Wrong.FAILED, Wrong.LOST}),
        (outcome(Life("trainer", created=100.1, began=100.15, ours=True), policy="Never"), set()),
        (outcome(policy="Never", died=False), set()),
    ],
)
def test_only_what_kubelet_did_before_a_successor_existed_is_beyond_reach(
    seen: dying.Outcome, beyond: set[Wrong]
) -> None:
    assert seen.beyond_reach == beyond


def test_tally_separates_cases_that_no_agent_can_prevent() -> None:
    tally = dying.Tally()
    tally.add(outcome(ADOPTED), evidence=())
    assert tally.flawless
    assert tally.figures()["beyond_reach"] == {"successor_by_kubelet": 1}
    tally.add(outcome(ADOPTED, count=2), evidence=["what was seen"])
    assert not tally.flawless
    assert (tally.figures()["restart_count_wrong"], tally.figures()["runs"]) == (1, 2)
    assert tally.figures()["cases"][-1]["evidence"] == ["what was seen"]


def test_moments_repeat_with_their_seed_and_every_pod_has_its_turn() -> None:
    plans = list(dying.draw(dying.SUBJECTS, count=12, seed=3))
    assert plans == list(dying.draw(dying.SUBJECTS, count=12, seed=3))
    assert {plan.subject for plan in plans[:6]} == {plan.subject for plan in plans[6:]} == set(dying.SUBJECTS)
    assert all(-0.05 <= plan.exits_after <= 0.4 for plan in plans)
