"""What a fault has cost is read from the trainer's own records, and each way to restart runs the same trainer."""

import asyncio
import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.steps import __main__ as program
from bench.steps import arms, gpu, records, recovery
from hack.devnode.node import DevNode

PLAN = arms.Plan(Path("/venv/bin/python"), layers=2, faults=1, every=5, spare_after="2s")
HANGING = dataclasses.replace(PLAN, fault=arms.Fault.HANG)
LOSING = dataclasses.replace(PLAN, fault=arms.Fault.LOST_NODE)
NOTICING = dataclasses.replace(PLAN, fault=arms.Fault.NOTICED_NODE)
DEV = cast("DevNode", SimpleNamespace(layout=SimpleNamespace(root=Path("/dev-node"))))
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
    assert found.second_step == pytest.approx(3.1)


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


def test_trainer_that_begins_without_a_fault_has_died_by_itself() -> None:
    again = "11000000000 interpreter 0\n"
    for text, deaths in (("", 0), (STARTED, 0), (STARTED + FAILED + RECOVERED, 0), (STARTED + again + again, 2)):
        assert recovery.deaths_without_fault(recovery.parse(text)) == deaths


@given(st.integers(min_value=0, max_value=len(STARTED + FAILED + RECOVERED + NEW_STEP)))
def test_records_that_are_being_written_have_no_half_line(length: int) -> None:
    text = STARTED + FAILED + RECOVERED + NEW_STEP
    whole = recovery.parse(text)
    read = recovery.parse(text[:length])
    assert read == whole[: len(read)]


def test_figures_are_medians_with_all_single_recoveries() -> None:
    lines = ["0 step 1"]
    for step, (at, restart) in enumerate([(10, 1), (20, 2), (30, 9)], start=1):
        lines += [f"{at} fault {step}", f"{at + restart} interpreter 0", f"{at + restart} load {step}"]
        lines += [f"{at + restart + 1} step {step + 1}"]
    text = "".join(f"{line.replace(' ', '000000000 ', 1)}\n" for line in lines)
    printed = recovery.figures(recovery.parse(text))
    assert (printed["first_step_s"], printed["new_step_s"], printed["steps_lost"]) == (3.0, 3.0, 0)
    assert (printed["stages_s"]["restart"], printed["stages_s"]["imports"]) == (2.0, 0.0)
    assert printed["each_new_step_s"] == [2.0, 3.0, 10.0]
    assert printed["total_s"] == 40.0, "from the first step to the last"
    assert "second_step_s" not in printed, "the first step was new, and the second is not awaited"
    printed = recovery.figures(recovery.parse(STARTED + FAILED + RECOVERED + NEW_STEP))
    assert (printed["second_step_s"], printed["each_second_step_s"]) == (3.1, [3.1])


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
    assert ("STEPS_TRIGGER" in names) == ("kubemend_run.py" in container["command"][-1]), "it waits for its spare"
    kept = made["metadata"].get("annotations", {}).get("kubemend.io/keep")
    assert kept == (arms.CACHE if arm.keeps else None)


@pytest.mark.parametrize("arm", arms.GANG_ARMS, ids=lambda arm: arm.name)
def test_each_way_runs_the_same_gang_with_its_own_restarter(arm: arms.GangArm) -> None:
    made = arms.gang(arm, PLAN, members=3, node=DEV, records=Path("/records"))
    assert ("managedBy" in made["spec"]) == arm.restarter.is_kubemend
    (workers,) = made["spec"]["replicatedJobs"]
    job = workers["template"]["spec"]
    assert (job["completions"], job["parallelism"], job["completionMode"]) == (3, 3, "Indexed")
    pod = job["template"]["spec"]
    container = next(each for each in pod["containers"] if each["name"] == "trainer")
    assert "/bench/steps/train.py" in container["command"][-1]
    assert "{" not in container["command"][-1]
    assert container["command"][-1].startswith("until") == (arm.restarter is arms.Restarter.LOOPS)
    assert ("kubemend_run.py" in container["command"][-1]) == arm.has_spares
    recreated = arm.restarter is arms.Restarter.UPSTREAM_RECREATE
    assert pod["restartPolicy"] == ("Never" if recreated else "OnFailure")
    environment = {each["name"]: each.get("value") for each in container["env"]}
    assert environment["STEPS_WORLD"] == "3"
    assert ("STEPS_TRIGGER" in environment) == arm.has_spares, "its faults wait for the spares"
    assert environment["JAX_COMPILATION_CACHE_DIR"].startswith(f"{arms.RECORDS}/"), "shared by all members"


