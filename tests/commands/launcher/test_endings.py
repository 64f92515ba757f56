"""The launcher ends as the program ended, and behaves as the program alone would."""

import contextlib
import os
import signal
import sys
import time
import tomllib
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from launcher import kubemend_run
from tests import eventually
from tests.commands.launcher.running import DAEMONIZE, Running, alive, writing

NO_RESTARTS = ("--max-restarts", "0")


@pytest.mark.parametrize(
    ("code", "expected"), [("sys.exit(0)", 0), ("sys.exit(7)", 7), ("os.kill(os.getpid(), 9)", 137)]
)
async def test_the_exit_code_is_the_programs(launcher: Running, code: str, expected: int) -> None:
    launcher.start(*NO_RESTARTS)
    launcher.order(code)
    assert await launcher.ended() == expected


@pytest.mark.parametrize(
    "number",
    [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGALRM, signal.SIGPWR, signal.SIGRTMAX],
)
async def test_a_signal_reaches_the_program(launcher: Running, number: int) -> None:
    # A test run below nohup ignores SIGHUP, and a launcher leaves ignored signals ignored.
    launcher.start(*NO_RESTARTS, under=["env", f"--default-signal={signal.Signals(number).name}"])
    program = await launcher.nth(1, "begin")
    launcher.order(f"signal.signal({number}, lambda *_: sys.exit(5)); events.say('ready')")
    assert await launcher.nth(1, "ready") == program
    launcher.signal(number)
    assert await launcher.ended() == 5


@pytest.mark.pythons
async def test_a_program_that_sigterm_kills_is_not_restarted(launcher: Running) -> None:
    launcher.start()
    await launcher.nth(1, "begin")
    launcher.signal(signal.SIGTERM)
    assert await launcher.ended() == 143
    assert len(launcher.events("begin")) == 1


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGRTMIN + 3])
async def test_a_program_that_the_images_stop_signal_kills_is_not_restarted(launcher: Running, number: int) -> None:
    launcher.start("--stop-signals", f"TERM,{number}")
    await launcher.nth(1, "begin")
    launcher.signal(number)
    assert await launcher.ended() == 128 + number
    assert len(launcher.events("begin")) == 1


async def test_a_program_that_ignores_sigterm_runs_on_and_is_not_restarted_later(launcher: Running) -> None:
    launcher.start()
    program = await launcher.nth(1, "begin")
    launcher.order("signal.signal(15, lambda *_: events.say('ignored')); events.say('ready')")
    await launcher.nth(1, "ready")
    launcher.signal(signal.SIGTERM)
    assert await launcher.nth(1, "ignored") == program
    launcher.order("sys.exit(3)")
    assert await launcher.ended() == 3
    assert launcher.events("begin") == [program]


CATCHING = ("env", "--default-signal=INT", "--default-signal=QUIT")
"""A shell that starts the tests in the background ignores these, and a launcher leaves ignored signals ignored."""
_SURVIVES = "signal.signal({0}, lambda *_: events.say('survived')); events.say('ready')"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGQUIT])
async def test_program_that_survives_an_interrupt_is_restarted_when_it_fails_later(
    launcher: Running, number: int
) -> None:
    """Its spare begins after that, too."""
    launcher.start("--spare-after", "1s", under=CATCHING, changed="kubemend_run._INTERRUPT_LASTS = 0.1")
    await launcher.nth(1, "begin")
    launcher.order(_SURVIVES.format(int(number)))
    await launcher.nth(1, "ready")
    launcher.signal(number)
    await launcher.said(f"the program has survived signal {int(number)} for 0.1 s: failures are restarted")
    spare = await launcher.spare()
    launcher.order("sys.exit(3)")
    assert await launcher.nth(2, "begin") == spare
    launcher.order("sys.exit(0)")
    assert await launcher.ended() == 0


_BRIEF = "kubemend_run._INTERRUPT_LASTS = 0.0"


