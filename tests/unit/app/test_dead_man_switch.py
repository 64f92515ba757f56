"""The dead man's switch: the holder of the node lock, and a process that releases what its agent has frozen."""

import asyncio
import contextlib
import os
import select
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kubemend.agent.app import dead_man_switch, last_watch, node_lock
from kubemend.agent.app.dead_man_switch import DeadManSwitch
from kubemend.common import process

DEADLINE = 60.0
AGENT = """
import asyncio, sys
from pathlib import Path
from kubemend.agent.app.dead_man_switch import DeadManSwitch

async def main():
    here = Path(sys.argv[1])
    switch = DeadManSwitch(state_dir=here, socket="", owner="n /s", cgroup_root=here, proc=Path("/proc"))
    async with switch.at_work():
        print("there", flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.fixture(autouse=True)
def _watch_may_end_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """A watch that has just been started ends only when Python has started: on a busy machine that takes seconds."""
    monkeypatch.setattr(dead_man_switch, "_END_SECONDS", DEADLINE)


def dead_man(here: Path) -> DeadManSwitch:
    return DeadManSwitch(state_dir=here, socket="/run/none.sock", owner="n /s", cgroup_root=here, proc=Path("/proc"))


def test_node_lock_has_one_holder(tmp_path: Path) -> None:
    with node_lock.acquire(tmp_path) as first:
        assert first
        with node_lock.acquire(tmp_path) as second:
            assert not second
    with node_lock.acquire(tmp_path) as third:
        assert third


def test_node_lock_of_missing_state_directory_has_no_holder(tmp_path: Path) -> None:
    with node_lock.acquire(tmp_path / "none") as mine:
        assert not mine


def test_the_kernel_gives_the_charge_of_a_killed_process_back(tmp_path: Path) -> None:
    code = "import sys, time\nfrom pathlib import Path\nfrom kubemend.agent.app import node_lock\n"
    code += "with node_lock.acquire(Path(sys.argv[1])) as mine:\n print(mine, flush=True); time.sleep(3600)\n"
    other = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE)
    assert other.stdout is not None
    assert other.stdout.readline() == b"True\n"
    with node_lock.acquire(tmp_path) as mine:
        assert not mine
    other.kill()
    other.communicate()
    with node_lock.acquire(tmp_path) as mine:
        assert mine


async def test_agent_takes_lock_when_previous_instance_ends(tmp_path: Path) -> None:
    man = dead_man(tmp_path)
    async with man.at_work(), asyncio.timeout(DEADLINE):
        with node_lock.acquire(tmp_path):
            work = asyncio.create_task(man.run())
            await asyncio.sleep(0)
        await man.take_charge()
        with node_lock.acquire(tmp_path) as mine:
            assert not mine
    work.cancel()
    await asyncio.gather(work, return_exceptions=True)


async def test_killed_watch_is_replaced(tmp_path: Path) -> None:
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
    assert man._watch.returncode == 0, "nothing is frozen: it has ended"


async def test_watch_leaves_the_agents_cgroup(tmp_path: Path) -> None:
    (tmp_path / "cgroup.procs").touch()
    man = dead_man(tmp_path)
    async with man.at_work():
        assert man._watch is not None
        assert (tmp_path / "cgroup.procs").read_text() == str(man._watch.pid)
        assert os.getsid(man._watch.pid) == man._watch.pid


@contextlib.contextmanager
def watching(here: Path, *, frozen: bool, owner: str) -> Iterator["subprocess.Popen[bytes]"]:
    """Run the watch of node n's agent, whose command prints a line; its agent's end of the pipe is its stdin."""
    command = [sys.executable, "-c", "print('released', flush=True)"]
    code = "from kubemend.agent.actuator.hold import cgroups\nfrom kubemend.agent.app import last_watch\n"
    code += f"group = type('Group', (), {{'frozen': {frozen}}})\n"
    code += f"cgroups.marked = lambda _: [('id', group, 'held uid-1 {owner}')]\nlast_watch.main()\n"
    watch = subprocess.Popen(
        [sys.executable, "-c", code, str(here), "n /s", *command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        yield watch
    finally:
        watch.kill()
        watch.communicate()


@pytest.mark.parametrize(
    ("frozen", "owner", "acts"),
    [
        (True, "n /s", True),
        (True, "n /run/earlier.sock", True),  # of the same node, before its runtime's socket has moved
        (True, "n-2 /s", False),  # where nodes are simulated, a machine has several agents
        (False, "n /s", False),
    ],
)
def test_frozen_containers_are_released_after_the_agents_end_and_not_before(
    tmp_path: Path, frozen: bool, owner: str, acts: bool
) -> None:
    with watching(tmp_path, frozen=frozen, owner=owner) as watch:
        assert watch.poll() is None
        assert watch.stdin is not None
        watch.stdin.close()
        watch.stdin = None
        said, _ = watch.communicate(timeout=DEADLINE)
        assert said == (b"released\n" if acts else b"")
        assert watch.returncode == 0


def test_watch_of_killed_agent_ends_if_nothing_is_frozen(tmp_path: Path) -> None:
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


def test_watch_imports_few_modules() -> None:
    """It runs as long as the agent, on every node."""
    code = f"import sys, {last_watch.__name__}\nprint(sorted(set(sys.modules) & {{'asyncio', 'grpc', 'structlog'}}))"
    command = [sys.executable, *process.helper_command("x")[1:2], "-c", code]
    assert subprocess.run(command, capture_output=True, check=True, text=True).stdout == "[]\n"
