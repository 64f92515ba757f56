"""The command that drives the fake NVML."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from hack.fakenvml.__main__ import main


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


def test_a_new_state_has_eight_healthy_gpus(state: Path) -> None:
    told = status(state)

    assert (told["driver"], told["hang"], told["events"]) == ("loaded", [], 0)
    assert [gpu["present"] for gpu in told["gpus"]].count(True) == 8  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("arguments", "key", "value"),
    [
        pytest.param(["lost", "--gpu", "1"], "fault", "lost", id="lost"),
        pytest.param(["recovery", "--gpu", "1", "reset"], "recovery", 1, id="recovery"),
        pytest.param(["hang", "--gpu", "1", "getters"], "hang", ["getters"], id="hang"),
        pytest.param(["processes", "--gpu", "1", "7:5", "8:6"], "processes", [7, 8], id="processes"),
        pytest.param(["processes", "--gpu", "1", "--used", "9", "7:5"], "memory_used", 9, id="memory"),
    ],
)
def test_a_fault_is_kept_until_the_reset(state: Path, arguments: list[str], key: str, value: object) -> None:
    healthy = status(state)["gpus"]

    ctl(state, *arguments)

    assert status(state)["gpus"][1][key] == value  # type: ignore[index]
    ctl(state, "reset")
    assert status(state)["gpus"] == healthy


def test_node_wide_switches(state: Path) -> None:
    ctl(state, "driver", "off")
    ctl(state, "hang")
    ctl(state, "xid", "--gpu", "0", "--code", "94")

    told = status(state)

    assert (told["driver"], told["events"]) == ("absent", 1)
    assert told["hang"] == ["init", "handles", "getters", "events"]
    ctl(state, "resume")
    ctl(state, "driver", "on")
    assert (status(state)["driver"], status(state)["hang"]) == ("loaded", [])


def test_a_gpu_that_cannot_exist_is_refused(state: Path) -> None:
    result = CliRunner().invoke(main, ["ctl", "--state", str(state), "lost", "--gpu", "16"])

    assert result.exit_code == 2


def test_a_process_that_is_no_pid_and_size_is_refused(state: Path) -> None:
    result = CliRunner().invoke(main, ["ctl", "--state", str(state), "processes", "--gpu", "1", "4711"])

    assert result.exit_code == 2
    assert "PID:BYTES" in result.output