@pytest.mark.parametrize(
    ("signals", "options", "changed"),
    [
        ([signal.SIGINT], [], ""),
        ([signal.SIGINT], ["--stop-signals", "TERM,INT"], _BRIEF),
        ([signal.SIGTERM], [], _BRIEF),
        ([signal.SIGTERM, signal.SIGINT], [], _BRIEF),
    ],
)
async def test_program_that_fails_while_it_is_stopped_is_not_restarted(
    launcher: Running, signals: list[int], options: list[str], changed: str
) -> None:
    """After SIGTERM also later than an interrupt lasts: the SIGINT that follows changes nothing."""
    launcher.start("--spare-after", "1h", *options, under=CATCHING, changed=changed)
    await launcher.nth(1, "begin")
    for number, each in enumerate(signals, 1):
        launcher.order(_SURVIVES.format(int(each)))
        await launcher.nth(number, "ready")
        launcher.signal(each)
        await launcher.nth(number, "survived")
    launcher.order("sys.exit(3)")
    assert await launcher.ended() == 3
    assert len(launcher.events("begin")) == 1


async def test_signals_that_are_ignored_stay_ignored(launcher: Running) -> None:
    ignore = "import os, signal, sys; signal.signal(1, signal.SIG_IGN); os.execv(sys.argv[1], sys.argv[1:])"
    launcher.start(*NO_RESTARTS, under=[sys.executable, "-c", ignore])
    launcher.order("sys.exit(signal.getsignal(1) == signal.SIG_IGN and signal.getsignal(13) == signal.SIG_IGN and 9)")
    assert await launcher.ended() == 9


_IN_A_SESSION = "import fcntl, os, sys; os.setsid(); fcntl.ioctl(0, 0x540E, 0); os.execv(sys.argv[1], sys.argv[1:])"


@contextlib.asynccontextmanager
async def typed_in_a_terminal(launcher: Running, keys: bytes) -> AsyncIterator[int]:
    """Start the launcher in a terminal, and type keys that its program reads; yield the terminal."""
    terminal, stdin = os.openpty()
    launcher.start(under=[sys.executable, "-c", _IN_A_SESSION], stdin=stdin)
    await launcher.nth(1, "begin")
    launcher.order("events.say(input())")
    os.write(terminal, keys)
    await launcher.nth(1, "typed")
    yield terminal
    os.close(stdin)
    os.close(terminal)


async def test_the_terminal_is_the_programs_and_its_interrupt_key_stops_it(launcher: Running) -> None:
    async with typed_in_a_terminal(launcher, b"typed\n") as terminal:
        os.write(terminal, b"\x03")
        assert await launcher.ended() == 130
        assert len(launcher.events("begin")) == 1


async def test_key_that_suspends_a_program_has_no_effect_as_on_process_1(launcher: Running) -> None:
    """Nothing would resume it: below `kubectl attach` there is no shell, and of a shell it is no child."""
    async with typed_in_a_terminal(launcher, b"\x1atyped\n"):
        launcher.order("sys.exit(0)")
        assert await launcher.ended() == 0


async def test_orphans_that_end_are_reaped(launcher: Running) -> None:
    launcher.start()
    program = await launcher.nth(1, "begin")
    launcher.order(DAEMONIZE)
    daemon = await launcher.nth(1, "daemon")
    assert alive(daemon)
    launcher.order(f"os.kill({daemon}, 9)")
    await eventually.true(lambda: kubemend_run.process_of(daemon) is None)
    assert alive(program)


