"""What a fault has cost is read from the trainer's own records, and each way to restart runs the same trainer."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.steps import arms, recovery

PLAN = arms.Plan(Path("/venv/bin/python"), layers=2, faults=1, every=5, spare_after="2s")
STARTED = "0 interpreter 0\n"
FAILED = "10000000000 step 14\n10000000000 fault 14\n"
RECOVERED = (
    "10200000000 interpreter 0\n11200000000 imports 0\n11300000000 device 0\n11500000000 build 0\n"
    "12500000000 compile 0\n12600000000 load 10\n13000000000 step 11\n13100000000 step 12\n13200000000 step 13\n"
    "13300000000 step 14\n"
)
NEW_STEP = "13400000000 step 15\n"


def test_recovery_is_split_in_its_stages_up_to_the_first_step() -> None:
    (found,) = recovery.recoveries(recovery.parse(STARTED + FAILED + RECOVERED + NEW_STEP))
    assert {stage: round(seconds, 3) for stage, seconds in found.stages.items()} == {
        "restart": 0.2,
        "imports": 1.0,
        "device": 0.1,
        "build": 0.2,
        "compile": 1.0,
        "load": 0.1,
        "step": 0.4,
    }
    assert (round(found.first_step, 3), round(found.new_step, 3), found.lost) == (3.0, 3.4, 4)


def test_recovery_is_not_over_before_a_step_that_is_new() -> None:
    assert recovery.recoveries(recovery.parse(STARTED + FAILED + RECOVERED)) == []


def test_recovery_without_a_checkpoint_has_lost_all_steps() -> None:
    again = "11000000000 load 0\n" + "".join(f"{11 + step}000000000 step {step}\n" for step in range(1, 16))
    (found,) = recovery.recoveries(recovery.parse(FAILED + again))
    assert (found.lost, found.first_step, found.new_step) == (14, 2.0, 16.0)


def test_second_trainer_that_fails_before_a_step_counts_for_the_first_fault() -> None:
    died = "10100000000 interpreter 0\n"
    (found,) = recovery.recoveries(recovery.parse(FAILED + died + RECOVERED + NEW_STEP))
    assert (round(found.first_step, 3), round(found.new_step, 3)) == (3.0, 3.4)


@given(st.integers(min_value=0, max_value=len(STARTED + FAILED + RECOVERED + NEW_STEP)))
def test_records_that_are_being_written_have_no_half_line(length: int) -> None:
    text = STARTED + FAILED + RECOVERED + NEW_STEP
    whole = recovery.parse(text)
    read = recovery.parse(text[:length])
    assert read == whole[: len(read)]


def test_figures_are_medians_with_all_single_recoveries() -> None:
    found = [recovery.Recovery({"restart": seconds, "step": 1.0}, seconds + 3, lost=4) for seconds in (1.0, 2.0, 9.0)]
    told = recovery.figures(found)
    assert (told["first_step_s"], told["new_step_s"], told["steps_lost"]) == (3.0, 5.0, 4)
    assert (told["stages_s"]["restart"], told["stages_s"]["imports"]) == (2.0, 0.0)
    assert told["each_new_step_s"] == [4.0, 5.0, 12.0]


@pytest.mark.parametrize("arm", arms.ARMS, ids=lambda arm: arm.name)
def test_each_way_runs_the_same_trainer_with_its_own_restart_policy(arm: arms.Arm) -> None:
    resource, made = arms.objects(arm, PLAN, node="node-1", records=Path("/records"))
    pod = made["spec"]["template"]["spec"] if resource == "jobs" else made["spec"]
    (container,) = pod["containers"]
    assert "/bench/steps/train.py" in container["command"][-1]
    assert "{" not in container["command"][-1]
    assert pod["restartPolicy"] == ("Never" if arm.by_job else "OnFailure")
    names = {each["name"] for each in container["env"]}
    assert ("JAX_COMPILATION_CACHE_DIR" in names) == arm.own_cache
