"""The command line: its options, and its errors."""

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from kubemend.agent import cli
from kubemend.agent.control import client, messages
from kubemend.agent.restart.intents import Strategy
from kubemend.agent.restart.overrides import RestartOverrides
from kubemend.cli import main
from kubemend.common.web import ListenError

EVENTS = (
    {"event": "accepted", "ms": 0.0, "pod": "default/trainer-0", "container": "trainer"},
    {"event": "done", "ms": 71.2, "ok": True, "reason": "Swapped", "detail": ""},
)


@dataclass
class Agent:
    """A stand-in for the agent behind the socket: records requests and gives scripted answers."""

    answer: int | BaseException = client.EXIT_OK
    request: messages.RestartRequest | None = None
    socket: Path | None = None
    wait: bool | None = None

    async def follow(
        self,
        request: messages.RestartRequest,
        *,
        socket: Path,
        wait: bool,
        show: Callable[[Mapping[str, Any]], None],
    ) -> int:
        self.request, self.socket, self.wait = request, socket, wait
        if isinstance(self.answer, BaseException):
            raise self.answer
        for event in EVENTS:
            show(event)
        return self.answer


@pytest.fixture
def agent(monkeypatch: pytest.MonkeyPatch) -> Agent:
    made = Agent()
    monkeypatch.setattr(client, "follow", made.follow)
    return made


def run(*arguments: str, env: dict[str, str] | None = None) -> Result:
    return CliRunner(env={"KUBEMEND_STATE_DIR": None, "KUBEMEND_CONFIG": None, **(env or {})}).invoke(
        cli.main, arguments
    )


def asked(agent: Agent, *arguments: str) -> messages.RestartRequest:
    result = run("restart", *arguments)
    assert result.exit_code == 0, result.output
    assert agent.request is not None
    return agent.request


@pytest.mark.parametrize(
    ("arguments", "namespace"),
    [
        (["trainer-0"], "default"),
        (["trainer-0", "-n", "team"], "team"),
        (["pod/trainer-0"], "default"),
        (["pod/trainer-0", "--namespace", "team"], "team"),
        (["team/trainer-0"], "team"),
        (["team/trainer-0", "-n", "team"], "team"),
    ],
)
def test_pod_may_be_named_as_in_kubectl(agent: Agent, arguments: list[str], namespace: str) -> None:
    request = asked(agent, *arguments)
    assert (request.namespace, request.pod) == (namespace, "trainer-0")


@pytest.mark.parametrize(
    "arguments", [["a/b/c"], ["pod/"], ["/trainer-0"], [""], ["team/trainer-0", "-n", "other"], ["pod/team/trainer-0"]]
)
def test_invalid_pod_is_a_usage_error(agent: Agent, arguments: list[str]) -> None:
    result = run("restart", *arguments)
    assert result.exit_code == 2
    assert "POD" in result.output
    assert agent.request is None


def test_omitted_options_are_left_to_annotations(agent: Agent) -> None:
    assert asked(agent, "trainer-0").asked == RestartOverrides()
    assert agent.wait is True
    assert agent.socket == Path("/var/lib/kubemend/control.sock")


def test_given_options_are_requested(agent: Agent) -> None:
    flags = ["-c", "trainer", "-c", "logger", "--strategy", "rerun", "--grace", "500ms", "--reason", "new data"]
    request = asked(agent, "trainer-0", *flags, "--no-wait", "--state-dir", "/elsewhere")
    assert request.asked == RestartOverrides(
        strategy=Strategy.RERUN, containers=frozenset({"trainer", "logger"}), grace_seconds=0.5
    )
    assert (request.reason, agent.wait, agent.socket) == ("new data", False, Path("/elsewhere/control.sock"))


def test_state_dir_comes_from_config_file_and_variables(agent: Agent, tmp_path: Path) -> None:
    (tmp_path / "agent.yaml").write_text("state-dir: /from-file\nnode-name: n\n")
    asked(agent, "trainer-0", "--config", str(tmp_path / "agent.yaml"))
    assert agent.socket == Path("/from-file/control.sock")
    run("restart", "trainer-0", env={"KUBEMEND_STATE_DIR": "/from-env"})
    assert agent.socket == Path("/from-env/control.sock")


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--grace", "soon"], "--grace"),
        (["--grace", "2h"], "must be at most 3600s"),
        (["--strategy", "quick"], "rerun"),
        (["--state-dir", ""], "--state-dir"),
    ],
)
def test_invalid_flag_is_a_usage_error(agent: Agent, arguments: list[str], named: str) -> None:
    result = run("restart", "trainer-0", *arguments)
    assert (result.exit_code, agent.request) == (2, None)
    assert named in result.output