async def test_full_pipe_in_place_of_stderr_delays_no_restart_and_no_signal(launcher: Running) -> None:
    """The container runtime reads it, and may be away when the launcher has something to say."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writer, bytes(4096))
    os.set_blocking(writer, True)
    launcher.start(stderr=writer)
    await launcher.spare()
    launcher.order("sys.exit(3)")
    await launcher.nth(2, "begin")
    launcher.signal(signal.SIGTERM)
    assert await launcher.ended() == 128 + signal.SIGTERM
    for each in (reader, writer):
        os.close(each)


async def test_launcher_without_standard_files_logs_into_no_pipe_of_its_own(launcher: Running) -> None:
    """The bytes would be taken for numbers of signals, and be passed on to the program."""
    launcher.start(python=["-E", "train.py"], under=["sh", "-c", 'exec "$@" >&- 2>&-', "sh"])
    launcher.order("events.say(f'{sys.stderr} {os.environ.get(\"KUBEMEND_RESTART_COUNT\")}'); sys.exit(0)")
    assert await launcher.ended() == 0
    assert len(launcher.events("None None")) == 1


async def test_the_output_is_the_programs_alone(launcher: Running) -> None:
    launcher.start(*NO_RESTARTS)
    launcher.order("sys.stdout.write('out'); sys.stderr.write('err'); sys.exit(0)")
    assert await launcher.ended() == 0
    assert (launcher.stdout(), launcher.stderr()) == ("out", "err")


@pytest.mark.pythons
async def test_the_program_finds_nothing_of_the_launcher(launcher: Running) -> None:
    launcher.environ["PYTHONPATH"] = "/nowhere"
    launcher.start()
    launcher.order(
        "print([each for each in os.environ if each.startswith('_KUBEMEND')], os.environ['PYTHONPATH'])\n"
        "print(sys.argv, sys.path[:2])\n"
        "print('sitecustomize' in sys.modules, sorted(os.listdir('/proc/self/fd'), key=int)[:3])\n"
        "sys.exit(0)"
    )
    assert await launcher.ended() == 0
    expected = f"[] /nowhere\n['train.py'] {[str(launcher.folder), '/nowhere']}\nFalse ['0', '1', '2']\n"
    assert launcher.stdout() == expected


@pytest.mark.pythons
async def test_a_sitecustomize_of_the_image_is_loaded_once(launcher: Running) -> None:
    launcher.environ["PYTHONPATH"] = str(launcher.folder)
    launcher.write("sitecustomize.py", writing("site"))
    launcher.start()
    launcher.order("print(sys.modules['sitecustomize'].__file__); sys.exit(0)")
    assert await launcher.ended() == 0
    assert launcher.stdout() == f"{launcher.folder}/sitecustomize.py\n"
    assert launcher.events("site") == [launcher.pid, *launcher.events("begin")]


_STAYS = """
import atexit, signal, threading
if "kubemend_run" in open("/proc/self/cmdline").read():
    threading.Thread(target=threading.Event().wait).start()
    atexit.register(signal.pause)
"""


@pytest.mark.pythons
async def test_tracer_that_removes_itself_from_the_path_is_in_the_program_too(launcher: Running) -> None:
    """As OpenTelemetry's does, so that subprocesses are not traced: the program is a subprocess of the launcher."""
    folder = launcher.folder / "tracer"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text("import os, sys; sys.traced = os.environ.pop('PYTHONPATH')")
    launcher.environ["PYTHONPATH"] = str(folder)
    launcher.start("--max-restarts", "1")
    for number in (1, 2):
        await launcher.spare(number + 1)
        launcher.order(f"print(sys.traced, os.environ.get('PYTHONPATH'), flush=True); sys.exit({2 - number})")
        await launcher.nth(2, "begin")
    assert await launcher.ended() == 0
    assert launcher.stdout() == f"{folder} None\n" * 2


async def test_what_the_images_sitecustomize_starts_in_the_launcher_does_not_delay_its_end(launcher: Running) -> None:
    """As a tracer that is added to each Python of a pod, and whose collector does not answer."""
    launcher.environ["PYTHONPATH"] = str(launcher.folder)
    launcher.write("sitecustomize.py", _STAYS)
    launcher.start(*NO_RESTARTS)
    launcher.order("sys.exit(7)")
    assert await launcher.ended() == 7


@pytest.mark.parametrize(
    ("option", "breaks", "code", "text"),
    [
        ("--no-such-option", "", 2, "unrecognized arguments: --no-such-option"),
        ("--max-restarts=0", "    import select; del select.poll", 1, "AttributeError: module 'select' has no"),
    ],
    ids=["usage", "crash"],
)
async def test_nothing_delays_the_end_of_a_launcher_that_cannot_run_either(
    launcher: Running, option: str, breaks: str, code: int, text: str
) -> None:
    launcher.environ["PYTHONPATH"] = str(launcher.folder)
    launcher.write("sitecustomize.py", _STAYS + breaks)
    launcher.start(option)
    assert await launcher.ended() == code
    assert text in launcher.stderr()


