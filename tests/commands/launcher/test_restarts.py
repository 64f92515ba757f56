"""A program that failed is started again, once nothing of it is left."""

import os
import signal
import sys

import pytest

from tests.commands.launcher.running import AFTER_A_HELPER, DAEMONIZE, Running, alive

COLD = ("--no-spare",)


@pytest.mark.pythons
async def test_a_trainer_that_failed_is_restarted_with_count_and_reason(launcher: Running) -> None:
    launcher.start(*COLD)
    for number, code in enumerate(("sys.exit(3)", "os.kill(os.getpid(), 9)"), 1):
        await launcher.nth(number, "begin")
        launcher.order(code)
    await launcher.nth(3, "begin")
    launcher.order("print(os.environ['KUBEMEND_RESTART_COUNT'], os.environ['KUBEMEND_RESTART_REASON']); sys.exit(0)")
    assert await launcher.ended() == 0
    assert launcher.stdout() == "2 Exit137\n"


@pytest.mark.parametrize(("count", "next_one"), [("4", "5"), ("", "1"), ("-1", "1"), ("9" * 5000, "1")])
async def test_the_count_continues_that_of_the_container(launcher: Running, count: str, next_one: str) -> None:
    """One that is no count, or too long for Python to read, is none."""
    launcher.environ["KUBEMEND_RESTART_COUNT"] = count
    launcher.start(*COLD)
    launcher.order("sys.exit(1)")
    await launcher.nth(2, "begin")
    launcher.order("print(os.environ['KUBEMEND_RESTART_COUNT']); sys.exit(0)")
    assert await launcher.ended() == 0
    assert launcher.stdout() == f"{next_one}\n"


async def test_a_program_that_is_not_python_is_restarted(launcher: Running) -> None:
    program = 'echo $KUBEMEND_RESTART_COUNT; test -n "$KUBEMEND_RESTART_COUNT" || exit 3'
    launcher.start(command=["sh", "-c", program])
    assert await launcher.ended() == 0
    assert launcher.stdout() == "\n1\n"
    assert launcher.stderr() == "kubemend-run: no spare: the command is sh, not python itself\n"


@pytest.mark.pythons
async def test_a_fatal_exit_code_ends_it(launcher: Running) -> None:
    launcher.start("--fatal-exit-codes", "42,64-78")
    launcher.order("sys.exit(65)")
    assert await launcher.ended() == 65
    assert "the program ended with exit code 65; not restarted: exit code 65 is fatal" in launcher.stderr()


async def test_launcher_that_is_compiled_keeps_no_spare(launcher: Running) -> None:
    (compiled := launcher.folder / "kubemend_run.pyc").write_bytes(b"\xa7\r\r\n")
    launcher.start(changed=f"kubemend_run.__file__ = '{compiled}'")
    launcher.order("sys.exit(3)")
    await launcher.nth(2, "begin")
    launcher.order("sys.exit(0)")
    assert await launcher.ended() == 0
    assert launcher.stderr() == f"kubemend-run: no spare: {compiled} is not the launcher's source\n"


async def test_launcher_without_a_working_directory_says_that_it_keeps_no_spare_for_it(launcher: Running) -> None:
    (launcher.folder / "deleted").mkdir()
    program = [launcher.python, "-c", "raise SystemExit(0)"]
    launcher.start(under=["sh", "-c", 'cd deleted && rmdir ../deleted && exec "$@"', "sh"], command=program)
    assert await launcher.ended() == 0
    said = "kubemend-run: no spare: [Errno 2] No such file or directory: 'the working directory'\n"
    assert launcher.stderr() == said


@pytest.mark.parametrize("program", ["-", "/dev/stdin"])
async def test_program_that_can_be_read_only_once_is_not_restarted(program: str, launcher: Running) -> None:
    """The interpreter would find no program, and end with 0: the container would have completed."""
    reader, writer = os.pipe()
    os.write(writer, b"raise SystemExit(3)")
    os.close(writer)
    launcher.start(command=[launcher.python, program], stdin=reader)
    os.close(reader)
    assert await launcher.ended() == 3
    assert launcher.stderr().startswith("kubemend-run: no restarts: its program comes from stdin")


_REFUSES_FORKS = (
    "import os; from unittest import mock; full = BlockingIOError(11, 'no room'); kubemend_run._RETRY = 0.01;"
    " os.fork = mock.Mock(wraps=os.fork, side_effect=[mock.DEFAULT, full, full, mock.DEFAULT])"
)


