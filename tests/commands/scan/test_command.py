"""The whole command on a machine: its table, its exit code, and its handling of missing parts."""

import json
import os
import subprocess
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from hack.fakenvml.control import gpu_uuid, kernel_address
from hack.fakenvml.layout import Driver, Fault, Group
from kubemend.agent import cli
from kubemend.agent.control import client
from kubemend.agent.control import devices as control_devices
from kubemend.agent.prove import proving
from kubemend.agent.scan import checks
from tests.commands.scan.conftest import Machine
from tests.fakes.sysfs_tree import DOWN, FakePort

HEALTHY, DEGRADED, UNHEALTHY, UNKNOWN = 0, 1, 2, 3
ERROR_UNKNOWN = 999  # NVML_ERROR_UNKNOWN


def rows(scanned: subprocess.CompletedProcess[str]) -> dict[str, dict[str, Any]]:
    """Return the devices of a report in JSON by their labels."""
    return {device["label"]: device for device in json.loads(scanned.stdout)["devices"]}


def test_healthy_devices_are_a_table_with_exit_code_0(machine: Machine) -> None:
    machine.bus.function("0000:3b:00.0")
    machine.bus.rdma("0000:3b:00.0", "mlx5_0", FakePort())
    machine.log.write("nvidia 0000:10:00.0: enabling device")

    scanned = machine.scan()

    assert (scanned.returncode, scanned.stderr) == (HEALTHY, "")
    header, *table, empty, total = scanned.stdout.splitlines()
    assert header.split() == ["DEVICE", "NAME", "PCI", "VERDICT", "ACTION", "REASON", "SINCE", "MESSAGE"]
    assert [line.split()[:2] for line in table[:8]] == [["GPU", str(number)] for number in range(8)]
    assert table[8].split()[:5] == ["mlx5_0", "mlx5_core", "15b3:1021", "0000:3b:00.0", "Healthy"]
    assert (empty, total) == ("", "9 devices: 9 healthy")
    assert "\x1b" not in scanned.stdout, "no colours outside a terminal"


def test_xid_79_in_log_makes_only_its_gpu_unhealthy(machine: Machine) -> None:
    machine.log.write_xid(79, pci=kernel_address(3), text="GPU has fallen off the bus.")

    scanned = machine.scan("--json")

    assert scanned.returncode == UNHEALTHY
    found = rows(scanned)
    assert {label for label, row in found.items() if row["health"] != "Healthy"} == {"GPU 3"}
    assert (found["GPU 3"]["device"], found["GPU 3"]["reason"]) == (gpu_uuid(3), "Xid79")
    assert found["GPU 3"]["since"] > 0
    assert json.loads(scanned.stdout)["health"] == "Unhealthy"


def test_current_nvml_state_counts(machine: Machine) -> None:
    machine.nvml.remapped_rows(gpu=2, uncorrectable=1, pending=True)

    scanned = machine.scan("--json")

    assert scanned.returncode != HEALTHY
    assert {label for label, row in rows(scanned).items() if row["health"] != "Healthy"} == {"GPU 2"}


@pytest.mark.parametrize("state", [1, 2], ids=["not started", "in progress"])  # NVML_GPU_FABRIC_STATE_*
def test_gpu_that_the_fabric_manager_has_not_initialized_is_not_healthy(machine: Machine, state: int) -> None:
    """CUDA does not start on it. A fabric manager of another version than the driver's never initializes any."""
    machine.nvml.set(gpu=2, fabric_state=state)

    scanned = machine.scan("--json")

    assert scanned.returncode == UNHEALTHY
    assert {label: row["reason"] for label, row in rows(scanned).items() if row["health"] != "Healthy"} == {
        "GPU 2": "FabricFailed"
    }


