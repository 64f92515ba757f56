"""The agent orders restarts, on the socket of a launcher in a PID namespace of its own, as in a container."""

import contextlib
import functools
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from kubemend.agent.clients.launcher import exchange
from kubemend.agent.clients.launcher.exchange import LauncherAddress, NoAnswerError
from kubemend.agent.model.workloads import ContainerId, ContainerRef, PodRef, PodUid, SandboxId
from kubemend.agent.restart import intents, process
from kubemend.agent.restart.process import Launcher, NoSpare, State
from launcher import kubemend_run
from tests import eventually
from tests.commands.launcher.running import AFTER_A_HELPER, DAEMONIZE, Running, alive

CONTAINER = ContainerId("c" * 64)
NAMESPACE = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
BOTH = pytest.mark.parametrize("spare", [True, False], ids=["spare", "cold"])


def intent(program: int = 1, *, order: str = "order-1", grace: float = 0.0) -> intents.ProcessIntent:
    ref = ContainerRef(PodRef("default", "trainer-0", PodUid("uid-1")), "trainer")
    return intents.ProcessIntent(
        order, ref, SandboxId("s"), CONTAINER, program, reason="Xid31", created_at=0.0, grace_seconds=grace
    )


class Agent:
    """The agent's side, with the launcher's process as the container's main one."""

    def __init__(self, launcher: Running, connections: contextlib.ExitStack) -> None:
        self.launcher = launcher
        self._connections = connections
        self._where: LauncherAddress | None = None

    @property
    def main(self) -> int:
        """Return the launcher's pid outside its namespace."""
        return next(each.pid for each in kubemend_run.descendants(kubemend_run.processes(), self.launcher.pid))

    async def address(self) -> LauncherAddress:
        """Wait until the launcher listens on its socket: the file is there before."""
        if self._where is None:
            await eventually.true(self._listens)
            self._where = LauncherAddress(self.main, CONTAINER, str(self.launcher.folder / "cache"), Path("/proc"))
        return self._where

    def _listens(self) -> bool:
        with socket.socket(socket.AF_UNIX) as trial:
            found = (self.launcher.folder / "cache").glob("launcher-*.sock")
            return any(trial.connect_ex(str(each)) == 0 for each in found)

    async def ask(self, request: bytes = process.STATUS_REQUEST, *passing: State, timeout: float = 30.0) -> Launcher:
        address = await self.address()
        states = functools.partial(exchange.in_states, frozenset(passing))
        return exchange.exchange(address, request, passing=states, timeout=timeout, least=30.0)

    async def follow(self, *, hold: float = 30.0) -> "Follower":
        return Follower(self._connections.enter_context(connection(await self.address())), hold=hold)

    async def stop(self, order: intents.ProcessIntent) -> Launcher:
        return await self.ask(process.stop_request(order), State.STOPPING)

    async def release(self, order: intents.ProcessIntent) -> Launcher:
        return await self.ask(process.release_request(order), State.STOPPING, State.HELD)


@pytest.fixture
def agent(launcher: Running, monkeypatch: pytest.MonkeyPatch) -> Iterator[Agent]:
    """An agent that takes every process for one of the container."""
    monkeypatch.setattr("kubemend.agent.health.cgroup_paths.container_id", lambda _: CONTAINER)
    with contextlib.ExitStack() as connections:
        yield Agent(launcher, connections)


@pytest.mark.pythons
@BOTH
async def test_a_restart_kills_the_program_and_holds_the_next_one_until_the_release(agent: Agent, spare: bool) -> None:
    launcher = agent.launcher
    launcher.start(*(() if spare else ("--no-spare",)), under=NAMESPACE)
    await launcher.nth(1, "begin")
    if spare:
        await launcher.spare()
    running = await agent.ask()
    assert (running.state, running.program, running.order, running.restarts) == (State.RUNNING, 1, "", 0)
    held = await agent.stop(intent())
    assert (held.state, held.program, held.order) == (State.HELD, 1, "order-1")
    assert exchange.remains(await agent.address(), spare=held.spare, pids=beneath(agent.main)) == ()
    assert len(launcher.events("begin")) == 1
    again = await agent.release(intent())
    assert (again.state, again.program, again.order, again.restarts) == (State.RUNNING, 2, "order-1", 1)
    await launcher.nth(2, "begin")
    assert len(set(launcher.events("later"))) == 2  # the spare has imported everything, or the second program has
    launcher.order("print(os.environ['KUBEMEND_RESTART_COUNT'], os.environ['KUBEMEND_RESTART_REASON']); sys.exit(0)")
    assert await launcher.ended() == 0
    assert launcher.stdout() == "1 Xid31\n"


