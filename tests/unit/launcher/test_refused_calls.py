"""What the kernel refuses at a restart ends no container that can go on, and never leaves two programs."""

import errno
import itertools
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from launcher import kubemend_run
from launcher.kubemend_run import Known, Launcher, LauncherError, Order, Policy, Program, Spare, Start

UNKILLABLE = "[Errno 1] Operation not permitted"


def ordered(*, grace: float, status: int | None) -> Launcher:
    """Return a launcher that has an order, with its release, for a program that has this status when it is stopped."""
    launcher = object.__new__(Launcher)
    launcher.__dict__.update(
        _options=SimpleNamespace(spare_after=3600.0),
        _order=(order := Order("order-1", 1, grace, 30.0, "Xid79")),
        _order_name=order.name,
        _began=time.monotonic(),
        _policy=Policy(limit=3),
        _pid=0,
        _status=None,
        _control=None,
        _has_terminal=False,
        _stopping=0,
        _error="",
        _phase=kubemend_run.STOPPING,
        _released=True,
        _discarded=False,
        _reap=lambda: 0,
        _judge_spare=lambda *_, **__: None,
        _terminate=lambda _: launcher.__dict__.update(_status=status),
        _clear=lambda: None,
        _start_again=lambda _: True,
    )
    return launcher


def refused(*_: object) -> None:
    raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))


def out_of_files(*_: object) -> None:
    raise OSError(errno.ENFILE, os.strerror(errno.ENFILE))


@pytest.mark.parametrize(("grace", "status", "ends_with"), [(0.0, 9, 9), (5.0, 0, 9), (5.0, 15, 9)])
@pytest.mark.parametrize("refuses", ["_clear", "_start_again"])
def test_order_whose_processes_cannot_be_killed_ends_the_container_as_killed(
    refuses: str, grace: float, status: int, ends_with: int, capfd: pytest.CaptureFixture[str]
) -> None:
    """Those of a failed spare, too. With the 0 of a program that SIGTERM has ended, its Job would be complete."""
    launcher = ordered(grace=grace, status=status)
    launcher.__dict__[refuses] = refused
    assert launcher._order is not None
    assert launcher._obey(launcher._order) == ends_with
    assert vars(launcher).items() >= {"_order": None, "_error": UNKILLABLE}.items()
    assert "cannot kill what the program has started" in capfd.readouterr().err


def test_program_that_runs_on_after_such_an_order_is_not_ended() -> None:
    launcher = ordered(grace=0.0, status=None)
    launcher.__dict__["_clear"] = refused
    assert launcher._order is not None
    assert launcher._obey(launcher._order) is None
    assert launcher._phase == kubemend_run.RUNNING


def test_restart_needs_no_further_file_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next program's imports are recorded where the former one's were, for the spare after it."""
    log = kubemend_run.memory_file("log", b"h 1\nm torch\nd torch\n")
    launcher = object.__new__(Launcher)
    started: list[Start] = []
    launcher.__dict__.update(
        _program=Program(("train.py",)),
        _command=["python", "train.py"],
        _environ={},
        _ignored=[],
        _has_terminal=False,
        _folder=0,
        _log=log,
        _begin=lambda *_: None,
    )
    monkeypatch.setattr(kubemend_run, "memory_file", out_of_files)
    monkeypatch.setattr(kubemend_run, "spawn", started.append)
    try:
        launcher._start_cold()
        assert launcher._records() == [""]
        assert [each.environ["_KUBEMEND_RUN_LOG"].rpartition("/")[2] for each in started] == [str(log)]
    finally:
        os.close(log)


@pytest.fixture
def unreadable(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[int, int]]:
    """Errors of the kernel at the next read of a process's state, by PID."""
    errors: dict[int, int] = {}
    read = kubemend_run._read

    def refuses(path: str) -> bytes:
        _, proc, pid, *_ = path.split("/")
        if proc == "proc" and pid.isdecimal() and int(pid) in errors:
            number = errors.pop(int(pid))
            raise OSError(number, os.strerror(number))
        return read(path)

    monkeypatch.setattr(kubemend_run, "_read", refuses)
    yield errors
    assert not errors


@pytest.mark.parametrize("number", [errno.ENOENT, errno.ESRCH, errno.EACCES, errno.EPERM])
def test_process_that_has_ended_or_is_hidden_is_none(number: int, unreadable: dict[int, int]) -> None:
    unreadable[os.getpid()] = number
    assert kubemend_run.process_of(os.getpid()) is None


@pytest.mark.parametrize("number", [errno.ENFILE, errno.EMFILE, errno.ENOMEM])
def test_process_that_cannot_be_read_is_not_taken_for_dead(number: int, unreadable: dict[int, int]) -> None:
    """The next program would begin next to it."""
    launcher = object.__new__(Launcher)
    launcher.__dict__.update(_spare=None, _stopping=0, _others=[], _pid=0, _status=9, _reaps_on=False)
    launcher.__dict__["_turn"] = lambda _: None
    child = subprocess.Popen(["sleep", "1000"])
    try:
        launcher.__dict__["_others"] = [each for each in kubemend_run.processes().values() if each.pid != child.pid]
        unreadable[child.pid] = number
        launcher._clear()
        assert not Path(f"/proc/{child.pid}").exists()
    finally:
        child.kill()
        child.wait()