async def test_restart_waits_until_there_is_room_for_a_process(launcher: Running) -> None:
    """Another container of the pod has used up its processes. A pod that restarts no container would fail."""
    launcher.start(*COLD, changed=_REFUSES_FORKS)
    launcher.order("sys.exit(3)")
    await launcher.nth(2, "begin")
    launcher.order("sys.exit(0)")
    assert await launcher.ended() == 0
    assert launcher.stderr() == "kubemend-run: cannot start a process: no room; tried again for 60 s\n"


async def test_restart_without_room_for_a_process_ends_the_container(launcher: Running) -> None:
    launcher.start(*COLD, changed=_REFUSES_FORKS + "; kubemend_run._LONGEST_SHORTAGE = 0.0")
    launcher.order("sys.exit(3)")
    assert await launcher.ended() == 126


async def test_a_used_budget_ends_it(launcher: Running) -> None:
    launcher.start("--max-restarts", "2", command=["sh", "-c", "exit 5"])
    assert await launcher.ended() == 5
    assert "not restarted: 2 of 2 restarts within 3600 s are used" in launcher.stderr()


async def test_trainers_that_die_young_are_restarted_after_a_wait(launcher: Running) -> None:
    launcher.start("--max-restarts", "5", "--initial-backoff", "10ms", command=["sh", "-c", "exit 5"])
    assert await launcher.ended() == 5
    waits = [line for line in launcher.stderr().splitlines() if "restart in" in line]
    assert waits == [
        "kubemend-run: restart in 0.01 s: 4 runs in a row ended early",
        "kubemend-run: restart in 0.02 s: 5 runs in a row ended early",
    ]


async def test_a_stop_during_the_wait_ends_it(launcher: Running) -> None:
    launcher.start("--initial-backoff", "1h", command=["sh", "-c", "exit 5"])
    await launcher.said("restart in")
    launcher.signal(signal.SIGTERM)
    assert await launcher.ended() == 143


@pytest.mark.pythons
@pytest.mark.parametrize("spare", [True, False])
async def test_a_daemon_of_the_trainer_is_dead_before_the_next_begins(launcher: Running, spare: bool) -> None:
    launcher.start(*(() if spare else COLD))
    await launcher.nth(1, "begin")
    launcher.order(DAEMONIZE)
    daemon = await launcher.nth(1, "daemon")
    if spare:
        await launcher.spare()
    assert alive(daemon)
    launcher.program(f"events.say('alive' if os.path.exists('/proc/{daemon}') else 'dead')")
    launcher.order("sys.exit(3)")
    await launcher.nth(2, "begin")
    assert (len(launcher.events("dead")), launcher.events("alive")) == (1, [])
    launcher.order("sys.exit(0)")
    assert await launcher.ended() == 0


async def test_a_trainer_that_closed_all_files_is_restarted(launcher: Running) -> None:
    launcher.start()
    await launcher.nth(1, "begin")
    spare = await launcher.spare()
    launcher.order("os.closerange(0, 4096); os._exit(3)")
    assert await launcher.nth(2, "begin") == spare
    launcher.order("sys.exit(0)")
    assert await launcher.ended() == 0


async def test_a_trainer_that_ends_at_once_after_a_restart_is_not_started_twice(launcher: Running) -> None:
    launcher.start()
    await launcher.nth(1, "begin")
    spare = await launcher.spare()
    launcher.program("events.say('begin'); os._exit(0)")
    launcher.order("sys.exit(3)")
    assert await launcher.ended() == 0
    assert launcher.events("begin")[1:] == [spare]


async def test_a_program_that_vanished_ends_it(launcher: Running) -> None:
    program = launcher.folder / "program"
    program.symlink_to(sys.executable)
    launcher.start(*COLD, command=[str(program), "-c", f"import os; os.unlink({str(program)!r}); os._exit(3)"])
    assert await launcher.ended() == 127


async def test_what_a_script_has_started_before_it_executed_the_launcher_is_not_killed(launcher: Running) -> None:
    """Such as sshd, which a program needs and does not start again."""
    launcher.start("--no-spare", under=AFTER_A_HELPER)
    helper = await launcher.nth(1, "daemon")
    await launcher.nth(1, "begin")
    launcher.order(DAEMONIZE)
    daemon = await launcher.nth(2, "daemon")
    launcher.order("sys.exit(1)")
    await launcher.nth(2, "begin")
    assert alive(helper)
    assert not alive(daemon)
    launcher.order("sys.exit(0)")
    assert await launcher.ended() == 0