def beneath(pid: int) -> frozenset[int]:
    """Return a process and those below it."""
    return frozenset(each.pid for each in kubemend_run.descendants(kubemend_run.processes(), pid)) | {pid}


async def test_the_answer_has_the_state_of_the_spare(agent: Agent) -> None:
    launcher = agent.launcher
    name = "tr\x01p"
    launcher.write(f"{name}.py", "import os\nif os.path.exists('trap'): os._exit(9)\nopen('trap', 'w').close()\n")
    launcher.start(under=NAMESPACE)
    await launcher.nth(1, "begin")
    await launcher.said("the spare is ready")
    ready = await agent.ask()
    assert (ready.spare_state, ready.spare_reason, ready.no_spare) == (process.Spare.READY, NoSpare.NOT_DUE, "")
    spare = next(each for each in below(agent) if each.started == ready.spare)
    assert ready.spare_memory == pytest.approx(kubemend_run.resident(spare.pid), rel=0.5)
    launcher.order(f"__import__({name!r})")
    await launcher.said("it ended with exit code 9")
    found = await agent.ask()
    assert (found.spare_reason, found.no_spare) in (
        (NoSpare.ENDED, "it ended with exit code 9, after the import of tr?p"),
        (NoSpare.NOT_DUE, ""),  # the next spare has begun
    )


@pytest.mark.parametrize(
    ("options", "python", "command", "reason"),
    [
        (["--no-spare"], ["train.py"], None, NoSpare.DISABLED),
        ([], ["-S", "train.py"], None, NoSpare.UNSUPPORTED),
        ([], [], ["sleep", "600"], NoSpare.NOT_PYTHON),
    ],
)
async def test_a_launcher_without_spares_reports_why(
    agent: Agent, options: list[str], python: list[str], command: list[str] | None, reason: NoSpare
) -> None:
    agent.launcher.start(*options, python=python, command=command, under=NAMESPACE)
    found = await agent.ask()
    assert (found.spare_state, found.spare_reason, found.spare_memory) == (process.Spare.NONE, reason, 0)
    assert found.no_spare


async def test_a_spare_that_is_killed_is_reported_with_the_reason(agent: Agent) -> None:
    launcher = agent.launcher
    launcher.start(under=NAMESPACE)
    await launcher.nth(1, "begin")
    await launcher.said("the spare is ready")
    ready = await agent.ask()
    os.kill(next(each.pid for each in below(agent) if each.started == ready.spare), signal.SIGKILL)
    await launcher.said("the spare is dropped")
    found = await agent.ask()
    assert (found.spare_state, found.spare_reason) == (process.Spare.NONE, NoSpare.KILLED)


@pytest.mark.parametrize(
    ("trap", "options", "reason"),
    [
        ("huge = bytearray(b'1') * (64 << 20)", ["--spare-memory", "50Mi"], NoSpare.TOO_MUCH_MEMORY),
        (
            "import subprocess; subprocess.Popen(['sleep', '600'], stdout=open('nvidia0', 'w'))",
            [],
            NoSpare.DEVICE_OPENED,
        ),
    ],
)
async def test_a_spare_that_takes_too_much_is_dropped_and_reported(
    agent: Agent, trap: str, options: list[str], reason: NoSpare
) -> None:
    launcher = agent.launcher
    launcher.write("trap.py", f"if 'begin' in open('events').read():\n    {trap}\n")
    launcher.program("import trap")
    launcher.start("--spare-devices", f"{launcher.folder}/nvidia", *options, under=NAMESPACE)
    await launcher.nth(1, "begin")
    await launcher.said("the spare is dropped")
    found = await agent.ask()
    assert (found.spare_state, found.spare_reason) == (process.Spare.NONE, reason)