@pytest.mark.parametrize("fault", [Fault.UNKNOWN, Fault.RESET_REQUIRED, Fault.LOST])
def test_unidentified_gpu_is_reported_and_hides_no_other(machine: Machine, fault: Fault) -> None:
    machine.nvml.fault(fault, gpu=1)

    scanned = machine.scan("--json")

    assert scanned.returncode != HEALTHY
    assert rows(scanned).keys() >= {f"GPU {number}" for number in range(8) if number != 1}
    assert "GPU 1" not in rows(scanned)
    assert "nvml" in {each["part"] for each in json.loads(scanned.stdout)["unseen"]}


def test_gpu_that_answers_only_errors_is_not_healthy(machine: Machine) -> None:
    machine.nvml.error("nvmlDeviceGetMemoryInfo", ERROR_UNKNOWN, gpu=1)
    machine.nvml.error("nvmlDeviceGetComputeRunningProcesses_v3", ERROR_UNKNOWN, gpu=1)
    machine.nvml.error("nvmlDeviceGetFieldValues", ERROR_UNKNOWN, gpu=1)

    scanned = machine.scan("--json")

    assert scanned.returncode != HEALTHY
    assert {label for label, row in rows(scanned).items() if row["health"] != "Healthy"} == {"GPU 1"}


def test_scan_needs_no_events(machine: Machine) -> None:
    """It polls once."""
    machine.nvml.error("nvmlDeviceRegisterEvents", ERROR_UNKNOWN, gpu=1)

    scanned = machine.scan("--json")

    assert (scanned.returncode, json.loads(scanned.stdout)["unseen"]) == (HEALTHY, [])


def test_hanging_driver_is_named_and_other_checks_complete(machine: Machine) -> None:
    machine.nvml.hang()
    machine.bus.function("0000:3b:00.0")
    machine.bus.rdma("0000:3b:00.0", "mlx5_0", FakePort())

    scanned = machine.scan(timeout="24s")  # of which a busy machine may take six seconds to start the worker

    assert scanned.returncode == UNKNOWN
    (line,) = [line for line in scanned.stdout.splitlines() if line.startswith("Unknown")]
    assert "nvml: the NVIDIA driver is unresponsive" in line
    assert "reset the GPU or reboot the node" in line
    assert scanned.stdout.splitlines()[-1] == "1 device: 1 healthy"


def test_fault_in_log_is_reported_though_driver_hangs(machine: Machine) -> None:
    machine.nvml.hang()
    machine.log.write_xid(79, pci=kernel_address(3))

    scanned = machine.scan("--json", timeout="12s")

    assert scanned.returncode == UNHEALTHY
    assert rows(scanned)[f"{kernel_address(3)}.0"]["reason"] == "Xid79"
    assert [each["part"] for each in json.loads(scanned.stdout)["unseen"]] == ["nvml"]


def test_machine_without_devices_is_reported(machine: Machine) -> None:
    machine.nvml.driver(Driver.ABSENT)

    scanned = machine.scan()

    assert scanned.returncode == HEALTHY
    note, total = scanned.stdout.splitlines()
    assert "no NVIDIA driver is loaded on this node" in note
    assert total == "this machine has no GPU and no NIC"


def test_gpu_on_bus_without_driver_is_unknown(machine: Machine) -> None:
    machine.nvml.driver(Driver.ABSENT)
    machine.plug_gpu("0000:41:00.0")

    scanned = machine.scan()

    assert scanned.returncode == UNKNOWN
    line, total = scanned.stdout.splitlines()
    assert "1 NVIDIA GPUs on its PCI bus; load the driver" in line
    assert total == "no device was seen"


def test_gpu_on_bus_missing_in_nvml_is_unknown(machine: Machine) -> None:
    machine.nvml.reset(gpus=1)
    for pci in ("0000:10:00.0", "0000:1d:00.0"):
        machine.plug_gpu(pci)

    scanned = machine.scan("--json")

    assert scanned.returncode == UNKNOWN
    assert rows(scanned)["GPU 0"]["health"] == "Healthy"
    (unseen,) = json.loads(scanned.stdout)["unseen"]
    assert unseen["what"] == "NVML shows 1 of the 2 NVIDIA GPUs on the PCI bus"


