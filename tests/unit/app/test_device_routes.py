"""Device requests on the socket, from both ends, and the commands that use it."""

import asyncio
import contextlib
import json
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from kubemend.agent.app.control import ControlServer
from kubemend.agent.app.device_routes import DeviceRoutes
from kubemend.agent.control import client, devices, messages
from kubemend.agent.model.actions import ActionClass
from kubemend.agent.model.findings import FindingKind
from tests.fakes import outside
from tests.unit.app.conftest import ControlEnv, control_env
from tests.unit.devices.operators_rig import GPU, Node, node_in


@dataclass(frozen=True)
class Done:
    """The exit code and the output of a command."""

    exit_code: int
    output: str


@dataclass
class Counter:
    """The socket with a node behind it."""

    env: ControlEnv
    node: Node
    directory: Path

    @property
    def socket(self) -> Path:
        return self.directory / "devices" / messages.SOCKET

    async def run(self, command: str, *arguments: str) -> Done:
        """Run a command as an operator would."""
        return await run(command, f"--state-dir={self.socket.parent}", *arguments)


async def run(*arguments: str) -> Done:
    """Run the command line to its end."""
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "kubemend.agent.cli", *arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    output, _ = await child.communicate()
    assert child.returncode is not None
    return Done(child.returncode, output.decode())


@pytest.fixture
async def counter(tmp_path: Path) -> AsyncIterator[Counter]:
    (tmp_path / "devices").mkdir()
    async with contextlib.AsyncExitStack() as stack:
        env = await stack.enter_async_context(control_env(tmp_path))
        node = await stack.enter_async_context(node_in(tmp_path / "devices"))
        made = Counter(env, node, tmp_path)
        more = DeviceRoutes(node.operators).table()
        await stack.enter_async_context(ControlServer(path=made.socket, requests=env.requests, more=more))
        yield made


async def test_list_returns_every_verdict(counter: Counter) -> None:
    counter.node.found(FindingKind.XID, ActionClass.REPLACE, device=GPU, code="64")
    (verdict,) = await devices.listed(socket=counter.socket)
    assert (verdict["device"], verdict["health"], verdict["reason"]) == (outside.GPU.uuid, "Unhealthy", "Xid64")


async def test_clear_command_clears_the_device(counter: Counter) -> None:
    counter.node.found(FindingKind.XID, ActionClass.REPLACE, device=GPU, code="64")
    done = await counter.run("clear", "0")
    assert (done.exit_code, done.output) == (0, "GPU-0: cleared Xid 64\n")
    again = await counter.run("clear", "0", "--json")
    assert json.loads(again.output) == {"device": "GPU-0", "over": [], "still_seen": []}


async def test_clear_prints_remaining_faults_and_sets_exit_code(counter: Counter) -> None:
    counter.node.found(FindingKind.ROW_REMAP_FAILED, ActionClass.REPLACE, device=GPU)
    done = await counter.run("clear", "GPU-0")
    assert (done.exit_code, done.output) == (
        1,
        "GPU-0: no fault was recorded\n  still observed, not cleared: RowRemapFailed\n",
    )


async def test_unknown_device_is_reported_in_one_line(counter: Counter) -> None:
    done = await counter.run("clear", "7")
    assert (done.exit_code, done.output) == (
        1,
        "kubemend clear: device 7 not found on this node. Its devices: GPU-0\n",
    )


async def test_command_runs_while_the_driver_is_released(counter: Counter, tmp_path: Path) -> None:
    note = tmp_path / "ran"
    counter.node.handles.on_release = lambda: note.write_text("released\n")
    script = f"open({str(note)!r}, 'a').write('ran\\n'); raise SystemExit(7)"
    done = await counter.run("release-devices", sys.executable, "-c", script)
    assert (done.exit_code, note.read_text()) == (7, "released\nran\n")
    assert counter.node.handles.held
    assert counter.node.handles.resumed.is_set()


async def test_command_that_a_signal_ends_has_the_shells_exit_code(counter: Counter) -> None:
    done = await counter.run("release-devices", sys.executable, "-c", "import os; os.kill(os.getpid(), 9)")
    assert done.exit_code == 137


