"""The benchmark that runs in a pod measures a trainer under a loop and under the launcher."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from bench.steps import pod
from launcher import kubemend_run

ROOT = Path(__file__).parents[3]
TRAIN = """
import json, os, time
where = os.environ["STEPS_RECORDS"]
def record(stage, step=0):
    with open(f"{where}/0.records", "a") as file:
        file.write(f"{time.monotonic_ns()} {stage} {step}\\n")
record("interpreter")
import decimal
record("imports")
with open(f"{where}/about.json", "w") as file:
    json.dump({"device": "none"}, file)
faults = sum(" fault " in line for line in open(f"{where}/0.records"))
begin = step = int(open(f"{where}/saved").read()) if os.path.exists(f"{where}/saved") else 0
record("load", step)
while True:
    time.sleep(0.01)
    step += 1
    record("step", step)
    may = not os.environ.get("STEPS_TRIGGER") or os.path.exists(f"{where}/fail-{faults}")
    if faults < int(os.environ["STEPS_FAULTS"]) and step >= begin + int(os.environ["STEPS_FAULT_EVERY"]) and may:
        record("fault", step)
        os._exit(1)
    if step % 5 == 0:
        open(f"{where}/saved", "w").write(str(step))
"""


def plan(folder: Path, program: str) -> pod.Plan:
    train = folder / "train.py"
    train.write_text(program)
    return pod.Plan(train, Path(kubemend_run.__file__), folder / "run", faults=2, every=3, spare_after="300ms")


async def test_both_ways_recover_and_nothing_is_left(tmp_path: Path) -> None:
    report = await pod.measure(plan(tmp_path, TRAIN))
    assert list(report["ways"]) == ["process", "spare"]
    assert report["trainer"] == {"device": "none"}
    for figures in report["ways"].values():
        assert len(figures["each_first_step_s"]) == 2
        assert figures["stages_s"]["step"] > 0
    assert report["ways"]["spare"]["had_spare"] == [True, True]
    assert list((tmp_path / "run").iterdir()) == []


@pytest.mark.parametrize("code", [0, 1])
async def test_a_trainer_that_ends_by_itself_is_an_error(tmp_path: Path, code: int) -> None:
    begins = 'import os\nopen(os.environ["STEPS_RECORDS"] + "/0.records", "a").write("1 interpreter 0\\n")\n'
    with pytest.raises(ExceptionGroup) as found:
        await pod.measure(plan(tmp_path, f"{begins}os._exit({code})"))
    assert "ended with exit code 0" in repr(found.value) if code == 0 else "ends by itself" in repr(found.value)


def test_the_example_has_all_files_that_the_program_needs(tmp_path: Path) -> None:
    """In the layout of its ConfigMap, with no other file of the repository."""
    example = yaml.safe_load((ROOT / "examples" / "bench" / "steps.yaml").read_text())
    (program,) = (each for each in example["spec"]["volumes"] if "configMap" in each)
    for item in program["configMap"]["items"]:
        source = next(each for each in ("bench/steps", "launcher") if (ROOT / each / item["key"]).exists())
        assert f"{source}/{item['key']}" == item["path"]
        path = tmp_path / item["path"]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes((ROOT / source / item["key"]).read_bytes())
    (container,) = example["spec"]["containers"]
    command = [sys.executable, "-P", *container["command"][1:], "--faults", "1"]
    environ = {each["name"]: each["value"] for each in container["env"]}
    environ |= {"PYTHONPATH": str(tmp_path), "PATH": os.environ["PATH"]}
    mounts = {each["name"]: each["mountPath"] for each in container["volumeMounts"]}
    given = next(each["value"] for each in container["env"] if each["name"] == "PYTHONPATH")
    assert given == mounts[program["name"]]
    fake = tmp_path / "train.py"
    fake.write_text(TRAIN)
    command = [str(tmp_path / "run") if each.startswith(mounts["records"]) else each for each in command]
    command += ["--every", "3", "--spare-after", "300ms", "--train", str(fake)]
    done = subprocess.run(command, env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    assert '"had_spare"' in done.stdout