def test_slow_driver_is_unknown(machine: Machine) -> None:
    machine.nvml.slow(Group.ALL, milliseconds=500)

    scanned = machine.scan("--json", timeout="12s")

    assert scanned.returncode == UNKNOWN
    assert [each["part"] for each in json.loads(scanned.stdout)["unseen"]] == ["nvml"]


def test_nic_that_is_down_is_not_a_fault(machine: Machine) -> None:
    machine.nvml.driver(Driver.ABSENT)
    machine.bus.function("0000:3b:00.0")
    machine.bus.rdma("0000:3b:00.0", "mlx5_0", FakePort(state=DOWN, phys_state="2: Polling"))

    scanned = machine.scan("--json")

    assert scanned.returncode == HEALTHY
    assert "never cabled: mlx5_0/1" in rows(scanned)["mlx5_0"]["message"]


def test_log_messages_about_a_nic_count(machine: Machine) -> None:
    machine.bus.function("0000:3b:00.0")
    machine.bus.rdma("0000:3b:00.0", "mlx5_0", FakePort())
    machine.log.write("mlx5_core 0000:3b:00.0: mlx5_health_try_recover:335:(pid 1): handling bad device here")
    machine.log.write("mlx5_core 0000:3b:00.0: print_health_info:429:(pid 0): synd 0x1: firmware internal error")
    machine.log.write("mlx5_core 0000:3b:00.0: poll_health:801:(pid 0): Fatal error 1 detected")

    scanned = machine.scan("--json")

    assert scanned.returncode == UNHEALTHY
    assert rows(scanned)["mlx5_0"]["reason"] == "NicFatal"


def test_unreadable_kernel_log_is_named_with_hint(machine: Machine) -> None:
    machine.log.path.unlink()

    scanned = machine.scan()

    assert scanned.returncode == UNKNOWN
    assert "8 devices: 8 healthy" in scanned.stdout
    (line,) = [line for line in scanned.stdout.splitlines() if line.startswith("Unknown")]
    assert "kernel-log: " in line
    assert "with --kernel-log" in line


def test_missing_sysfs_is_named_with_hint(machine: Machine) -> None:
    scanned = machine.scan(f"--sysfs={machine.root / 'nowhere'}")

    assert scanned.returncode == UNKNOWN
    (line,) = [line for line in scanned.stdout.splitlines() if line.startswith("Unknown")]
    assert "network: " in line
    assert "with --sysfs" in line


def test_fault_of_running_program_degrades_its_device(machine: Machine) -> None:
    machine.log.write_xid(31, pci=kernel_address(0), pid=os.getpid(), name="python")

    scanned = machine.scan("--json")

    assert scanned.returncode == DEGRADED
    assert (rows(scanned)["GPU 0"]["health"], rows(scanned)["GPU 0"]["action"]) == ("Degraded", "RestartApp")


def test_fault_without_a_process_degrades_a_device_that_an_older_program_uses(machine: Machine) -> None:
    machine.log.write_xid(31, pci=kernel_address(0))
    machine.nvml.processes({os.getpid(): 1 << 30}, gpu=0)

    scanned = machine.scan("--json")

    assert scanned.returncode == DEGRADED
    assert [label for label, row in rows(scanned).items() if row["action"] == "RestartApp"] == ["GPU 0"]


def test_fault_of_ended_program_is_over(machine: Machine) -> None:
    with subprocess.Popen(["true"]) as ended:
        pass
    machine.log.write_xid(31, pci=kernel_address(0), pid=ended.pid, name="true")

    scanned = machine.scan()

    assert (scanned.returncode, scanned.stderr) == (HEALTHY, "")


def test_catalog_can_be_overridden(machine: Machine) -> None:
    machine.log.write_xid(79, pci=kernel_address(3))
    changes = machine.root / "catalog.yaml"
    changes.write_text("schema: 1\nfaults:\n  - {kind: Xid, codes: 79, class: None, note: a drill}\n")

    assert machine.scan(f"--catalog={changes}").returncode == HEALTHY