async def _running(counter: Counter, script: str) -> asyncio.subprocess.Process:
    """Run a Python program while the driver is released; return once it has printed a line."""
    where = f"--state-dir={counter.socket.parent}"
    line = (sys.executable, "-m", "kubemend.agent.cli", "release-devices", where, sys.executable, "-u", "-c", script)
    child = await asyncio.create_subprocess_exec(*line, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdout is not None
    assert await child.stdout.readline() == b"begun\n"
    return child


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
async def test_signal_ends_the_command_and_reopens_the_driver(counter: Counter, number: signal.Signals) -> None:
    """The operator's session is lost, or something stops the command: the driver would be closed for an hour."""
    default = f"signal.signal({number.value}, signal.SIG_DFL)"  # under nohup(1) it is ignored, and inherited like that
    child = await _running(counter, f"import signal; {default}; print('begun'); signal.pause()")
    assert not counter.node.handles.held
    child.send_signal(number)
    assert await child.wait() == 128 + number
    assert counter.node.handles.held


async def test_interrupt_kills_no_command_that_survives_it(counter: Counter) -> None:
    """A terminal sends it to the command as well, and one that resets a GPU decides by itself when it can end."""
    child = await _running(counter, "print('begun'); input(); print('ended')")
    assert child.stdout is not None
    child.send_signal(signal.SIGINT)
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        output, _ = await child.communicate(b"\n")
    assert (output, child.returncode) == (b"ended\n", 0)
    assert counter.node.handles.held


async def test_commands_own_options_are_not_read(counter: Counter) -> None:
    done = await counter.run("release-devices", sys.executable, "-c", "import sys; print(sys.argv)", "--json", "--help")
    assert done.output == "['-c', '--json', '--help']\n"


async def test_misspelled_option_is_not_run_as_a_command(counter: Counter) -> None:
    done = await counter.run("release-devices", "--fro", "5m")
    assert done.exit_code == 2
    assert "No such option" in done.output


@pytest.mark.parametrize(("given", "seconds"), [((), 3600.0), (("--for", "5m"), 300.0)])
async def test_driver_is_released_for_an_hour_while_a_command_runs(
    counter: Counter, monkeypatch: pytest.MonkeyPatch, given: tuple[str, ...], seconds: float
) -> None:
    asked: list[float] = []
    release = counter.node.operators.release

    async def noted(*, seconds: float, timeout: float, operator: str) -> None:
        asked.append(seconds)
        await release(seconds=seconds, timeout=timeout, operator=operator)

    monkeypatch.setattr(counter.node.operators, "release", noted)
    await counter.run("release-devices", *given, "true")
    assert asked == [seconds]


@pytest.mark.parametrize("time", ["2h", "0s"])
async def test_time_beyond_limit_is_refused(counter: Counter, time: str) -> None:
    done = await counter.run("release-devices", "--for", time)
    assert (done.exit_code, counter.node.handles.held) == (2, True)
    assert f"--for {time}; must be more than 0s and at most 1h" in done.output


async def test_missing_command_leaves_driver_unchanged(counter: Counter) -> None:
    done = await counter.run("release-devices", "no-such-command")
    assert (done.exit_code, counter.node.handles.held) == (2, True)
    assert "cannot run no-such-command: No such file or directory" in done.output


async def test_driver_stays_released_until_resume(counter: Counter) -> None:
    done = await counter.run("release-devices", "--for", "1h")
    assert (done.exit_code, counter.node.handles.held) == (0, False)
    assert (await counter.run("release-devices", "--resume")).exit_code == 0
    assert counter.node.handles.held


async def test_hanging_driver_is_reported_with_hint(counter: Counter) -> None:
    counter.node.handles.hangs = True
    done = await counter.run("release-devices")
    assert done.exit_code == 1
    assert "a call into the driver hangs. Reboot the node." in done.output


async def test_missing_agent_is_reported_with_hint(tmp_path: Path) -> None:
    done = await run("clear", "0", f"--state-dir={tmp_path}")
    assert done.exit_code == 3
    assert "Is it running on this node" in done.output


@pytest.mark.parametrize(
    ("path", "body"),
    [
        pytest.param(devices.CLEAR, b"{", id="no-json"),
        pytest.param(devices.CLEAR, b"[]", id="no-object"),
        pytest.param(devices.CLEAR, b"{}", id="no-device"),
        pytest.param(devices.CLEAR, b'{"device": 3}', id="no-name"),
        pytest.param(devices.CLEAR, b'{"device": "0", "force": true}', id="unknown-field"),
        pytest.param(devices.RELEASE, b'{"seconds": -1}', id="no-time"),
        pytest.param(devices.RELEASE, b'{"seconds": 1e999}', id="no-end"),
        pytest.param(devices.RELEASE, b'{"seconds": 3601}', id="too-long"),
        pytest.param(devices.RELEASE, b'{"seconds": true}', id="no-number"),
    ],
)
async def test_invalid_device_request_is_refused_in_one_line(counter: Counter, path: str, body: bytes) -> None:
    async with (
        aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(counter.socket)), trust_env=False) as session,
        session.post(f"http://agent{path}", data=body) as answer,
    ):
        refusal: dict[str, Any] = await answer.json()
    assert answer.status == 400
    assert len(refusal["error"].splitlines()) == 1


async def test_client_errors_keep_their_types(counter: Counter) -> None:
    with pytest.raises(client.NotAcceptedError, match="field device"):
        await client.ask(devices.CLEAR, body={"device": ""}, socket=counter.socket)