async def test_nothing_that_the_program_has_started_is_left(agent: Agent) -> None:
    launcher = agent.launcher
    launcher.start(under=NAMESPACE)
    await launcher.nth(1, "begin")
    launcher.order(DAEMONIZE)
    daemon = await launcher.nth(1, "daemon")
    launcher.order("events.say('waited')")
    assert await launcher.nth(1, "waited") != daemon, "the process between program and daemon has ended"
    await launcher.spare()
    before = beneath(agent.main)
    assert len(exchange.remains(await agent.address(), spare=(await agent.ask()).spare, pids=before)) == 2
    held = await agent.stop(intent())
    assert exchange.remains(await agent.address(), spare=held.spare, pids=before | beneath(agent.main)) == ()
    assert exchange.remains(await agent.address(), spare=0, pids=beneath(agent.main)) != ()  # the spare


async def test_what_a_script_has_started_before_the_launcher_does_not_count_as_the_programs(agent: Agent) -> None:
    launcher = agent.launcher
    launcher.start("--no-spare", under=(*NAMESPACE, *AFTER_A_HELPER))
    await launcher.nth(1, "begin")
    held = await agent.stop(intent())
    (helper,) = below(agent)
    found = functools.partial(exchange.remains, await agent.address(), spare=0, pids=beneath(agent.main))
    assert (found(others=held.others), found()) == ((), (helper.pid,))
    assert (await agent.release(intent())).program == 2


async def test_a_program_whose_first_thread_has_ended_is_not_dead(agent: Agent) -> None:
    launcher = agent.launcher
    launcher.start("--no-spare", under=NAMESPACE)
    await launcher.nth(1, "begin")
    child = "import ctypes, threading, time; threading.Thread(target=time.sleep, args=(600,)).start(); "
    child += "open('on', 'w').close(); ctypes.CDLL(None).syscall(60, 0)"
    launcher.order(f"import subprocess; subprocess.Popen([sys.executable, '-c', {child!r}])")
    await eventually.true(lambda: any(each.state == "S" and is_zombie(each.pid) for each in below(agent)))
    assert len(exchange.remains(await agent.address(), spare=0, pids=beneath(agent.main))) == 2
    await agent.stop(intent())
    assert not below(agent)


def below(agent: Agent) -> list[kubemend_run.Process]:
    return kubemend_run.descendants(kubemend_run.processes(), agent.main)