@pytest.mark.parametrize("arguments", [["--catalog=/nowhere"], ["--timeout=soon"], ["--timeout=0"], ["--what"]])
def test_wrong_usage_is_unknown_and_not_unhealthy(machine: Machine, arguments: list[str]) -> None:
    scanned = machine.scan(*arguments)

    assert scanned.returncode == UNKNOWN
    assert scanned.stdout == ""
    assert len(scanned.stderr.splitlines()) == 1


def test_scan_writes_nothing(machine: Machine) -> None:
    before = contents(machine.root)

    machine.scan()

    assert contents(machine.root) == before


def contents(directory: Path) -> dict[str, int]:
    """Return all that is below a directory, with the time of its last change."""
    return {str(path): path.lstat().st_mtime_ns for path in directory.rglob("*") if path.name != "nvml-state"}


def listing(devices: list[dict[str, Any]] | Exception) -> Callable[..., Awaitable[list[dict[str, Any]]]]:
    """Return a stand-in for an agent's answer."""

    async def listed(*, socket: Path) -> list[dict[str, Any]]:
        assert socket == Path("/run/agent/control.sock")
        if isinstance(devices, Exception):
            raise devices
        return devices

    return listed


def test_agents_verdicts_are_the_same_table(monkeypatch: pytest.MonkeyPatch) -> None:
    held = {"device": "GPU-1", "health": "Unhealthy", "action": "RebootNode", "reason": "Xid79"}
    monkeypatch.setattr(control_devices, "listed", listing([{**held, "message": "Xid 79", "since": 0.0}]))

    result = CliRunner().invoke(cli.main, ["scan", "--agent", "--state-dir=/run/agent"])

    assert result.exit_code == UNHEALTHY
    line = result.stdout.splitlines()[1]
    assert " ".join(line.split()) == "GPU-1 - - Unhealthy RebootNode Xid79 - Xid 79"


@pytest.mark.parametrize("answer", [client.NotReachableError("cannot reach the agent"), [{"device": "GPU-1"}]])
def test_agent_without_answer_gives_unknown(monkeypatch: pytest.MonkeyPatch, answer: Any) -> None:
    monkeypatch.setattr(control_devices, "listed", listing(answer))

    result = CliRunner().invoke(cli.main, ["scan", "--agent", "--state-dir=/run/agent"])

    assert (result.exit_code, result.stdout) == (UNKNOWN, "")
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize("command", ["scan", "prove"])
def test_internal_error_gives_unknown_and_not_degraded(monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    async def broken(*_: object, **__: object) -> None:
        raise RuntimeError("a defect")

    monkeypatch.setattr(checks, "run", broken)
    monkeypatch.setattr(proving, "prove", broken)

    result = CliRunner().invoke(cli.main, [command])

    assert (result.exit_code, result.stdout) == (UNKNOWN, "")
    assert "RuntimeError: a defect" in result.stderr
    assert result.stderr.splitlines()[-1].startswith("Error: internal error (RuntimeError in ")


def test_reader_that_is_gone_gives_unknown_and_not_degraded(machine: Machine) -> None:
    """``kubemend scan | head`` in a script with ``set -o pipefail``."""
    read, write = os.pipe()
    os.close(read)
    try:
        scanned = machine.scan(stdout=write)
    finally:
        os.close(write)
    assert (scanned.returncode, scanned.stderr) == (UNKNOWN, "")


@pytest.mark.parametrize("command", ["scan", "prove"])
def test_interrupt_gives_unknown_and_not_degraded(monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    async def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(checks, "run", interrupt)
    monkeypatch.setattr(proving, "prove", interrupt)

    result = CliRunner().invoke(cli.main, [command])

    assert (result.exit_code, result.stderr) == (UNKNOWN, "Error: interrupted\n")
