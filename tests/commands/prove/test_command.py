"""The whole command on fakes of the CUDA driver and NVML: each kind of answer has its verdict."""

import json
from pathlib import Path
from typing import Any

import pytest

from hack.fakecuda.control import MIB, Wrong
from hack.fakenvml.control import MigSpec, gpu_uuid
from kubemend.agent.health.catalog import catalog_file
from kubemend.agent.prove import proving, rendering
from kubemend.agent.prove.report import PairRow, Report
from kubemend.agent.prove.verdicts import Outcome, Reason, Verdict
from tests.unit.prove.conftest import GPUS, Machine

PASSED, FAILED, UNPROVEN = 0, 2, 3
RIGHT = ("Passed", "")
WITHOUT_ACCESS = (("GPU 2", "GPU 0"), ("GPU 2", "GPU 1"), ("GPU 0", "GPU 2"), ("GPU 1", "GPU 2"))


def of_gpus(report: dict[str, Any]) -> list[tuple[str, str]]:
    return [(row["outcome"], row["reason"]) for row in report["gpus"]]


def test_gpus_that_work_pass_alone_and_between_each_other(machine: Machine) -> None:
    report = machine.proof()

    assert report["exit_code"] == PASSED, report
    assert of_gpus(report) == [RIGHT] * GPUS
    assert [(row["source"], row["target"], row["outcome"]) for row in report["pairs"]] == [
        ("GPU 1", "GPU 0", "Passed"),
        ("GPU 0", "GPU 1", "Passed"),
    ]


def test_each_wrong_bit_fails_its_own_gpu(large_machine: Machine) -> None:
    expected = {
        Wrong.TENSOR: ("Failed", "WrongResult", "tensor-product"),
        Wrong.MEMORY: ("Failed", "WrongMemory", "memory"),
        Wrong.INTEGER: ("Failed", "WrongResult", "integer-product"),
        Wrong.FLOAT: ("Failed", "WrongResult", "float-product"),
        Wrong.FLOAT_ALWAYS: ("Failed", "WrongResult", "float-product"),
        Wrong.TO_DEVICE: ("Failed", "WrongCopy", "host-to-device"),
        Wrong.TO_HOST: ("Failed", "WrongCopy", "device-to-host"),
        Wrong.IDLE: ("Failed", "WrongResult", "integer-product"),
    }
    for number, wrong in enumerate(expected):
        large_machine.cuda.wrong(wrong, gpu=number)

    report = large_machine.proof()

    assert report["exit_code"] == FAILED
    found = [(row["outcome"], row["reason"], row["evidence"].get("test")) for row in report["gpus"]]
    assert dict(zip(expected, found, strict=True)) == expected
    for wrong, row in zip(expected, report["gpus"], strict=True):
        if wrong is not Wrong.IDLE:
            evidence = row["evidence"]
            assert (int(evidence["expected"], 16) ^ int(evidence["got"], 16)).bit_count() == 1, row
            assert evidence["offset"] >= 0


def test_wrong_copy_between_gpus_fails_the_pair(large_machine: Machine) -> None:
    large_machine.cuda.wrong(Wrong.FROM_PEER, gpu=1)
    with large_machine.cuda.gpu(2) as gpu:
        gpu.peers = 0

    report = large_machine.proof("--gpu=0", "--gpu=1", "--gpu=2")

    assert report["exit_code"] == FAILED
    assert of_gpus(report) == [RIGHT] * 3
    assert [(row["source"], row["target"], row["outcome"], row["reason"]) for row in report["pairs"]] == [
        ("GPU 1", "GPU 0", "Failed", "WrongCopy"),
        ("GPU 0", "GPU 1", "Passed", ""),
        *((source, target, "Skipped", "NoPeerAccess") for source, target in WITHOUT_ACCESS),
    ]
    assert report["unseen"] == []


def test_gpus_without_access_to_each_other_are_named_and_no_failure(machine: Machine) -> None:
    with machine.cuda.gpu(0) as gpu:
        gpu.peers = 0

    report = machine.proof()

    assert report["exit_code"] == PASSED
    assert of_gpus(report) == [RIGHT] * GPUS
    assert [(row["outcome"], row["reason"]) for row in report["pairs"]] == [("Skipped", "NoPeerAccess")] * 2


