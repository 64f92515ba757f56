"""The worker process: one at a time, never killed, never in the way; and nodes where NVML comes and goes."""

import asyncio
import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from agent.model.findings import FindingKind
from agent.sources.nvml.protocol import DevicesAnswer
from agent.sources.nvml.questions import Unknown
from agent.sources.nvml.source import Periods
from common.parts import PartState
from hack.fakenvml import control
from hack.fakenvml.control import FakeNvml, gpu_uuid
from hack.fakenvml.layout import Driver, Group
from tests.unit.sources.nvml.conftest import NEVER, PATIENCE, QUICK, Start

AGENT = """
import asyncio, sys
from agent.model.actions import ActionClass
from agent.sources.nvml.protocol import DevicesAnswer
from agent.sources.nvml.source import NvmlSource

def tell(status):
    print(status.state.value, source.worker_pid, flush=True)

source = NvmlSource(emit=lambda finding: None, classify=lambda kind, code: ActionClass.NONE, report=tell)
asyncio.run(source.run())
"""


def workers() -> list[int]:
    """Return the worker processes that this test process has."""
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return [int(pid) for pid in children if b"agent.sources.nvml.worker" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def wait_for_end(pidfd: int) -> bool:
    """Wait until the process behind a pidfd has ended."""
    ready, _, _ = select.select([pidfd], [], [], PATIENCE)
    os.close(pidfd)
    return bool(ready)


async def test_a_hanging_driver_degrades_the_part_and_blocks_nothing_else(fake: FakeNvml, start: Start) -> None:
    bench = start()
    await bench.status(PartState.READY)
    pid = bench.source.worker_pid

    fake.hang()
    status = await bench.status(PartState.DEGRADED)
    answer = await bench.source.query([], timeout=PATIENCE)

    assert "unresponsive" in status.message
    assert "nvml" in status.message
    assert isinstance(answer, Unknown)
    assert not bench.source.inventory.complete
    assert len(bench.source.inventory.gpus) == 8
    assert workers() == [pid]

    fake.resume()
    await bench.status(PartState.READY)

    assert workers() == [pid]
    assert bench.source.inventory.complete
    assert bench.findings.empty()


async def test_a_query_in_flight_when_the_driver_hangs_is_unknown(fake: FakeNvml, start: Start) -> None:
    bench = start(periods=Periods(poll_period=NEVER, hang_deadline=2.0))
    await bench.status(PartState.READY)
    fake.hang(Group.GETTERS, gpu=2)

    answer = await bench.source.query([gpu_uuid(2)], timeout=PATIENCE)  # type: ignore[list-item]

    assert isinstance(answer, Unknown)
    fake.resume()
    await bench.status(PartState.READY)


async def test_a_driver_that_hangs_in_nvmlinit_is_waited_for(fake: FakeNvml, start: Start) -> None:
    fake.hang(Group.INIT)
    bench = start()

    status = await bench.status(PartState.DEGRADED)
    pid = bench.source.worker_pid
    fake.resume()
    await bench.status(PartState.READY)

    assert status.message
    assert workers() == [pid]


async def test_a_hang_of_the_event_wait_alone_is_seen(fake: FakeNvml, start: Start) -> None:
    bench = start()
    await bench.status(PartState.READY)

    fake.hang(Group.EVENTS)
    status = await bench.status(PartState.DEGRADED)
    fake.resume()
    await bench.status(PartState.READY)
    fake.xid(gpu=0, code=94)

    assert "nvmlEventSetWait" in status.message
    await bench.finding(FindingKind.XID)


async def test_a_stopped_worker_is_unresponsive_until_it_goes_on(start: Start) -> None:
    bench = start()
    await bench.status(PartState.READY)
    pid = bench.source.worker_pid
    assert pid is not None

    os.kill(pid, signal.SIGSTOP)
    try:
        await bench.status(PartState.DEGRADED)
        assert workers() == [pid]
    finally:
        os.kill(pid, signal.SIGCONT)
    await bench.status(PartState.READY)

    assert workers() == [pid]


async def test_a_driver_slower_than_the_poll_period_is_not_hanging_and_still_answers(
    fake: FakeNvml, start: Start
) -> None:
    fake.slow(Group.HANDLES, milliseconds=20)
    bench = start(periods=Periods(poll_period=0.05))
    await bench.status(PartState.READY)

    answer = await bench.source.query([gpu_uuid(0)], timeout=PATIENCE)  # type: ignore[list-item]

    assert isinstance(answer, DevicesAnswer)
    assert bench.statuses.empty()


async def test_a_worker_that_dies_is_replaced(start: Start) -> None:
    bench = start()
    await bench.status(PartState.READY)
    first = bench.source.worker_pid
    assert first is not None

    os.kill(first, signal.SIGKILL)
    status = await bench.status(PartState.DEGRADED)
    await bench.status(PartState.READY)

    assert "signal 9" in status.message
    assert workers() == [bench.source.worker_pid]
    assert bench.source.worker_pid != first


async def test_a_node_without_a_loaded_driver_is_idle_until_it_is_loaded(fake: FakeNvml, start: Start) -> None:
    fake.driver(Driver.ABSENT)
    bench = start()

    status = await bench.status(PartState.IDLE)
    assert not bench.source.inventory.complete
    fake.driver(Driver.LOADED)
    await bench.status(PartState.READY)

    assert "no NVIDIA driver" in status.message
    assert bench.source.inventory.complete


async def test_a_library_that_appears_later_is_picked_up(nvml_library: Path, tmp_path: Path, start: Start) -> None:
    later = tmp_path / "driver" / "lib"
    bench = start(env={"LD_LIBRARY_PATH": str(later)})

    status = await bench.status(PartState.IDLE)
    later.parent.mkdir()
    later.symlink_to(nvml_library)
    await bench.status(PartState.READY)

    assert "libnvidia-ml.so.1" in status.message


async def test_a_driver_that_goes_away_is_no_idle_node(fake: FakeNvml, start: Start) -> None:
    bench = start()
    await bench.status(PartState.READY)

    fake.driver(Driver.ABSENT)
    status = await bench.status(PartState.DEGRADED)

    assert "has had GPUs" in status.message
    assert bench.findings.empty()


async def test_a_driver_upgrade_under_the_worker_gets_a_new_worker(fake: FakeNvml, start: Start) -> None:
    bench = start()
    await bench.status(PartState.READY)
    first = bench.source.worker_pid

    fake.driver(Driver.MISMATCH)
    status = await bench.status(PartState.DEGRADED)
    fake.driver(Driver.LOADED)
    await bench.status(PartState.READY)

    assert "mismatch" in status.message
    assert workers() == [bench.source.worker_pid]
    assert bench.source.worker_pid != first


async def test_release_leaves_no_process_on_nvml_until_resume(fake: FakeNvml, start: Start) -> None:
    bench = start()
    await bench.status(PartState.READY)

    assert await bench.source.release(timeout=PATIENCE)
    assert workers() == []
    assert isinstance(await bench.source.query([], timeout=PATIENCE), Unknown)
    bench.source.resume()
    await bench.status(PartState.READY)

    assert bench.source.inventory.complete


async def test_release_of_a_hanging_worker_says_no_in_time(fake: FakeNvml, start: Start) -> None:
    bench = start()
    await bench.status(PartState.READY)
    pid = bench.source.worker_pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)  # as deaf as one in an uninterruptible call

    released = await bench.source.release(timeout=0.1)
    bench.source.resume()
    alone = workers() == [pid]
    os.kill(pid, signal.SIGCONT)

    assert not released
    assert alone
    await bench.status(PartState.READY)
    assert workers() == [bench.source.worker_pid]


