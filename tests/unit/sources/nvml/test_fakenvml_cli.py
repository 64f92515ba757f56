"""The command that drives the fake NVML."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from hack.fakenvml.__main__ import main
from hack.fakenvml.control import mig_uuid


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state"


def ctl(state: Path, *arguments: str) -> str:
    result = CliRunner().invoke(main, ["ctl", "--state", str(state), *arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def status(state: Path) -> dict[str, object]:
    read: dict[str, object] = json.loads(ctl(state, "status"))
    return read


def test_new_state_has_eight_healthy_gpus(state: Path) -> None:
    shown = status(state)

    assert (shown["driver"], shown["hang"], shown["events"]) == ("loaded", [], 0)
    assert [gpu["present"] for gpu in shown["gpus"]].count(True) == 8  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("arguments", "key", "value"),
    [
        pytest.param(["lost", "--gpu", "1"], "fault", "lost", id="lost"),
        pytest.param(["recovery", "--gpu", "1", "reset"], "recovery", 1, id="recovery"),
        pytest.param(["hang", "--gpu", "1", "getters"], "hang", ["getters"], id="hang"),
        pytest.param(["processes", "--gpu", "1", "7:5", "8:6"], "processes", [7, 8], id="processes"),
        pytest.param(["processes", "--gpu", "1", "--used", "9", "7:5"], "memory_used", 9, id="memory"),
        pytest.param(["fault", "--gpu", "1", "reset-required"], "fault", "reset_required", id="reset-required"),
        pytest.param(["remove", "--gpu", "1"], "present", False, id="remove"),
        pytest.param(["mig", "--gpu", "1", "1:0", "2:0"], "mig", [mig_uuid(1, 0), mig_uuid(1, 1)], id="mig"),
        pytest.param(["link", "--gpu", "1", "4", "down"], "links_down", [4], id="link"),
        pytest.param(
            ["error", "--gpu", "1", "nvmlDeviceGetUUID", "14"], "errors", {"nvmlDeviceGetUUID": 14}, id="error"
        ),
        pytest.param(["ecc", "--gpu", "1", "--uncorrected", "2"], "ecc_uncorrected", 2, id="ecc"),
        pytest.param(["ecc", "--gpu", "1", "--sram", "--uncorrected", "2"], "ecc_uncorrected", 2, id="sram"),
        pytest.param(["remap", "--gpu", "1", "--pending"], "remap", {"pending": True, "failure": False}, id="remap"),
    ],
)
def test_fault_persists_until_the_reset(state: Path, arguments: list[str], key: str, value: object) -> None:
    healthy = status(state)["gpus"]

    ctl(state, *arguments)

    assert status(state)["gpus"][1][key] == value  # type: ignore[index]
    ctl(state, "reset")
    assert status(state)["gpus"] == healthy


def test_node_wide_switches(state: Path) -> None:
    ctl(state, "driver", "off")
    ctl(state, "hang")
    ctl(state, "xid", "--gpu", "0", "--code", "94")

    shown = status(state)

    assert (shown["driver"], shown["events"]) == ("absent", 1)
    assert shown["hang"] == ["init", "handles", "getters", "events"]
    ctl(state, "resume")
    ctl(state, "driver", "on")
    assert (status(state)["driver"], status(state)["hang"]) == ("loaded", [])


def test_numbers_are_set_by_name(state: Path) -> None:
    ctl(state, "set", "--gpu", "1", "temperature=91", "pcie-width=8", "clocks-event-reasons=0x40")

    readings = status(state)["gpus"][1]["readings"]  # type: ignore[index]

    assert (readings["temperature"], readings["pcie_width"], readings["clocks_event_reasons"]) == (91, 8, 64)


@pytest.mark.parametrize("argument", ["colour=3", "temperature=hot", "temperature"])
def test_number_that_a_gpu_lacks_is_refused(state: Path, argument: str) -> None:
    result = CliRunner().invoke(main, ["ctl", "--state", str(state), "set", "--gpu", "1", argument])

    assert result.exit_code == 2
    assert "NAME=VALUE" in result.output


def test_storm_of_events_is_queued(state: Path) -> None:
    ctl(state, "event", "--gpu", "0", "--times", "1000", "double-bit-ecc")

    assert status(state)["events"] == 1000


def test_hot_add_adds_a_gpu(state: Path) -> None:
    ctl(state, "add", "--gpu", "8")

    assert [gpu["present"] for gpu in status(state)["gpus"]].count(True) == 9  # type: ignore[attr-defined]


def test_slow_calls_are_switched_on_and_off(state: Path) -> None:
    ctl(state, "slow", "getters", "50")
    slow = status(state)["slow_ms"]
    ctl(state, "slow", "getters", "0")

    assert (slow, status(state)["slow_ms"]) == (50, 0)


def test_costly_calls_are_switched_on_and_off(state: Path) -> None:
    ctl(state, "cost", "1000")
    costly = status(state)["call_cost_us"]
    ctl(state, "cost", "0")

    assert (costly, status(state)["call_cost_us"]) == (1000, 0)


def test_field_value_is_set_with_its_result(state: Path) -> None:
    ctl(state, "field", "--gpu", "1", "--result", "3", "173", "9")

    assert status(state)["gpus"][1]["fields"]["173"] == [9, 3]  # type: ignore[index]


def test_impossible_gpu_is_refused(state: Path) -> None:
    result = CliRunner().invoke(main, ["ctl", "--state", str(state), "lost", "--gpu", "16"])

    assert result.exit_code == 2


def test_invalid_process_is_refused(state: Path) -> None:
    result = CliRunner().invoke(main, ["ctl", "--state", str(state), "processes", "--gpu", "1", "4711"])

    assert result.exit_code == 2
    assert "PID:BYTES" in result.output