def test_spare_whose_processes_cannot_be_read_is_dropped_without_blame(unreadable: dict[int, int]) -> None:
    """It may use a device. An import, and the program's function for spares, are not the cause."""
    launcher = object.__new__(Launcher)
    dropped: list[Spare] = []
    pipe, order, log, names = (kubemend_run.memory_file("test") for _ in range(4))
    spare = Spare(os.getpid(), pipe, order, log, names, [], "model:prepare")
    try:
        spare.ready = spare.prepared = True
        launcher.__dict__.update(_spare=spare, _options=SimpleNamespace(spare_devices="/dev/none"), _pid=0)
        launcher.__dict__.update(_drop=lambda: dropped.append(spare), _others=[], _memory=None, _learn_every=1)
        unreadable[os.getpid()] = errno.ENOMEM
        launcher._tend()
        assert dropped == [spare]
        assert (spare.reason, spare.guilty, spare.hopeless, spare.unprepared) == ("Unsupported", False, False, False)
        assert spare.message == "its processes cannot be read: Cannot allocate memory"
    finally:
        spare.close()
        os.close(log)


@pytest.mark.parametrize(
    ("owner", "name", "allowed"),
    [(kubemend_run, "memory_file", 1), (os, "pipe", 0), (os, "pipe", 1), (os, "pipe", 2), (os, "fork", 0)],
)
def test_spare_that_cannot_be_started_leaves_no_file_open(
    owner: object, name: str, allowed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each program would leave some, until there is none for a restart."""
    launcher = object.__new__(Launcher)
    launcher.__dict__.update(
        _program=Program(("train.py",)),
        _store=SimpleNamespace(known=Known()),
        _options=SimpleNamespace(spare_skip=(), spare_devices=""),
        _prepare="",
        _command=["/no/such/program"],
        _environ={},
        _ignored=[],
        _folder=0,
    )
    call, calls = getattr(owner, name), itertools.count()
    monkeypatch.setattr(owner, name, lambda *given: call(*given) if next(calls) < allowed else out_of_files())
    before = sorted(Path("/proc/self/fd").iterdir())
    with pytest.raises((OSError, LauncherError), match="Too many open files in system"):
        launcher._spawn_spare(["h 1"])
    assert sorted(Path("/proc/self/fd").iterdir()) == before


@pytest.mark.parametrize(
    ("error", "is_tried_again"),
    [
        (kubemend_run.ShortageError("cannot start a process", 126), True),
        (OSError(errno.ENFILE, "Too many open files in system"), True),
        (LauncherError("cannot run python: Permission denied", 126), False),
        (OSError(errno.EPERM, "Operation not permitted"), False),
    ],
)
def test_spare_for_which_there_is_no_room_is_tried_again(error: Exception, is_tried_again: bool) -> None:
    """A program may run for days with one that is started a minute later, or without one."""
    launcher = object.__new__(Launcher)

    def refuses(_: object) -> None:
        raise error

    launcher.__dict__.update(_records=lambda: ["h 7"], _settles_in=lambda _: 0.0, _spawn_spare=refuses)
    launcher.__dict__.update(_store=SimpleNamespace(known=Known()), _learn=lambda _: None, _stopping=0, _status=None)
    launcher.__dict__.update(_spare=None, _program=Program(()), _pid=7, _tries=0, _spare_at=0.0)
    launcher._start_spare()
    assert (launcher._spare_due() is not None) is is_tried_again
    assert launcher._no_spare == (kubemend_run.UNSUPPORTED, str(error))


@pytest.fixture
def slow_exec(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[int, int]]:
    """Two pipes' ends: ``exec`` writes to the first one when it begins, waits for the end of the second one, and fails.

    A launcher would wait 0.1 s for it.
    """
    (begun, begins), (gate, end) = os.pipe(), os.pipe()

    def execvpe(*_: object) -> None:
        os.close(end)
        os.write(begins, b"x")
        os.read(gate, 1)
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))

    monkeypatch.setattr(os, "execvpe", execvpe)
    monkeypatch.setattr(kubemend_run, "_LONGEST_EXEC", 0.1)
    before = signal.signal(signal.SIGTERM, kubemend_run._note)
    try:
        yield begun, end
    finally:
        signal.signal(signal.SIGTERM, before)
        for each in (begun, begins, gate):
            os.close(each)


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGTERM, 128 + signal.SIGTERM), (None, 127)], ids=["stop", "error"])
def test_start_from_a_file_system_that_hangs_is_not_waited_for(
    slow_exec: tuple[int, int], sent: int | None, code: int
) -> None:
    """The launcher passes signals on, which its handler in the new process does not take, and answers the agent."""
    begun, end = slow_exec
    pid = kubemend_run.spawn(Start(["/hung/python"], {}))
    try:
        assert os.read(begun, 1) == b"x"
        if sent is not None:
            os.kill(pid, sent)
    finally:
        os.close(end)
    assert kubemend_run.exit_code(os.waitpid(pid, 0)[1]) == code