async def test_the_worker_ends_with_the_source(fake: FakeNvml, start: Start) -> None:
    bench = start()
    await bench.status(PartState.READY)
    assert bench.source.worker_pid is not None
    pidfd = os.pidfd_open(bench.source.worker_pid)

    assert await bench.source.release(timeout=PATIENCE)

    assert await asyncio.to_thread(wait_for_end, pidfd)


async def test_a_worker_whose_agent_was_killed_ends(fake: FakeNvml) -> None:
    assert await asyncio.to_thread(_orphan_ends, fake, hang=False)


async def test_a_hanging_worker_whose_agent_was_killed_ends_too(fake: FakeNvml) -> None:
    assert await asyncio.to_thread(_orphan_ends, fake, hang=True)


def _orphan_ends(fake: FakeNvml, *, hang: bool) -> bool:
    env = {**os.environ, **fake.env()}
    with subprocess.Popen([sys.executable, "-c", AGENT], env=env, stdout=subprocess.PIPE, text=True) as agent:
        assert agent.stdout is not None
        lines = (line.split() for line in agent.stdout if line.startswith("ready"))
        pidfd = os.pidfd_open(int(next(lines)[1]))
        if hang:
            fake.hang()
        agent.kill()
    return wait_for_end(pidfd)


def test_the_worker_imports_nothing_heavy() -> None:
    code = "import agent.sources.nvml.worker, json, sys; print(json.dumps(list(sys.modules)))"
    loaded = json.loads(subprocess.check_output([sys.executable, "-c", code]))

    assert not {"asyncio", "grpc", "structlog", "kubernetes", "aiohttp", "google.protobuf"} & set(loaded)


async def test_two_workers_share_one_fake(fake: FakeNvml, start: Start) -> None:
    one, other = start(periods=QUICK), start(periods=QUICK)
    await one.status(PartState.READY)
    await other.status(PartState.READY)

    fake.xid(gpu=0, code=94)

    assert (await one.finding(FindingKind.XID)).device == (await other.finding(FindingKind.XID)).device


def test_the_state_file_of_another_version_is_refused(tmp_path: Path, nvml_library: Path) -> None:
    stale = tmp_path / "stale"
    stale.write_bytes(b"not a state")

    with pytest.raises(ValueError, match="remove it"):
        control.FakeNvml(stale, nvml_library)
