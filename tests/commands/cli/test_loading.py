"""A command loads no library that only other commands need."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from kubemend.cli import main

_HEAVY = {"aiohttp", "cryptography", "grpc", "kubernetes", "prometheus_client"}
_OURS = {"kubemend.agent.app", "kubemend.agent.engine", "controller"}
_PROGRAM = f"""
import json, sys
from kubemend import cli
sys.argv[0] = "kubemend"
try:
    cli.main()
finally:
    print(json.dumps(sorted(sys.modules.keys() & {_HEAVY | _OURS!r})), file=sys.stderr)
"""


def loaded(*command: str, codes: frozenset[int] = frozenset({0})) -> set[str]:
    """Run a command in a process of its own that ends with one of ``codes``; return the heavy modules it has loaded."""
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, *command], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode in codes, done.stderr
    return set(json.loads(done.stderr.splitlines()[-1]))


@pytest.mark.parametrize(
    "command", [["scan", "--help"], ["explain", "79"], ["prove", "--help"], ["completion", "bash"]]
)
def test_a_light_command_loads_nothing_heavy(command: list[str]) -> None:
    assert not loaded(*command)


def test_a_scan_loads_nothing_heavy(tmp_path: Path) -> None:
    (tmp_path / "kmsg").touch()
    (tmp_path / "sys" / "bus" / "pci" / "devices").mkdir(parents=True)
    (tmp_path / "sys" / "class" / "net").mkdir(parents=True)
    where = [f"--kernel-log={tmp_path / 'kmsg'}", f"--sysfs={tmp_path / 'sys'}", "--timeout=60s"]
    assert not loaded("scan", "--json", *where, codes=frozenset({0, 3}))  # 3: netlink reports nothing here


def test_scan_with_the_agents_data_loads_no_grpc(tmp_path: Path) -> None:
    assert loaded("scan", "--agent", f"--state-dir={tmp_path}", codes=frozenset({3})) == {"aiohttp"}


def test_the_help_lists_every_command_with_its_first_line() -> None:
    done = CliRunner().invoke(main, ["--help"])
    assert done.exit_code == 0
    listed = dict(line.split(maxsplit=1) for line in done.output.partition("Commands:\n")[2].splitlines())
    assert listed.keys() == {
        "agent",
        "clear",
        "completion",
        "controller",
        "doctor",
        "explain",
        "prove",
        "release-devices",
        "restart",
        "scan",
        "status",
        "timeline",
    }
    assert all(listed.values())


def test_unknown_command_is_a_usage_error_with_a_guess() -> None:
    done = CliRunner().invoke(main, ["sacn"])
    assert done.exit_code == 2
    assert "sacn" in done.output
