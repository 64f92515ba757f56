"""The dead man's switch: who is in charge, and a process that outlives its agent only where something stands still."""

import asyncio
import contextlib
import os
import select
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.app import charge, last_watch
from agent.app.dead_man import DeadMan
from common import process

DEADLINE = 60.0
AGENT = """
import asyncio, sys
from pathlib import Path
from agent.app.dead_man import DeadMan

async def main():
    here = Path(sys.argv[1])
    async with DeadMan(state_dir=here, socket="", owner="", cgroup_root=here, proc=Path("/proc")).at_work() as _:
        print("there", flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


def dead_man(here: Path) -> DeadMan:
    return DeadMan(state_dir=here, socket="/run/none.sock", owner="n /s", cgroup_root=here, proc=Path("/proc"))


def test_one_at_a_time_is_in_charge(tmp_path: Path) -> None:
    with charge.taken(tmp_path) as first:
        assert first
        with charge.taken(tmp_path) as second:
            assert not second
    with charge.taken(tmp_path) as third:
        assert third


def test_of_a_state_that_is_not_there_nobody_is_in_charge(tmp_path: Path) -> None:
    with charge.taken(tmp_path / "none") as mine:
        assert not mine


def test_the_kernel_gives_the_charge_of_a_killed_process_back(tmp_path: Path) -> None:
    code = "import sys, time\nfrom pathlib import Path\nfrom agent.app import charge\n"
    code += "with charge.taken(Path(sys.argv[1])) as mine:\n print(mine, flush=True); time.sleep(3600)\n"
    other = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE)
    assert other.stdout is not None
    assert other.stdout.readline() == b"True\n"
    with charge.taken(tmp_path) as mine:
        assert not mine
    other.kill()
    other.communicate()
    with charge.taken(tmp_path) as mine:
        assert mine


async def test_an_agent_takes_charge_when_the_one_before_is_done(tmp_path: Path) -> None:
    man = dead_man(tmp_path)
    async with man.at_work(), asyncio.timeout(DEADLINE):
        with charge.taken(tmp_path):
            work = asyncio.create_task(man.run())
            await asyncio.sleep(0)
        await man.take_charge()
        with charge.taken(tmp_path) as mine:
            assert not mine
    work.cancel()
    await asyncio.gather(work, return_exceptions=True)


async def test_a_watch_that_was_killed_is_followed_by_another(tmp_path: Path) -> None:
    man = dead_man(tmp_path)
    async with man.at_work(), asyncio.timeout(DEADLINE):
        first = man._watch
        assert first is not None
        work = asyncio.create_task(man.run())
        first.kill()
        while man._watch is first:  # noqa: ASYNC110 - it is started in a task of its own
            await asyncio.sleep(0.01)
        assert man._watch is not None
        os.kill(man._watch.pid, 0)
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
    assert man._watch.returncode == 0, "nothing stands still: it has ended"


async def test_it_leaves_the_agents_cgroup(tmp_path: Path) -> None:
    (tmp_path / "cgroup.procs").touch()
    man = dead_man(tmp_path)
    async with man.at_work():
        assert man._watch is not None
        assert (tmp_path / "cgroup.procs").read_text() == str(man._watch.pid)
        assert os.getsid(man._watch.pid) == man._watch.pid


@contextlib.contextmanager
def watching(here: Path, *, frozen: bool) -> Iterator["subprocess.Popen[bytes]"]:
    """Run a watch whose command writes a word, after no time at all; its agent's end of the pipe is its stdin."""
    command = [sys.executable, "-c", "print('let go', flush=True)"]
    code = "from agent.actuator import cgroups\nfrom agent.app import last_watch\n"
    code += f"group = type('Group', (), {{'frozen': {frozen}}})\n"
    code += "cgroups.marked = lambda _: [('id', group, '')]\nlast_watch.main()\n"
    watch = subprocess.Popen(
        [sys.executable, "-c", code, "0", str(here), *command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        yield watch
    finally:
        watch.kill()
        watch.communicate()


@pytest.mark.parametrize("frozen", [True, False])
def test_what_stands_still_is_let_go_after_the_agents_end_and_not_before(tmp_path: Path, frozen: bool) -> None:
    with watching(tmp_path, frozen=frozen) as watch:
        assert watch.poll() is None
        assert watch.stdin is not None
        watch.stdin.close()
        watch.stdin = None
        said, _ = watch.communicate(timeout=DEADLINE)
        assert said == (b"let go\n" if frozen else b"")
        assert watch.returncode == 0


def test_the_watch_of_a_killed_agent_ends_where_nothing_stands_still(tmp_path: Path) -> None:
    agent = subprocess.Popen([sys.executable, "-c", AGENT, str(tmp_path)], stdout=subprocess.PIPE)
    assert agent.stdout is not None
    assert agent.stdout.readline() == b"there\n"
    (watch,) = (int(pid) for pid in Path(f"/proc/{agent.pid}/task/{agent.pid}/children").read_text().split())
    gone = os.pidfd_open(watch)
    agent.kill()
    agent.communicate()
    poll = select.poll()
    poll.register(gone, select.POLLIN)
    assert poll.poll(DEADLINE * 1000)
    os.close(gone)


def test_the_watch_loads_next_to_nothing() -> None:
    """It is there as long as the agent, on every node."""
    code = f"import sys, {last_watch.__name__}\nprint(sorted(set(sys.modules) & {{'asyncio', 'grpc', 'structlog'}}))"
    command = [sys.executable, *process.helper_command("x")[1:2], "-c", code]
    assert subprocess.run(command, capture_output=True, check=True, text=True).stdout == "[]\n"
