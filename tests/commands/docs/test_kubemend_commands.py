"""Every ``kubemend`` command of the pages is parsed by the command line itself, and run where it can be."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import click
import pytest
from click.testing import CliRunner

from hack.fakenvml.layout import Driver
from kubemend import cli
from kubemend.agent.health.catalog import catalog_file
from kubemend.agent.model.actions import ActionClass
from kubemend.agent.model.findings import FindingKind
from tests.commands.scan.conftest import Machine
from tests.unit.app.test_control import swap
from tests.unit.app.test_device_routes import Counter
from tests.unit.cli import builders
from tests.unit.cli.conftest import Cluster
from tests.unit.devices.operators_rig import GPU
from tests.unit.docs import pages
from tests.unit.docs.commands import Command
from tests.unit.test_cli import doctor

SECONDS: Final = 120.0
OVERRIDES: Final = "catalog-override.yaml"
PLACEHOLDERS: Final[Mapping[str, Sequence[str]]] = {
    "CODE": ["79"],
    "COMMAND…": ["nvidia-smi", "--gpu-reset", "-i", "3"],
    "CONTAINER": ["trainer"],
    "DEVICE": ["0"],
    "FILE": [OVERRIDES],
    "GPU-5f…e2": ["0"],
    "NAMESPACE/POD": ["default/trainer-0"],
    "NS": ["default"],
    "OLD-UUID": ["0"],
    "POD": ["trainer-0"],
    "RESTART": ["llama-2-03bc"],
    "S": ["swap"],
    "TEXT": ["why"],
    "first-1-8f2e": ["llama-2-03bc"],
}
"""Placeholders for values of the reader's own."""

XID = "NVRM: Xid (PCI:0000:41:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
TYPED: Final = pages.of("kubemend")


def arguments(command: Command) -> list[str]:
    """Return the arguments of ``kubemend``, without a synopsis's brackets, and with values for the placeholders."""
    words = [word.replace("[", "").replace("]", "") for word in command.words[1:]]
    return [value for word in words for value in PLACEHOLDERS.get(word, [word])]


def of(*subcommands: str) -> pytest.MarkDecorator:
    """Give a test the complete commands of these subcommands on the pages, each once."""
    typed = {tuple(arguments(each)): place for place, each in TYPED.items() if each.words[1] in subcommands}
    complete = {words: place for words, place in typed.items() if not lacks_something(words)}
    assert complete, subcommands
    return pytest.mark.parametrize("words", list(complete), ids=list(complete.values()))


def lacks_something(words: Sequence[str]) -> bool:
    """Return whether it is a bare subcommand that cannot be run so: a sentence mentions it."""
    command = subcommand(words[0])
    return len(words) == 1 and any(isinstance(each, click.Argument) and each.required for each in command.params)


def subcommand(name: str) -> click.Command:
    """Return the command of that name."""
    found = cli.main.get_command(click.Context(cli.main), name)
    assert found is not None, name
    return found