def test_pairs_without_access_are_one_line() -> None:
    """Of eight GPUs these can be 56."""
    skipped = Verdict(Outcome.SKIPPED, Reason.NO_PEER_ACCESS, "none")
    pairs = tuple(PairRow(f"GPU {one}", f"GPU {two}", skipped) for one in range(3) for two in range(3) if one != two)

    lines = rendering.text(Report(pairs=pairs), colour=False).splitlines()

    assert lines[0] == (
        "Skipped  GPU 0 to GPU 1, GPU 0 to GPU 2, GPU 1 to GPU 0, GPU 1 to GPU 2 and 2 more: NoPeerAccess: none"
    )
    assert len(lines) == 2


def test_slow_memory_fails_and_half_the_rate_does_not(machine: Machine) -> None:
    machine.cuda.slow(200, gpu=0)
    machine.cuda.slow(2, gpu=1)

    report = machine.proof()

    assert of_gpus(report) == [("Failed", "SlowMemory"), RIGHT]
    assert report["gpus"][0]["evidence"]["gigabytes_per_second"] == pytest.approx(0.512, rel=0.01)


def test_gpu_that_never_answers_or_ends_its_process_delays_no_other(large_machine: Machine) -> None:
    expected = {
        "cuInit": ("Unknown", "DidNotAnswer"),
        "cuDevicePrimaryCtxRetain": ("Failed", "DidNotAnswer"),
        "cuEventSynchronize": ("Failed", "DidNotAnswer"),
    }
    for number, function in enumerate(expected):
        large_machine.cuda.hang(function, gpu=number)
    large_machine.cuda.wrong(Wrong.END, gpu=3)

    report = large_machine.proof(*(f"--gpu={number}" for number in range(5)), timeout="40s")

    assert of_gpus(report) == [*expected.values(), ("Unknown", "Incomplete"), RIGHT]
    assert "its process ended with status 3" in report["gpus"][3]["message"]
    assert [row["evidence"]["call"] for row in report["gpus"][:3]] == list(expected)


def test_cuda_error_is_shown_by_code_and_name(large_machine: Machine) -> None:
    expected = {
        ("cuLaunchKernel", 719): ("Failed", "CudaError"),
        ("cuMemcpyDtoH_v2", 214): ("Failed", "CudaError"),
        ("cuModuleLoadData", 222): ("Unknown", "CudaError"),
        ("cuInit", 999): ("Unknown", "CudaError"),
        ("cuInit", 100): ("Unknown", "NotVisible"),
        ("cuDevicePrimaryCtxRetain", 46): ("Skipped", "InUse"),
        ("cuMemAlloc_v2", 2): ("Skipped", "TooLittleMemory"),
    }
    for number, (function, code) in enumerate(expected):
        large_machine.cuda.error(function, code, gpu=number)

    report = large_machine.proof()

    assert of_gpus(report) == [*expected.values(), RIGHT]
    shown = [row["evidence"] for row in report["gpus"][: len(expected)]]
    assert [(each["call"], each["code"]) for each in shown] == list(expected)
    assert all(each["name"] for each in shown)


def test_gpu_that_is_not_idle_or_not_whole_is_skipped(large_machine: Machine) -> None:
    nvml, cuda = large_machine.nvml, large_machine.cuda
    nvml.processes({4711: 1 << 30}, gpu=0)
    nvml.mig(MigSpec(gpu_instance=1), gpu=1)
    for number, mode in ((2, 2), (3, 3)):
        with cuda.gpu(number) as gpu:
            gpu.compute_mode = mode
    with cuda.gpu(4) as gpu:
        gpu.memory_used = gpu.memory_total - MIB
    with cuda.gpu(5) as gpu:
        gpu.present = 0

    report = large_machine.proof()

    assert report["exit_code"] == UNPROVEN
    assert of_gpus(report) == [
        ("Skipped", "InUse"),
        ("Skipped", "Mig"),
        ("Skipped", "ComputeMode"),
        ("Skipped", "ComputeMode"),
        ("Skipped", "TooLittleMemory"),
        ("Unknown", "NotVisible"),
        RIGHT,
        RIGHT,
    ]
    assert report["gpus"][0]["evidence"]["pids"] == [4711]


def test_machine_with_mps_is_skipped(machine: Machine) -> None:
    machine.mps_pipes.mkdir()
    (machine.mps_pipes / "control").touch()

    assert of_gpus(machine.proof()) == [("Skipped", "Mps")] * GPUS


@pytest.mark.parametrize("namespace", ["container's", "unreadable"])
async def test_nothing_runs_where_processes_of_others_may_be_hidden(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, namespace: str
) -> None:
    for name, value in machine.env().items():
        monkeypatch.setenv(name, value)
    link = tmp_path / "pid-namespace"
    if namespace != "unreadable":
        link.touch()
    here = proving.Machine(sysfs=Path("/sys"), mps_pipes=machine.mps_pipes, pid_namespace=link)

    report = await proving.prove(here, catalog=catalog_file.builtin(), timeout=120.0)

    verdicts = [(row.verdict.outcome, row.verdict.reason) for row in report.gpus]
    assert verdicts == [(Outcome.UNKNOWN, Reason.NVML_UNCLEAR)] * GPUS
    assert report.exit_code == UNPROVEN