def is_zombie(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"


async def test_repeating_orders_changes_nothing(agent: Agent) -> None:
    launcher = agent.launcher
    launcher.start("--no-spare", under=NAMESPACE)
    await launcher.nth(1, "begin")
    assert [(await agent.stop(intent())).state for _ in range(2)] == [State.HELD] * 2
    assert [(await agent.release(intent())).program for _ in range(2)] == [2, 2]
    second = await launcher.nth(2, "begin")
    assert [(await each(intent())).program for each in (agent.stop, agent.release)] == [2, 2]
    assert alive(second)
    assert len(launcher.events("begin")) == 2


async def test_order_that_is_repeated_after_its_release_does_not_kill_the_next_program(agent: Agent) -> None:
    """The next agent repeats it while the spare finishes its imports."""
    launcher = agent.launcher
    os.mkfifo(launcher.folder / "gate")
    waits = "if os.path.exists('spare'): events.say('waits'), open('gate').read()\n"
    launcher.write("gated.py", "import events, os\n" + waits + "open('spare', 'w').close()\n")
    launcher.program("import gated")
    launcher.start(under=NAMESPACE)
    await launcher.nth(1, "begin")
    await launcher.nth(1, "waits")
    await agent.stop(intent())
    for request in (process.release_request(intent()), process.stop_request(intent())):
        assert (await agent.ask(request)).state is State.HELD
    (launcher.folder / "gate").write_text("")
    running = await agent.ask(process.STATUS_REQUEST, State.HELD)
    assert (running.state, running.program, running.order) == (State.RUNNING, 2, "order-1")
    launcher.order("sys.exit(0)")
    assert await launcher.ended() == 0
    assert len(launcher.events("begin")) == 2


async def test_an_order_for_another_program_than_the_one_that_runs_changes_nothing(agent: Agent) -> None:
    agent.launcher.start("--no-spare", under=NAMESPACE)
    first = await agent.launcher.nth(1, "begin")
    for program in (0, 2):
        answer = await agent.stop(intent(program))
        assert (answer.state, answer.program, answer.order) == (State.RUNNING, 1, "")
    assert (await agent.release(intent())).order == ""
    assert alive(first)


async def test_another_agents_order_takes_over_the_held_program(agent: Agent) -> None:
    agent.launcher.start("--no-spare", under=NAMESPACE)
    await agent.launcher.nth(1, "begin")
    await agent.stop(intent())
    other = intent(order="order-2")
    assert (await agent.stop(other)).order == "order-2"
    assert (await agent.ask(process.release_request(intent()))).state is State.HELD
    assert (await agent.release(other)).state is State.RUNNING


async def test_a_program_that_is_never_released_is_started_after_the_hold(agent: Agent) -> None:
    agent.launcher.start("--no-spare", under=NAMESPACE)
    await agent.launcher.nth(1, "begin")
    order = process.stop_request(intent()).replace(b'"hold": 30.0', b'"hold": 0.1')
    await agent.ask(order, State.STOPPING)
    await agent.launcher.nth(2, "begin")
    await agent.launcher.said("the agent has not released the next program in time")


@pytest.mark.parametrize("grace", [0.0, 3.0], ids=["killed", "exits-with-0"])
async def test_a_discarded_program_does_not_begin_and_the_container_ends_as_killed(agent: Agent, grace: float) -> None:
    """Also a program that has exited with 0 at the agent's SIGTERM has not completed."""
    launcher = agent.launcher
    launcher.start("--no-spare", under=NAMESPACE)
    await launcher.nth(1, "begin")
    launcher.order("signal.signal(15, lambda *_: sys.exit(0)); events.say('ready')")
    await launcher.nth(1, "ready")
    order = intent(grace=grace)
    await agent.stop(order)
    with connection(await agent.address()) as discard:
        discard.sendall(process.discard_request(intent(order="another")))
        discard.recv(4096)
        discard.sendall(process.discard_request(order))
        assert await launcher.ended() == 128 + signal.SIGKILL
    assert len(launcher.events("begin")) == 1
    assert "the container: nothing may start on its devices" in launcher.stderr()


async def test_a_program_that_ignores_sigterm_is_killed_after_its_grace_period(agent: Agent) -> None:
    agent.launcher.start("--no-spare", under=NAMESPACE)
    await agent.launcher.nth(1, "begin")
    agent.launcher.order("signal.signal(15, lambda *_: events.say('term')); events.say('ready')")
    await agent.launcher.nth(1, "ready")
    assert (await agent.stop(intent(grace=3.0))).state is State.HELD
    assert len(agent.launcher.events("term")) == 1


async def test_a_program_that_has_completed_does_not_run_again(agent: Agent) -> None:
    """The order arrives when the program has exited with 0, and the launcher has not noticed yet."""
    launcher = agent.launcher
    launcher.start("--no-spare", under=NAMESPACE)
    await launcher.nth(1, "begin")
    address, main = await agent.address(), agent.main
    os.kill(main, signal.SIGSTOP)
    program = below(agent)[0]
    launcher.order("sys.exit(0)")
    await eventually.true(lambda: not alive(program.pid))
    with connection(address) as order:
        order.sendall(process.stop_request(intent()))
        os.kill(main, signal.SIGCONT)
        assert await launcher.ended() == 0
    assert len(launcher.events("begin")) == 1


def connection(address: LauncherAddress) -> socket.socket:
    """Connect to the launcher's socket."""
    found = socket.socket(socket.AF_UNIX)
    path = next(Path(address.folder).glob("launcher-*.sock"))
    found.settimeout(30.0)
    found.connect(str(path))
    return found


async def test_a_stop_of_the_container_ends_a_held_program(agent: Agent) -> None:
    agent.launcher.start("--no-spare", under=NAMESPACE)
    await agent.launcher.nth(1, "begin")
    await agent.stop(intent())
    os.kill(agent.main, signal.SIGTERM)
    assert await agent.launcher.ended() == 128 + signal.SIGTERM
    assert list((agent.launcher.folder / "cache").glob("*.sock")) == []


async def test_a_stop_of_the_container_during_the_grace_period_waits_for_the_program(agent: Agent) -> None:
    launcher = agent.launcher
    launcher.start("--no-spare", under=NAMESPACE)
    await launcher.nth(1, "begin")
    launcher.order("signal.signal(15, lambda *_: events.say('term')); events.say('ready')")
    await launcher.nth(1, "ready")
    with connection(await agent.address()) as order:
        order.sendall(process.stop_request(intent(grace=600.0)))
        await launcher.nth(1, "term")
        os.kill(agent.main, signal.SIGTERM)
        await launcher.nth(2, "term")
        launcher.order("sys.exit(7)")
        assert await launcher.ended() == 7


async def test_processes_in_the_container_are_not_obeyed(agent: Agent) -> None:
    launcher = agent.launcher
    launcher.start("--no-spare", under=NAMESPACE)
    await launcher.nth(1, "begin")
    await agent.address()
    launcher.order(
        "import glob, socket\n"
        "with socket.socket(socket.AF_UNIX) as peer:\n"
        "    peer.connect(glob.glob('cache/*.sock')[0])\n"
        "    try:\n"
        f"        peer.sendall({process.stop_request(intent())!r})\n"
        "        answer = peer.recv(100)\n"
        "    except OSError:\n"
        "        answer = b''\n"
        "events.say('answered' if answer else 'closed')"
    )
    await launcher.nth(1, "closed")
    assert (await agent.ask()).order == ""


@pytest.mark.parametrize(
    "request_",
    [b"\n", b"[]\n", b"[" * 4000 + b"\n", b'{"do": "kill"}\n', b"x" * 5000, b'{"do": "stop", "order": "a b"}\n'],
    ids=["empty", "list", "nested", "unknown", "long", "space"],
)
async def test_requests_that_are_not_valid_end_their_connection_only(agent: Agent, request_: bytes) -> None:
    agent.launcher.start("--no-spare", under=NAMESPACE)
    await agent.launcher.nth(1, "begin")
    with connection(await agent.address()) as other:
        other.sendall(request_)
        with contextlib.suppress(ConnectionResetError):  # it has not read everything
            assert other.recv(100) == b""
    assert (await agent.ask()).state is State.RUNNING


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("os.unlink(path)", "the launcher has no socket in"),
        ("os.unlink(path); s = socket.socket(1); s.bind(path); s.listen()", "another process than the launcher"),
        ("os.unlink(path); open(path, 'w').close()", "no connection to the launcher: Connection refused"),
        ("os.unlink(path); os.symlink('/dev/zero', path)", "no connection to the launcher: Connection refused"),
    ],
    ids=["removed", "claimed", "file", "link"],
)
async def test_a_program_that_takes_the_socket_gets_no_orders(agent: Agent, change: str, reason: str) -> None:
    agent.launcher.start("--no-spare", under=NAMESPACE)
    await agent.launcher.nth(1, "begin")
    await agent.address()
    agent.launcher.order(f"import glob, socket; path = glob.glob('cache/*.sock')[0]; {change}; events.say('done')")
    await agent.launcher.nth(1, "done")
    with pytest.raises(NoAnswerError, match=reason):
        await agent.ask()


