"""The launcher is killed at any moment: the kernel kills program and spare."""

import os
import signal

from tests import eventually
from tests.commands.launcher.running import DAEMONIZE, Running, alive


async def kill_launcher(launcher: Running, *pids: int) -> None:
    """Kill the launcher, and wait until these processes are dead."""
    launcher.signal(signal.SIGKILL)
    await eventually.true(lambda: not any(alive(pid) for pid in pids))
    assert await launcher.ended() == -signal.SIGKILL


async def test_killed_while_the_trainer_runs(launcher: Running) -> None:
    launcher.start()
    program = await launcher.nth(1, "begin")
    launcher.order("signal.signal(15, signal.SIG_IGN); events.say('ready')")
    await launcher.nth(1, "ready")
    await kill_launcher(launcher, program)


async def test_killed_while_the_spare_waits(launcher: Running) -> None:
    launcher.start()
    program = await launcher.nth(1, "begin")
    spare = await launcher.spare()
    await kill_launcher(launcher, program, spare)
    assert launcher.events("begin") == [program]


async def test_killed_while_the_spare_imports_and_is_paused(launcher: Running) -> None:
    launcher.program("import block")
    block = "events.say('block')\n    while True: pass\n"
    launcher.write("block.py", f"import events\nif 'begin' in open('events').read():\n    {block}")
    launcher.start("--spare-cpu", "50")
    program = await launcher.nth(1, "begin")
    launcher.write("block.py", "import events\nevents.say('block')\nwhile True: pass\n")
    spare = await launcher.nth(1, "block")
    await kill_launcher(launcher, program, spare)


async def test_killed_after_a_restart_with_the_spare(launcher: Running) -> None:
    launcher.start()
    await launcher.nth(1, "begin")
    spare = await launcher.spare()
    launcher.order("sys.exit(3)")
    assert await launcher.nth(2, "begin") == spare
    await kill_launcher(launcher, spare)


async def test_killed_while_it_waits_for_the_restart(launcher: Running) -> None:
    launcher.start("--initial-backoff", "1h", "--spare-after", "0", "--healthy-after", "1h")
    for number in range(1, 5):
        await launcher.nth(number, "begin")
        launcher.order("sys.exit(3)")
    await launcher.said("restart in")
    await kill_launcher(launcher, *launcher.events("later"))
    assert len(launcher.events("begin")) == 4


async def test_killed_after_the_trainer_failed_and_before_the_spare_goes(launcher: Running) -> None:
    """The launcher, stopped, has not noticed yet that the program is dead: the daemon lives and the spare waits."""
    launcher.start()
    await launcher.nth(1, "begin")
    launcher.order(DAEMONIZE)
    await launcher.nth(1, "daemon")
    spare = await launcher.spare()
    os.kill(launcher.pid, signal.SIGSTOP)
    launcher.order("sys.exit(3)")
    program = launcher.events("begin")[0]
    await eventually.true(lambda: not alive(program))
    await kill_launcher(launcher, spare)
    assert launcher.events("begin") == [program]