def test_machine_without_libcuda_is_skipped(machine: Machine, tmp_path: Path) -> None:
    only_nvml = tmp_path / "lib"
    only_nvml.mkdir()
    (only_nvml / "libnvidia-ml.so.1").symlink_to(machine.nvml.lib_dir / "libnvidia-ml.so.1")

    done = machine.run("kubemend.agent.cli", "prove", "--json", LD_LIBRARY_PATH=str(only_nvml))

    assert done.returncode == UNPROVEN, done.stderr
    assert of_gpus(json.loads(done.stdout)) == [("Skipped", "NoCuda")] * GPUS


@pytest.mark.parametrize("name", ["1", gpu_uuid(1), "0000:1d:00.0"])
def test_one_gpu_is_proven_by_any_name(machine: Machine, name: str) -> None:
    report = machine.proof(f"--gpu={name}")

    assert [row["label"] for row in report["gpus"]] == ["GPU 1"]
    assert report["exit_code"] == PASSED


def test_gpu_that_does_not_exist_is_not_proven(machine: Machine) -> None:
    done = machine.prove("--gpu=9")

    assert done.returncode == UNPROVEN
    assert "9: NVML shows no such GPU" in done.stdout


def test_wrong_usage_is_no_broken_gpu(machine: Machine) -> None:
    assert machine.prove("--no-such-flag").returncode == UNPROVEN
    assert machine.prove(timeout="0s").returncode == UNPROVEN


def test_table_shows_failures_and_the_total(machine: Machine) -> None:
    machine.cuda.wrong(Wrong.MEMORY, gpu=0)

    done = machine.prove()

    assert done.returncode == FAILED
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["DEVICE", "NAME", "PCI", "PROOF", "REASON", "MESSAGE"]
    assert "Failed" in lines[1]
    assert "WrongMemory" in lines[1]
    assert "in place of 0x" in lines[1]
    assert lines[-1] == "2 GPUs: 1 passed, 1 failed"


def test_scan_with_active_adds_the_proof_and_its_exit_code(machine: Machine, tmp_path: Path) -> None:
    machine.cuda.wrong(Wrong.MEMORY, gpu=1)
    (tmp_path / "kmsg").touch()
    (tmp_path / "sys" / "bus" / "pci" / "devices").mkdir(parents=True)
    where = (f"--kernel-log={tmp_path / 'kmsg'}", f"--sysfs={tmp_path / 'sys'}", "--timeout=120s")

    as_object = machine.run("kubemend.agent.cli", "scan", "--active", "--json", *where)
    as_text = machine.run("kubemend.agent.cli", "scan", "--active", *where)

    assert (as_object.returncode, as_text.returncode) == (FAILED, FAILED), as_object.stderr
    report = json.loads(as_object.stdout)
    assert of_gpus(report["proof"]) == [RIGHT, ("Failed", "WrongMemory")]
    assert report["devices"]
    assert "WrongMemory" in as_text.stdout


def test_scan_does_not_prove_what_only_the_agent_knows(machine: Machine) -> None:
    done = machine.run("kubemend.agent.cli", "scan", "--active", "--agent")

    assert done.returncode == UNPROVEN
    assert "--active" in done.stderr


def _many(machine: Machine, runs: int) -> tuple[int, int]:
    """Return how many of ``runs`` small proofs passed and failed."""
    with machine.cuda.gpu(0) as gpu:
        gpu.memory_total = MIB // 4
    done = machine.run("bench.proofs", "--driver=real", f"--runs={runs}", patience=600.0)
    assert done.stdout, done.stderr
    figures = json.loads(done.stdout)
    return figures["passed"], figures["falseAlarms"]


def test_right_answers_give_no_false_alarm(machine: Machine) -> None:
    assert _many(machine, 100) == (100, 0)


def test_wrong_answers_never_pass(machine: Machine) -> None:
    machine.cuda.wrong(Wrong.FLOAT_ALWAYS, gpu=0)

    assert _many(machine, 20) == (0, 20)


@pytest.mark.long
def test_ten_thousand_right_answers_give_no_false_alarm(machine: Machine) -> None:
    assert _many(machine, 10_000) == (10_000, 0)
