"""A program that forks without end, or whose imports work on in the background, does not take the launcher with it."""

import os
import signal
from types import SimpleNamespace

import pytest

from launcher import kubemend_run
from launcher.kubemend_run import Launcher, Process
from tests import eventually
from tests.commands.launcher.running import Running


def _bare_launcher(**fields: object) -> Launcher:
    """Return a launcher that has started nothing."""
    launcher = object.__new__(Launcher)
    launcher.__dict__.update(_pid=0, _status=None, _spare=None, _stopping=0, _reaps_on=False, _others=[], **fields)
    return launcher


async def test_more_orphans_than_are_reaped_at_once_are_all_reaped(launcher: Running) -> None:
    """Their signals, which arrive while the launcher is stopped, are one."""
    number = kubemend_run._MOST_REAPED + 50
    launcher.start("--no-spare")
    await launcher.nth(1, "begin")
    launcher.order(f"if os.fork() == 0:\n    [os.fork() or os._exit(0) for _ in range({number})]\n    os._exit(0)")
    launcher.order("events.say('forked')")
    launcher.signal(signal.SIGSTOP)
    launcher.order("os.wait(); events.say('waited')")
    await launcher.nth(1, "waited")
    assert len(_children(launcher.pid, "Z")) == number
    launcher.signal(signal.SIGCONT)
    await eventually.true(lambda: not _children(launcher.pid, "Z"))
    launcher.order("sys.exit(0)")
    assert await launcher.ended() == 0


def _children(pid: int, states: str) -> list[Process]:
    return [each for each in kubemend_run.processes().values() if each.parent == pid and each.state in states]


def test_children_that_end_without_end_leave_the_launcher_time_for_signals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "waitpid", lambda *_: (99, 0))
    assert _bare_launcher()._reap() == kubemend_run._MOST_REAPED


def test_processes_that_fork_while_they_are_killed_are_killed_in_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """The scan of process 1 always finds a new child of the one that it has killed."""
    found: list[Process] = []
    calls: list[tuple[int, int]] = []

    def processes() -> dict[int, Process]:
        assert len(found) < 100
        found.append(Process(2 + len(found), 1, "S", started=len(found)))
        return {} if calls else {found[-1].pid: found[-1]}

    launcher = _bare_launcher(_turn=lambda _: None)
    with monkeypatch.context() as patched:
        patched.setattr(kubemend_run, "processes", processes)
        patched.setattr(kubemend_run, "kill", lambda _: None)
        patched.setattr(kubemend_run, "_LONGEST_CHASE", 0.0)
        patched.setattr(os, "getpid", lambda: 1)
        patched.setattr(os, "kill", lambda *call: calls.append(call))
        launcher._clear()
    assert calls == [(-1, signal.SIGKILL)]


def test_process_that_is_slow_to_die_is_no_reason_to_kill_the_spare(monkeypatch: pytest.MonkeyPatch) -> None:
    scans = iter([{2: Process(2, 1, state, started=7)} for state in "RDDDZ"])
    calls: list[tuple[int, int]] = []
    launcher = _bare_launcher(_turn=lambda _: monkeypatch.setattr(kubemend_run, "_LONGEST_CHASE", 0.0))
    with monkeypatch.context() as patched:
        patched.setattr(kubemend_run, "processes", lambda: next(scans))
        patched.setattr(kubemend_run, "kill", lambda _: None)
        monkeypatch.setattr(kubemend_run, "_LONGEST_CHASE", 60.0)
        patched.setattr(os, "getpid", lambda: 1)
        patched.setattr(os, "kill", lambda *call: calls.append(call))
        launcher._clear()
    assert calls == []


def test_processes_of_a_dropped_spare_that_fork_are_stopped_before_they_are_killed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each scan finds what those before it have started until they were stopped."""
    started = [Process(pid, pid - 1, "S", started=pid) for pid in (3, 4, 5)]
    scans = iter([started[:1], started[:2], started, started])
    sent: list[tuple[int, int]] = []
    seen = [Process(9, 1, "S", started=9)]
    spare = SimpleNamespace(pid=2, ended=None, below=seen, send=lambda _: sent.append((2, 9)))
    launcher = _bare_launcher(_processes_of=lambda _: next(scans))
    monkeypatch.setattr(kubemend_run, "kill", lambda process, number=9: sent.append((process.pid, number)))
    launcher._kill(spare)  # type: ignore[arg-type]
    assert sent == [*((each.pid, signal.SIGSTOP) for each in started), (9, 9), (3, 9), (4, 9), (5, 9), (2, 9)]


def test_time_in_which_the_launcher_cannot_run_does_not_count_for_the_import(monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent freezes the container for a round, for minutes perhaps: the import would be blamed, and left out."""
    wakeup, writer = os.pipe()
    spare = SimpleNamespace(paused=False, ran=1.0, closed=True, ready=False, toggle_at=0.0, status=-1)
    launcher = _bare_launcher(_wakeup=wakeup, _control=None, _tend=lambda: None, _report_spare=lambda: None)
    launcher.__dict__.update(_spare=spare, _reap=lambda: 0)
    times = iter([0.0, 600.0])
    try:
        with monkeypatch.context() as patched:
            patched.setattr("time.monotonic", lambda: next(times, 600.0))
            launcher._turn(None)
    finally:
        os.close(wakeup)
        os.close(writer)
    assert 1.0 < spare.ran <= 1.0 + 2 * kubemend_run._PERIOD


_LATER = """
import threading
kept = []
def work():
    open("gate").close()
    kept.append({work})
threading.Thread(target=work, daemon=True).start()
"""


@pytest.mark.parametrize(
    ("work", "reason"),
    [("open('nvidia0')", "it uses {}/nvidia0"), ("bytearray(b'1') * (256 << 20)", "more than the 200 MiB")],
    ids=["device", "memory"],
)
async def test_spare_that_takes_too_much_once_it_is_ready_is_dropped(launcher: Running, work: str, reason: str) -> None:
    """A thread that an import has started works on, once the pipe ``gate`` is opened for writing."""
    os.mkfifo(launcher.folder / "gate")
    (launcher.folder / "nvidia0").touch()
    launcher.write("works_on.py", _LATER.format(work=work))
    launcher.program("import works_on")
    launcher.start("--spare-devices", f"{launcher.folder}/nvidia", "--spare-memory", "200Mi")
    await launcher.said("the spare is ready")
    gate = os.open(launcher.folder / "gate", os.O_RDWR | os.O_NONBLOCK)
    await launcher.said("the spare is dropped: " + reason.format(launcher.folder) if "uses" in reason else reason)
    os.close(gate)
    launcher.order("sys.exit(0)")
    assert await launcher.ended() == 0