async def test_sockets_of_earlier_launchers_are_removed(agent: Agent) -> None:
    cache = agent.launcher.folder / "cache"
    cache.mkdir()
    with socket.socket(socket.AF_UNIX) as left, socket.socket(socket.AF_UNIX) as other:
        left.bind(str(cache / "launcher-1.sock"))
        other.bind(str(cache / "launcher-2.sock"))
        other.listen()
        left.close()
        (cache / "launcher-3.socket").touch()
        agent.launcher.start("--no-spare", under=NAMESPACE)
        await agent.launcher.nth(1, "begin")
        names = {each.name for each in cache.iterdir()}
    assert names >= {"launcher-2.sock", "launcher-3.socket"}
    assert "launcher-1.sock" not in names


async def test_another_launcher_that_runs_in_the_container_leaves_the_socket_to_the_first(agent: Agent) -> None:
    """As one that a person tries with `kubectl exec`."""
    launcher = agent.launcher
    launcher.start("--no-spare", under=NAMESPACE)
    await launcher.nth(1, "begin")
    await agent.address()
    command = [launcher.python, kubemend_run.__file__, "--no-spare", "--", "true"]
    launcher.order(f"import subprocess; subprocess.run({command}, check=True); events.say('ended')")
    await launcher.nth(1, "ended")
    assert (await agent.ask()).program == 1