@pytest.mark.parametrize("arm", arms.ARMS, ids=lambda arm: arm.name)
def test_hang_of_a_trainer_is_seen_by_its_heartbeat_or_a_probe_or_not_at_all(arm: arms.Arm) -> None:
    resource, made = arms.objects(arm, HANGING, node="node-1", records=Path("/records"))
    pod = made["spec"]["template"]["spec"] if resource == "jobs" else made["spec"]
    (container,) = pod["containers"]
    environment = {each["name"]: each["value"] for each in container["env"]}
    file = environment["STEPS_BEAT"]
    assert environment["STEPS_SURVIVES"] == "1"
    watched = made["metadata"].get("annotations", {}).get("kubemend.io/heartbeat-file") == file
    assert watched == ("kubemend.io/restart" in made["metadata"].get("annotations", {}))
    assert ("livenessProbe" in container) != watched
    assert bool(arm.not_possible(HANGING)) == (arm.name in ("process", "spare", "spare-prepared"))
    assert arm.not_possible(PLAN) == ""


@pytest.mark.parametrize("arm", arms.GANG_ARMS, ids=lambda arm: arm.name)
def test_hang_of_a_gang_is_seen_by_its_heartbeats_or_probes_except_with_loops(arm: arms.GangArm) -> None:
    made = arms.gang(arm, HANGING, members=3, node=DEV, records=Path("/records"))
    template = made["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]
    container = next(each for each in template["spec"]["containers"] if each["name"] == "trainer")
    ours, loops = arm.restarter.is_kubemend, arm.restarter is arms.Restarter.LOOPS
    assert ("kubemend.io/heartbeat-file" in template["metadata"]["annotations"]) == ours
    assert ("livenessProbe" in container) == (not ours and not loops)
    assert bool(arm.not_possible(HANGING)) == loops


@pytest.mark.parametrize("plan", [LOSING, NOTICING], ids=lambda plan: plan.fault.value)
def test_gang_that_loses_a_node_has_no_faults_of_its_own_and_is_spread_over_nodes(plan: arms.Plan) -> None:
    arm = next(each for each in arms.GANG_ARMS if not each.not_possible(plan))
    made = arms.gang(arm, plan, members=3, node=DEV, records=Path("/records"))
    pod = made["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    environment = {each["name"]: each.get("value") for each in pod["containers"][0]["env"]}
    assert environment["STEPS_FAULTS"] == "0"
    assert pod["hostNetwork"] is True
    (spread,) = pod["topologySpreadConstraints"]
    assert spread["labelSelector"] == {"matchLabels": {"jobset.sigs.k8s.io/jobset-name": arm.name}}


def test_faults_are_named_for_people() -> None:
    survives = next(arm for arm in arms.ARMS if arm.survives)
    assert (survives.fault(PLAN), survives.fault(HANGING)) == ("Xid 31", "hang")
    assert (arms.ARMS[0].fault(PLAN), arms.GANG_ARMS[0].fault(LOSING)) == ("exit", "lost-node")


def test_file_of_figures_keeps_the_runs_of_other_faults() -> None:
    known = program.with_run({}, {"machine": "one core", "ways": "ended"}, fault=arms.Fault.EXIT)
    known = program.with_run(known, {"ways": "hung"}, fault=arms.Fault.HANG)
    known = program.with_run(known, {"gang": "lost"}, fault=arms.Fault.LOST_NODE)
    known = program.with_run(known, {"machine": "one core", "ways": "ended again"}, fault=arms.Fault.EXIT)
    own = {"machine": "one core", "ways": "ended again"}
    others = {"hang": {"ways": "hung"}, "lost-node": {"gang": "lost"}}
    assert known == {**own, **others}
    known = program.with_run(known, {"machine": "two cores", "gang": {"ways": "gangs"}}, fault=arms.Fault.EXIT)
    gang = {"gang": {"ways": "gangs", "machine": "two cores"}}
    assert known == {**own, **others, **gang}, "gangs leave the trainers that are alone as they are"
    known = program.with_run(known, {"machine": "four cores", "ways": "ended fast"}, fault=arms.Fault.EXIT)
    assert known == {"machine": "four cores", "ways": "ended fast", **others, **gang}, "and the other way round"


def test_gangs_of_a_run_with_both_keep_its_machine() -> None:
    both = {"machine": "one core", "ways": "ended", "gang": {"ways": "gangs"}}
    known = program.with_run(both, {"machine": "two cores", "ways": "ended again"}, fault=arms.Fault.EXIT)
    assert known["gang"] == {"ways": "gangs", "machine": "one core"}


@pytest.mark.parametrize("way", gpu.WAYS, ids=lambda way: way.name)
def test_each_way_on_a_gpu_runs_the_same_trainer_with_the_cache_of_an_earlier_way(way: gpu.Way) -> None:
    arm, plan = way.of(gpu.plan(Path("/venv/bin/python"), {"LAYERS": 2, "WIDTH": 128}, faults=2, every=25))
    resource, pod = arms.objects(arm, plan, node="node-1", records=Path("/records"))
    (container,) = pod["spec"]["containers"]
    assert (resource, pod["metadata"]["name"]) == ("pods", way.name)
    assert container["resources"]["limits"] == {"nvidia.com/gpu": 1}
    environment = {each["name"]: each["value"] for each in container["env"]}
    assert (environment["STEPS_LAYERS"], environment["STEPS_WIDTH"]) == ("2", "128")
    assert ("STEPS_COMPILED" in environment) == way.compiled
    assert environment["STEPS_FAULTS"] == str(min(2, way.most_faults))
    assert ("TORCHINDUCTOR_CACHE_DIR" in environment) == arm.own_cache
    command = container["command"][-1]
    assert command.index("/records/seed/TORCHINDUCTOR_CACHE_DIR") < command.index("/bench/steps/train_torch.py")


def test_ways_on_a_gpu_have_names_of_their_own() -> None:
    assert len({way.name for way in gpu.WAYS}) == len(gpu.WAYS)


async def test_records_are_returned_after_the_last_recovery(tmp_path: Path) -> None:
    file = tmp_path / "0.records"
    waiting = asyncio.create_task(records.with_recoveries(file, count=1, what="process"))
    file.write_text(STARTED + FAILED + RECOVERED)
    assert await asyncio.wait({waiting}, timeout=0.5) == (set(), {waiting}), "no step that is new yet"
    file.write_text(STARTED + FAILED + RECOVERED + NEW_STEP)
    assert recovery.recoveries(await waiting)


async def test_trainer_that_does_not_recover_is_reported_with_its_last_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "_RECOVERY_SECONDS", 0.0)
    file = tmp_path / "0.records"
    file.write_text(STARTED + FAILED)
    with pytest.raises(TimeoutError, match=r"process: no recovery 1; its last records: .*fault"):
        await records.with_recoveries(file, count=1, what="process")


async def test_fault_of_a_dead_trainer_is_recorded_after_its_last_step(tmp_path: Path) -> None:
    file = tmp_path / "3.records"
    waiting = asyncio.create_task(records.until_step(file, 14, what="gang"))
    file.write_text(STARTED)
    assert await asyncio.wait({waiting}, timeout=0.5) == (set(), {waiting})
    file.write_text(STARTED + "9000000000 step 14\n")
    await waiting
    records.add_fault(file, at=8500000000)
    assert records.read(file)[-1] == recovery.Record(8.5, "fault", 14)


def test_figures_of_several_trainers_are_those_of_all_recoveries() -> None:
    runs = [recovery.parse(f"0 step 1\n{at}000000000 fault 1\n{at + 2}000000000 step 2\n") for at in (10, 20)]
    printed = recovery.figures(*runs)
    assert (printed["each_first_step_s"], printed["total_s"]) == ([2.0, 2.0], 12.0 + 22.0)
