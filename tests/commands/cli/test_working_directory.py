"""kubemend runs as root in any directory: no command may run the Python code of that directory."""

import os
import subprocess
import sys
from pathlib import Path

import click
import pytest

from kubemend import cli

_CHECKOUT = Path(cli.__file__).parents[1]
_COMMANDS = [
    ["agent", "--help"],
    ["clear", "--help"],
    ["completion", "bash"],
    ["controller", "--help"],
    ["doctor"],
    ["explain", "79"],
    ["prove"],
    ["release-devices", "--help"],
    ["restart", "--help"],
    ["scan"],
    ["status", "--help"],
    ["timeline", "--help"],
]


@pytest.mark.parametrize("command", _COMMANDS, ids=lambda command: command[0])
def test_a_command_runs_no_code_of_the_directory_it_is_started_in(command: list[str], tmp_path: Path) -> None:
    marker = tmp_path / "executed"
    here = tmp_path / "here"
    for package in ("agent", "cli", "common", "controller", "pynvml", "click", "json"):
        (here / package).mkdir(parents=True)
        (here / package / "__init__.py").write_text(f"open({str(marker)!r}, 'a').write({package!r})\n")

    subprocess.run(
        [sys.executable, "-P", "-c", "import sys, cli; sys.argv[0] = 'kubemend'; cli.main()", *command],
        cwd=here,
        env={**os.environ, "PYTHONPATH": str(_CHECKOUT), "KUBECONFIG": str(tmp_path / "none")},
        capture_output=True,
        check=False,
        timeout=120,
    )

    assert not marker.exists(), marker.read_text()


def test_every_command_is_tried() -> None:
    assert {command[0] for command in _COMMANDS} == set(cli.main.list_commands(click.Context(cli.main)))