def follow(hold: float = 30.0) -> bytes:
    """Return the request of an agent that decides about failures."""
    return process.follow_request(hold=hold)


class Follower:
    """An agent that follows a launcher."""

    def __init__(self, peer: socket.socket, *, hold: float) -> None:
        self._peer = peer
        self._peer.sendall(follow(hold))
        self._text = b""

    def until(self, *states: State) -> Launcher:
        """Return the first state that is one of these."""
        while True:
            *lines, self._text = self._text.split(b"\n")
            for number, line in enumerate(lines):
                found = process.answer(line)
                if found.state in states:
                    self._text = b"\n".join([*lines[number + 1 :], self._text])
                    return found
            self._text += self._peer.recv(4096)


async def failed(agent: Agent, *options: str, hold: float = 30.0) -> Follower:
    """Start a launcher, follow it, and have its program fail; return the follower when it knows of it."""
    agent.launcher.start("--no-spare", *options, under=NAMESPACE)
    await agent.launcher.nth(1, "begin")
    follower = await agent.follow(hold=hold)
    follower.until(State.RUNNING)
    agent.launcher.order("sys.exit(3)")
    found = follower.until(State.FAILED, State.RESTARTING)
    assert (found.state, found.program, found.code) == (State.FAILED, 1, 3)
    return follower


@pytest.mark.parametrize("limit", ["0", "10"])
async def test_a_failure_that_an_agent_follows_waits_for_its_order(agent: Agent, limit: str) -> None:
    follower = await failed(agent, "--max-restarts", limit)
    assert len(agent.launcher.events("begin")) == 1
    assert (await agent.stop(intent())).state is State.HELD
    assert (await agent.release(intent())).state is State.RUNNING
    assert follower.until(State.RUNNING).program == 2
    await agent.launcher.nth(2, "begin")
    agent.launcher.order("print(os.environ['KUBEMEND_RESTART_REASON']); sys.exit(0)")
    assert await agent.launcher.ended() == 0
    assert agent.launcher.stdout() == "Xid31\n"


async def test_what_a_failed_program_has_started_is_dead_before_the_next_one_begins(agent: Agent) -> None:
    agent.launcher.start("--no-spare", under=NAMESPACE)
    await agent.launcher.nth(1, "begin")
    agent.launcher.order(DAEMONIZE)
    await agent.launcher.nth(1, "daemon")
    follower = await agent.follow()
    agent.launcher.order("sys.exit(3)")
    follower.until(State.FAILED)
    assert len(below(agent)) == 1  # the daemon
    assert (await agent.stop(intent())).state is State.HELD
    assert not below(agent)


