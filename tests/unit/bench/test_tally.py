"""Counts and printed figures."""

from bench.crash.judging import Violation, Wrong
from bench.crash.plans import Pace
from bench.crash.stages import Stage
from bench.crash.tally import Case, Recovery, Tally

PACES = {"never": Pace(acted=0.15, closed=1.0)}


def case(*wrong: Wrong, pod: str = "never") -> Case:
    violations = [Violation(each, pod, "why") for each in wrong]
    return Case(pod=pod, violations=violations, plan="run 1", found=["kill 1: never journalled"], timeline=[], log=[])


def tally(*cases: Case) -> Tally:
    made = Tally(runs=2, faults=3, cases=list(cases))
    made.killed([("never", Stage.JOURNALLED), ("pair", Stage.STARTED)])
    made.killed([("never", Stage.STARTED)], in_recovery=True)
    made.recoveries = [Recovery(1.0, plan="run 1", found=[]), Recovery(3.0, plan="run 2", found=["kill 1: …"])]
    return made


def test_kills_are_counted_by_stage() -> None:
    printed = tally().figures(paces=PACES)
    assert (printed["runs"], printed["kills"], printed["kills_in_recovery"]) == (2, 2, 1)
    assert printed["kills_by_step"]["journalled"] == 1
    assert printed["kills_by_step"]["successor_started"] == 2
    assert printed["kills_by_pod"]["pair"] == {"successor_started": 1}
    assert set(printed["kills_by_step"]) == {stage.value for stage in Stage}, "a step that was never hit shows as 0"


def test_the_slowest_recoveries_come_first() -> None:
    printed = tally().figures(paces=PACES)
    assert printed["recovery_ms"]["max"] == 3000.0
    assert [slow["plan"] for slow in printed["slowest"]] == ["run 2", "run 1"]


def test_nothing_wrong_is_all_zeros() -> None:
    made = tally()
    assert made.flawless
    assert all(made.figures(paces=PACES)[wrong.value] == 0 for wrong in Wrong)


def test_a_pod_counts_once_for_each_kind_of_trouble() -> None:
    made = tally(case(Wrong.POD_FAILED, Wrong.LOST, Wrong.LOST), case(Wrong.LOST, pod="pair"))
    printed = made.figures(paces=PACES)
    assert not made.flawless
    assert (printed["pods_failed"], printed["restarts_lost"], printed["duplicates"]) == (1, 2, 0)
    assert printed["cases"][0]["wrong"] == ["pods_failed: why", "restarts_lost: why", "restarts_lost: why"]


def test_a_bench_that_did_nothing_is_not_flawless() -> None:
    assert not Tally().flawless