@pytest.mark.parametrize(
    ("command", "code", "text"),
    [
        (["/no/such/program"], 127, "cannot run /no/such/program: No such file or directory"),
        (["/etc/passwd"], 126, "cannot run /etc/passwd: Permission denied"),
        ([], 2, "write -- and the program"),
    ],
)
async def test_a_program_that_cannot_be_started_ends_the_launcher(
    launcher: Running, command: list[str], code: int, text: str
) -> None:
    launcher.start(command=command)
    assert await launcher.ended() == code
    assert text in launcher.stderr()


@pytest.mark.parametrize(
    ("option", "text"),
    [
        ("--spare-memory=much", "'much' is not a size"),
        ("--spare-after=soon", "'soon' is not a duration"),
        ("--fatal-exit-codes=0", "list exit codes from 1 to 255"),
        ("--max-restarts=-1", "'-1' is not a number"),
        ("--stop-signals=TERM,KILL", "'KILL' is not a signal that can stop the program"),
        ("--stop-signals=,", "name at least one signal"),
        ("--stop-signals=0", "'0' is not a signal that can stop the program"),
        ("--spare-cpu=0", "percentage from 1 to 100"),
    ],
)
def test_a_wrong_option_is_explained(option: str, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        kubemend_run.main([option, "--", "true"])
    assert ended.value.code == 2
    assert text in capsys.readouterr().err


def test_the_wheel_has_the_products_version() -> None:
    folder = Path(kubemend_run.__file__).parent
    projects = [tomllib.loads((each / "pyproject.toml").read_text()) for each in (folder, folder.parent)]
    assert len({each["project"]["version"] for each in projects}) == 1


@pytest.mark.parametrize("grace", [0.0, 30.0])
def test_program_that_completes_between_the_order_and_its_execution_has_completed(
    grace: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a grace period, an exit with 0 after SIGTERM is one of the restart, but not an exit before it."""
    ends = iter([(7, 0)])
    monkeypatch.setattr(os, "waitpid", lambda *_: next(ends, (0, 0)))
    monkeypatch.setattr(os, "kill", lambda *_: pytest.fail("it has ended"))
    launcher = object.__new__(kubemend_run.Launcher)
    launcher.__dict__.update(_pid=7, _status=None, _spare=None, _stopping=0, _has_terminal=False, _from_spare=False)
    launcher.__dict__.update(_began=time.monotonic(), _options=SimpleNamespace(spare_after=60.0))
    launcher.__dict__.update(_policy=kubemend_run.Policy(), _clear=launcher._reap)
    assert launcher._obey(kubemend_run.Order("order-1", 1, grace, hold=0.0, reason="Xid31")) == 0


@pytest.mark.parametrize(("ran", "early"), [(61.0, 0), (30.0, 2)])
def test_program_that_lived_until_an_order_ends_the_row_of_those_that_did_not(ran: float, early: int) -> None:
    """Otherwise the next failure, days later, would wait, or empty the cache."""
    launcher = object.__new__(kubemend_run.Launcher)
    launcher.__dict__.update(_status=None, _spare=None, _stopping=0, _has_terminal=False, _from_spare=False)
    launcher.__dict__.update(_began=time.monotonic() - ran, _options=SimpleNamespace(spare_after=600.0))
    launcher.__dict__.update(
        _policy=kubemend_run.Policy(), _past=kubemend_run.Past((), 2), _released=True, _discarded=False
    )
    launcher.__dict__.update(_terminate=lambda _: launcher.__dict__.update(_status=int(signal.SIGKILL)))
    launcher.__dict__.update(_reap=lambda: 0, _clear=lambda: None, _enter=lambda _: None, _start_again=lambda _: True)
    launcher._order = None
    assert launcher._obey(kubemend_run.Order("order-1", 1, 0.0, hold=0.0, reason="Xid31")) is None
    assert launcher._past.early == early