async def test_a_failure_that_is_left_to_the_launcher_is_restarted_by_its_own_rule(agent: Agent) -> None:
    follower = await failed(agent)
    await agent.ask(process.verdict_request(1, ends=False))
    assert follower.until(State.RUNNING).program == 2
    await agent.launcher.nth(2, "begin")
    agent.launcher.order("print(os.environ['KUBEMEND_RESTART_REASON']); sys.exit(0)")
    assert await agent.launcher.ended() == 0
    assert agent.launcher.stdout() == "Exit3\n"


@pytest.mark.parametrize(("limit", "ends"), [("10", True), ("0", False), ("0", True)])
async def test_a_failure_ends_the_container_by_the_agents_verdict_or_the_launchers_rule(
    agent: Agent, limit: str, ends: bool
) -> None:
    await failed(agent, "--max-restarts", limit)
    with connection(await agent.address()) as verdict:
        verdict.sendall(process.verdict_request(2, ends=True))  # about another program
        verdict.recv(4096)
        assert len(below(agent)) == 0
        verdict.sendall(process.verdict_request(1, ends=ends))
        assert await agent.launcher.ended() == 3
    assert len(agent.launcher.events("begin")) == 1


async def test_a_failure_without_a_decision_is_restarted_by_the_launchers_own_rule(agent: Agent) -> None:
    await failed(agent, hold=0.1)
    await agent.launcher.nth(2, "begin")
    await agent.launcher.said("the agent has not decided in time")


@pytest.mark.parametrize(
    ("code", "options"), [("sys.exit(0)", ()), ("sys.exit(42)", ("--fatal-exit-codes", "42"))], ids=["done", "fatal"]
)
async def test_an_end_that_is_final_does_not_wait_for_the_agent(
    agent: Agent, code: str, options: tuple[str, ...]
) -> None:
    agent.launcher.start("--no-spare", *options, under=NAMESPACE)
    await agent.launcher.nth(1, "begin")
    follower = await agent.follow(hold=600.0)
    follower.until(State.RUNNING)
    agent.launcher.order(code)
    assert await agent.launcher.ended() in (0, 42)


async def test_a_failure_does_not_wait_for_an_agent_whose_lease_is_over(agent: Agent) -> None:
    agent.launcher.start("--no-spare", under=NAMESPACE)
    await agent.launcher.nth(1, "begin")
    await agent.ask(follow().replace(b'"lease": 60.0', b'"lease": 0.0'))
    agent.launcher.order("sys.exit(3)")
    await agent.launcher.nth(2, "begin")
    assert "in time" not in agent.launcher.stderr()


async def test_a_stop_of_the_container_ends_the_wait_for_a_decision(agent: Agent) -> None:
    await failed(agent, hold=600.0)
    os.kill(agent.main, signal.SIGTERM)
    assert await agent.launcher.ended() == 128 + signal.SIGTERM
    assert len(agent.launcher.events("begin")) == 1


async def test_a_program_that_fails_in_the_moment_of_the_order_is_held(agent: Agent) -> None:
    """In a gang the others often fail together with the first one. ``--max-restarts 0`` must not end the container."""
    launcher = agent.launcher
    launcher.start("--no-spare", "--max-restarts", "0", under=NAMESPACE)
    await launcher.nth(1, "begin")
    follower, main = await agent.follow(), agent.main
    follower.until(State.RUNNING)
    os.kill(main, signal.SIGSTOP)
    program = below(agent)[0]
    launcher.order("sys.exit(3)")
    await eventually.true(lambda: not alive(program.pid))
    with connection(await agent.address()) as order:
        order.sendall(process.stop_request(intent()))
        os.kill(main, signal.SIGCONT)
        while (await agent.stop(intent())).state is not State.HELD:  # the first order came too late
            pass
    assert (await agent.release(intent())).program == 2
    await launcher.nth(2, "begin")


async def test_a_follower_learns_of_the_spare(agent: Agent) -> None:
    agent.launcher.start(under=NAMESPACE)
    await agent.launcher.nth(1, "begin")
    follower = await agent.follow(hold=0.0)
    while follower.until(State.RUNNING).spare_state is not process.Spare.READY:
        pass
