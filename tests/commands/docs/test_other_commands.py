"""Every command of the pages is tried by some test; here are those of the small programs."""

import functools
import itertools
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import pytest

from tests.unit.daemonset import manifests
from tests.unit.docs import commands, pages
from tests.unit.docs.commands import Command

SECONDS: Final = 120.0
ROOT: Final = pages.ROOT

ELSEWHERE: Final[Mapping[str, str]] = {
    "docker": "tests/commands/docs/test_install_commands.py",
    "kind": "tests/commands/docs/test_install_commands.py",
    "kill": "tests/docs/test_first_fault.py",
    "kubectl": "tests/unit/docs/test_kubectl_commands.py",
    "kubemend": "tests/commands/docs/test_kubemend_commands.py",
    "promtool": "tests/unit/monitoring/test_promtool.py",
    "sed": "tests/commands/docs/test_install_commands.py",
}
"""Programs, and the module that tries their commands."""


def run(*line: str, given: str = "") -> "subprocess.CompletedProcess[str]":
    """Run a command in the repository, without the colours and variables of the test run."""
    environment = {name: text for name, text in os.environ.items() if not name.startswith("PYTEST_")}
    return subprocess.run(
        line, cwd=ROOT, env=environment, input=given, capture_output=True, text=True, timeout=SECONDS, check=False
    )


def make(command: Command) -> None:
    """Its targets exist; make prints what it would do, and does nothing."""
    made = run("make", "--dry-run", "--always-make", *command.words[1:])
    assert made.returncode == 0, made.stderr


def python(command: Command) -> None:
    """The module or script exists and accepts the options; what follows ``--`` is another program's."""
    words = command.words[1 : command.words.index("--")] if "--" in command.words else command.words[1:]
    program, given = (words[:2], words[2:]) if words[0] == "-m" else (words[:1], words[1:])
    if program[-1] == "pytest":
        pytest_runs(given)
        return
    subcommand = itertools.takewhile(str.islower, itertools.takewhile(lambda word: not word.startswith("-"), given))
    reported = help_of(*program, *subcommand)
    assert reported.returncode == 0, reported.stderr
    for word in given:
        is_placeholder = word.isdecimal() or word.isupper()
        assert is_placeholder or re.search(rf"(?<![\w-]){re.escape(word)}(?![\w-])", reported.stdout), (
            "a placeholder is in capitals"
        )


@functools.cache
def help_of(*program: str) -> "subprocess.CompletedProcess[str]":
    """Have a Python program print its help: several commands are of the same one."""
    return run(sys.executable, *program, "--help")


def pytest_runs(given: Sequence[str]) -> None:
    """The paths exist, and pytest accepts the options, the project's own included."""
    assert all((ROOT / word).exists() for word in given if not word.startswith("-"))
    if not any(word.startswith("-") for word in given):
        return
    reported = run(sys.executable, "-m", "pytest", *given, "--help")
    assert reported.returncode == 0, reported.stderr


def pip(command: Command) -> None:
    """The installed package is this project, with existing extras."""
    verb, wanted = command.words[1:]
    assert verb == "install"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    found = re.fullmatch(r"(\w+|\.)(?:\[(.*)\])?", wanted)
    assert found
    assert found[1] in (project["name"], "."), "or the checkout that the reader is in"
    assert set((found[2] or "").split(",")) - {""} <= project["optional-dependencies"].keys()


def grep(command: Command) -> None:
    """The pattern is valid; an empty text does not match."""
    assert run(*command.words).returncode == 1


def rm(command: Command) -> None:
    """The removed directory is the agent's, and nothing else."""
    (volume,) = [each for each in manifests.pod()["volumes"] if each["name"] == "state"]
    assert command.words[-1].removeprefix("/host") == volume["hostPath"]["path"]


def export(command: Command) -> None:
    """The variable is one that the project reads."""
    name, _, _ = command.words[1].partition("=")
    assert any(name in path.read_text("utf-8") for path in (ROOT / "hack").rglob("*.py"))


def prints(command: Command) -> None:
    """It only pipes input to others."""
    assert len(command.words) == 1


HERE: Final[Mapping[str, Callable[[Command], None]]] = {
    "dmesg": prints,
    "export": export,
    "grep": grep,
    "make": make,
    "pip": pip,
    "pytest": lambda command: pytest_runs(command.words[1:]),
    "python": python,
    "rm": rm,
}
TYPED: Final = pages.of(*HERE)


def test_every_commands_program_is_covered_by_a_test() -> None:
    unknown = {
        f"{page}: {' '.join(command.words)}"
        for page, command in pages.typed()
        if command.program not in {*HERE, *ELSEWHERE}
    }
    assert unknown == set()
    assert all((ROOT / module).is_file() for module in ELSEWHERE.values())


@pytest.mark.parametrize("command", TYPED.values(), ids=TYPED)
def test_command_is_valid(command: Command) -> None:
    HERE[command.program](command)


@pytest.mark.parametrize("page", pages.ALL, ids=pages.name)
def test_shells_understand_the_blocks(page: Path) -> None:
    for block in commands.blocks(page.read_text("utf-8")):
        checked = subprocess.run(["bash", "-n"], input=block, capture_output=True, text=True, check=False)
        assert (checked.returncode, checked.stderr) == (0, ""), block