def test_progress_is_text_or_json(agent: Agent) -> None:
    assert run("restart", "trainer-0").stdout.splitlines() == [
        "      0 ms  accepted  default/trainer-0, container trainer",
        "     71 ms  done      Swapped",
    ]
    assert [json.loads(line) for line in run("restart", "trainer-0", "--json").stdout.splitlines()] == list(EVENTS)


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (client.EXIT_NOT_DONE, 1),
        (client.NotReachableError("cannot reach the agent"), 3),
        (client.NotAcceptedError("there is no such pod", usage=False), 1),
        (client.NotAcceptedError("name one with --container", usage=True), 2),
        (client.LostError("the connection to the agent was lost"), 1),
        (KeyboardInterrupt(), 130),
    ],
)
def test_result_is_the_exit_code_and_reason_on_stderr(agent: Agent, answer: int | BaseException, code: int) -> None:
    agent.answer = answer
    result = run("restart", "trainer-0")
    assert result.exit_code == code
    assert len(result.stderr.splitlines()) == (0 if isinstance(answer, int) else 1)
    assert str(answer) in result.stderr or isinstance(answer, int)


@pytest.mark.parametrize(
    ("answer", "goes_on"),
    [(client.LostError("gone"), "is completed by"), (KeyboardInterrupt(), "completes the restarts")],
)
def test_interrupt_reports_that_the_restart_continues(agent: Agent, answer: BaseException, goes_on: str) -> None:
    agent.answer = answer
    assert goes_on in run("restart", "trainer-0").stderr


def doctor(tmp_path: Path, *more: str) -> Result:
    """Run doctor on an empty machine."""
    flags = ("cri-endpoint", "pod-resources-socket", "kernel-log", "kubeconfig", "state-dir", "pod-log-symlinks")
    return run("doctor", *(f"--{flag}={tmp_path / flag}" for flag in flags), "--metrics-address=127.0.0.1:1", *more)


def test_doctor_exits_1_on_failed_check(tmp_path: Path) -> None:
    result = doctor(tmp_path, "--node-name=bare")
    assert result.exit_code == 1
    assert "node bare: " in result.stdout.splitlines()[-1]
    assert "\x1b" not in result.stdout, "no colours outside a terminal"
    assert result.stderr == ""


def test_doctor_json_has_the_same_content(tmp_path: Path) -> None:
    report = json.loads(doctor(tmp_path, "--json", "--node-name=bare").stdout)
    assert (report["node"], report["works"]) == ("bare", False)
    assert {"name", "result", "what", "hint"} == set(report["checks"][0])


def test_doctor_checks_its_settings(tmp_path: Path) -> None:
    assert doctor(tmp_path, "--log-format=xml").exit_code == 2


@pytest.mark.parametrize("depth", [0, 2])
def test_controller_that_cannot_listen_ends_with_one_line(monkeypatch: pytest.MonkeyPatch, depth: int) -> None:
    """Its hub listens in a task of a task, so that its error comes in groups."""
    error: Exception = ListenError("cannot listen on :1: no; choose another --hub-address")
    for _ in range(depth):
        error = ExceptionGroup("unhandled errors in a TaskGroup", [error])

    async def run(_: object) -> None:
        raise error

    monkeypatch.setattr("kubemend.controller.app.controller.run", run)
    result = CliRunner().invoke(main, ["controller"])
    assert result.exit_code == 3
    assert result.stderr == "kubemend controller: cannot listen on :1: no; choose another --hub-address\n"


def test_other_errors_of_the_controller_are_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run(_: object) -> None:
        raise ExceptionGroup("several", [ListenError("cannot listen"), IndexError("internal")])

    monkeypatch.setattr("kubemend.controller.app.controller.run", run)
    result = CliRunner().invoke(main, ["controller"])
    assert result.exit_code == 1
    assert isinstance(result.exception, ExceptionGroup)


@pytest.mark.parametrize(
    ("arguments", "code", "reason"),
    [
        (["999"], 1, ""),
        (["79", "--catalog", "missing"], 3, "Error: cannot read the catalog file missing"),
        ([], 3, "Error: give a CODE, or --log FILE"),
        (["--unknown"], 3, "Error: No such option"),
    ],
)
def test_only_a_missing_code_makes_explain_exit_with_1(arguments: list[str], code: int, reason: str) -> None:
    result = run("explain", *arguments)
    assert result.exit_code == code
    assert result.stderr.startswith(reason)
    assert len(result.stderr.splitlines()) == bool(reason)


@pytest.mark.parametrize(("arguments", "code"), [(["explain", "79"], 3), (["timeline", "--help"], 1), (["--help"], 1)])
def test_command_whose_output_goes_to_a_full_disk_ends_with_one_line(arguments: list[str], code: int) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "kubemend.cli", *arguments],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert (done.returncode, done.stderr) == (code, "Error: cannot write the output: No space left on device\n")
