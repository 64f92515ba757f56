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
        pytest.param(["lost", "gpu=1"], "fault", "lost", id="lost"),
        pytest.param(["recovery", "gpu-reset", "gpu=1"], "recovery", 1, id="recovery"),
        pytest.param(["hang", "getters", "gpu=1"], "hang", ["getters"], id="hang"),
        pytest.param(["processes", "{7: 5, 8: 6}", "gpu=1"], "processes", [7, 8], id="processes"),
        pytest.param(["processes", "{7: 5}", "used=9", "gpu=1"], "memory_used", 9, id="memory"),
        pytest.param(["fault", "reset-required", "gpu=1"], "fault", "reset_required", id="reset-required"),
        pytest.param(["remove", "gpu=1"], "present", False, id="remove"),
        pytest.param(
            ["mig", "{gpu_instance: 1}", "{gpu_instance: 2}", "gpu=1"],
            "mig",
            [mig_uuid(1, 0), mig_uuid(1, 1)],
            id="mig",
        ),
        pytest.param(["link", "4", "active=false", "gpu=1"], "links_down", [4], id="link"),
        pytest.param(["error", "nvmlDeviceGetUUID", "14", "gpu=1"], "errors", {"nvmlDeviceGetUUID": 14}, id="error"),
        pytest.param(["ecc", "uncorrected=2", "gpu=1"], "ecc_uncorrected", 2, id="ecc"),
        pytest.param(["ecc", "sram=true", "uncorrected=2", "gpu=1"], "ecc_uncorrected", 2, id="sram"),
        pytest.param(
            ["remapped-rows", "pending=true", "gpu=1"], "remap", {"pending": True, "failure": False}, id="remap"
        ),
    ],
)
def test_fault_persists_until_the_reset(state: Path, arguments: list[str], key: str, value: object) -> None:
    healthy = status(state)["gpus"]

    ctl(state, *arguments)

    assert status(state)["gpus"][1][key] == value  # type: ignore[index]
    ctl(state, "reset")
    assert status(state)["gpus"] == healthy


def test_node_wide_switches(state: Path) -> None:
    ctl(state, "driver", "absent")
    ctl(state, "hang")
    ctl(state, "xid", "code=94", "gpu=0")

    shown = status(state)

    assert (shown["driver"], shown["events"]) == ("absent", 1)
    assert shown["hang"] == ["init", "handles", "getters", "events"]
    ctl(state, "resume")
    ctl(state, "driver", "loaded")
    assert (status(state)["driver"], status(state)["hang"]) == ("loaded", [])


def test_numbers_are_set_by_name(state: Path) -> None:
    ctl(state, "set", "gpu=1", "temperature=91", "pcie-width=8", "clocks-event-reasons=0x40")

    readings = status(state)["gpus"][1]["readings"]  # type: ignore[index]

    assert (readings["temperature"], readings["pcie_width"], readings["clocks_event_reasons"]) == (91, 8, 64)


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(["set", "gpu=1", "colour=3"], id="unknown-number"),
        pytest.param(["set", "gpu=1", "temperature=hot"], id="no-number"),
        pytest.param(["lost", "gpu=16"], id="impossible-gpu"),
        pytest.param(["lost"], id="no-gpu"),
        pytest.param(["processes", "4711", "gpu=1"], id="no-process"),
        pytest.param(["processes", "{4711", "gpu=1"], id="no-yaml"),
    ],
)
def test_invalid_call_is_refused_with_the_methods_parameters(state: Path, arguments: list[str]) -> None:
    result = CliRunner().invoke(main, ["ctl", "--state", str(state), *arguments])

    assert result.exit_code == 2
    assert f"{arguments[0]}(" in result.output


@pytest.mark.parametrize("method", ["close", "env", "gpu", "_change", "explode"])
def test_only_changes_are_commands(state: Path, method: str) -> None:
    assert CliRunner().invoke(main, ["ctl", "--state", str(state), method]).exit_code == 2


def test_storm_of_events_is_queued(state: Path) -> None:
    ctl(state, "event", "event-clock", "times=1000", "gpu=0")

    assert status(state)["events"] == 1000


def test_hot_add_adds_a_gpu(state: Path) -> None:
    ctl(state, "add", "gpu=8")

    assert [gpu["present"] for gpu in status(state)["gpus"]].count(True) == 9  # type: ignore[attr-defined]


def test_slow_calls_are_switched_on_and_off(state: Path) -> None:
    ctl(state, "slow", "getters", "milliseconds=50")
    slow = status(state)["slow_ms"]
    ctl(state, "slow", "getters", "milliseconds=0")

    assert (slow, status(state)["slow_ms"]) == (50, 0)


def test_costly_calls_are_switched_on_and_off(state: Path) -> None:
    ctl(state, "cost", "microseconds=1000")
    costly = status(state)["call_cost_us"]
    ctl(state, "cost", "microseconds=0")

    assert (costly, status(state)["call_cost_us"]) == (1000, 0)


def test_field_value_is_set_with_its_result(state: Path) -> None:
    ctl(state, "field", "173", "value=9", "result=3", "gpu=1")

    assert status(state)["gpus"][1]["fields"]["173"] == [9, 3]  # type: ignore[index]