@pytest.fixture(autouse=True)
def overrides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file that the pages call FILE: the one shown in docs/operations.md."""
    monkeypatch.chdir(tmp_path)
    shown = (pages.ROOT / "docs" / "operations.md").read_text().partition("## Changing what a code means")[2]
    Path(OVERRIDES).write_text(shown.partition("```yaml\n")[2].partition("```")[0])


@pytest.mark.parametrize("command", TYPED.values(), ids=TYPED)
def test_it_is_understood(command: Command) -> None:
    words = arguments(command)
    assert words[0] in cli.main.list_commands(click.Context(cli.main))
    if command.mentioned and lacks_something(words):
        return
    if words[-1] == "--help":
        assert CliRunner().invoke(cli.main, words).exit_code == 0
        return
    with subcommand(words[0]).make_context(words[0], words[1:], parent=click.Context(cli.main)) as context:
        assert context.args == []


def test_each_subcommand_is_run_by_a_test_of_this_module() -> None:
    run = {"clear", "doctor", "explain", "prove", "release-devices", "restart", "scan", "status", "timeline"}
    only_understood = {
        "agent",
        "controller",
        "completion",
    }  # tests/scenarios, and tests/commands/cli/test_completion, run them
    assert {each.words[1] for each in TYPED.values()} == run | only_understood


@of("explain")
def test_explain(words: tuple[str, ...]) -> None:
    result = CliRunner().invoke(cli.main, words, input=f"{XID}\n")
    assert result.exit_code == 0, result.output
    if "--log" in words:
        assert json.loads(result.stdout)["code"] == 79
    else:
        assert result.stdout.startswith(f"Xid {words[1]}")


def test_shown_catalog_override_has_the_documented_effect() -> None:
    merged = catalog_file.merged(catalog_file.builtin(), Path(OVERRIDES).read_text())
    (changed,) = [each for key, each in merged.entries.items() if str(key) == "Xid 13"]
    assert changed.action is ActionClass.NONE


@of("doctor")
def test_doctor(words: tuple[str, ...], tmp_path: Path) -> None:
    result = doctor(tmp_path, *words[1:])
    assert result.exit_code == 1, "a machine that has nothing"
    assert "kernel-log" in result.stdout
    assert result.stderr == ""


@of("prove")
def test_prove(words: tuple[str, ...], machine: Machine) -> None:
    machine.nvml.driver(Driver.ABSENT)
    command = [sys.executable, "-m", "kubemend.agent.cli", *words, f"--sysfs={machine.bus.root}"]
    env = {**os.environ, **machine.nvml.env()}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=False)
    if "--gpu" in words:
        assert done.returncode == 3, done.stdout + done.stderr
        assert "NVML shows no such GPU" in done.stdout or "no GPU was seen" in done.stdout
    else:
        assert done.returncode == 0, done.stdout + done.stderr
        assert done.stdout.endswith("this machine has no GPU\n")


@of("scan")
def test_scan(words: tuple[str, ...], machine: Machine) -> None:
    healthy, undetermined = 0, 3  # no agent answers; no CUDA driver shows these GPUs
    scanned = machine.scan(*words[1:], f"--state-dir={machine.root}")
    assert scanned.returncode == (undetermined if {"--agent", "--active"} & set(words) else healthy), scanned.stderr
    if "--agent" in words:
        assert "agent" in scanned.stderr
    else:
        assert "8 devices: 8 healthy" in scanned.stdout


@of("status", "timeline")
async def test_commands_that_query_the_api_server(words: tuple[str, ...], cluster: Cluster, tmp_path: Path) -> None:
    await cluster.put(
        builders.pod("llama-0", gang="llama", conditions=builders.HEALTHY),
        builders.restart("llama-2-03bc", gang="llama", attempt=2),
    )
    result = await cluster.run(*words, namespace="-A" not in words)
    assert (result.exit_code, result.stderr) == (0, "")
    assert "llama" in result.stdout + contents(tmp_path)


def contents(directory: Path) -> str:
    """Return the written pictures."""
    return "".join(path.read_text() for path in directory.glob("*.svg"))


@of("restart")
async def test_restart(words: tuple[str, ...], counter: Counter) -> None:
    counter.env.restarts.does = swap
    await run(words, state=counter.env.path.parent)
    (request,) = counter.env.restarts.requests
    assert (request.target.pod.name, request.target.name) == ("trainer-0", "trainer")


@of("clear")
async def test_clear(words: tuple[str, ...], counter: Counter) -> None:
    counter.node.found(FindingKind.XID, ActionClass.REPLACE, device=GPU, code="64")
    assert "cleared Xid 64" in await run(words, state=counter.socket.parent)


@of("release-devices")
async def test_release_devices(words: tuple[str, ...], counter: Counter, tmp_path: Path) -> None:
    reset = tmp_path / "nvidia-smi"
    reset.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/reset\n')
    reset.chmod(0o755)
    await run(words, state=counter.socket.parent, path=tmp_path)
    is_held, was_run = counter.node.handles.held, "nvidia-smi" in words
    assert is_held == was_run, "until the command has ended, or for a while"
    if was_run:
        assert (tmp_path / "reset").read_text() == f"{' '.join(words[2:])}\n"


async def run(words: Sequence[str], *, state: Path, path: Path = Path("/nowhere")) -> str:
    """Run a command against the agent whose state is in that directory; return its output."""
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "kubemend.cli", *words),
        cwd=pages.ROOT,
        env={**os.environ, "PATH": f"{path}:{os.environ['PATH']}", "KUBEMEND_STATE_DIR": str(state)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    async with asyncio.timeout(SECONDS):
        output, _ = await child.communicate()
    assert child.returncode == 0, output.decode()
    return output.decode()
