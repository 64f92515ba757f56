"""Completion for shells, and for kubectl's plugin."""

import subprocess

import pytest
from click.testing import CliRunner

from kubemend.cli import kubectl, main


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_prints_a_script_that_asks_kubemend(shell: str) -> None:
    done = CliRunner().invoke(main, ["completion", shell])
    assert done.exit_code == 0
    assert "_KUBEMEND_COMPLETE" in done.output


def test_bash_takes_the_script() -> None:
    script = CliRunner().invoke(main, ["completion", "bash"]).output
    subprocess.run(["bash", "-n"], input=script, text=True, check=True, timeout=60)


def test_unknown_shell_is_a_usage_error() -> None:
    done = CliRunner().invoke(main, ["completion", "tcsh"])
    assert done.exit_code == 2
    assert "tcsh" in done.output


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["tim"], ["timeline\t"]),
        ([""], ["restart\t", "status\t", "scan\t"]),
        (["timeline", "-o", "s"], ["svg"]),
        (["status", "--all"], ["--all-namespaces\t"]),
        (["restart", "--strategy", "r"], ["rerun", "reset", "rules"]),
    ],
)
def test_kubectl_gets_values_with_descriptions_and_a_directive(
    words: list[str], expected: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    kubectl.complete(words)
    *lines, directive = capsys.readouterr().out.splitlines()
    assert directive == ":4"
    for each in expected:
        assert any(line.startswith(each) for line in lines), (each, lines)


def test_kubectl_is_directed_to_complete_file_names(capsys: pytest.CaptureFixture[str]) -> None:
    kubectl.complete(["status", "--kubeconfig", ""])
    assert capsys.readouterr().out.splitlines() == [":0"]
