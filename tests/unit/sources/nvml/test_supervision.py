"""The worker process: one at a time, never killed, never blocking; and nodes where NVML comes and goes."""

import asyncio
import json
import os
import select
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from hack.fakenvml import control
from hack.fakenvml.control import FakeNvml, gpu_uuid
from hack.fakenvml.layout import Driver, Group
from kubemend.agent.model.findings import FindingKind
from kubemend.agent.sources.nvml.protocol import DevicesAnswer
from kubemend.agent.sources.nvml.queries import Unknown
from kubemend.agent.sources.nvml.source import Periods
from kubemend.common.components import ComponentState
from tests.unit.sources.nvml.conftest import HANGS, NEVER, PATIENCE, QUICK, Start

AGENT = """
import asyncio, sys
from kubemend.agent.model.actions import ActionClass
from kubemend.agent.sources.nvml.protocol import DevicesAnswer
from kubemend.agent.sources.nvml.source import NvmlSource

def report(status):
    print(status.state.value, source.worker_pid, flush=True)

source = NvmlSource(emit=lambda finding: None, classify=lambda kind, code: ActionClass.NONE, report=report)
asyncio.run(source.run())
"""


def workers() -> list[int]:
    """Return the worker processes of this test process."""
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return [int(pid) for pid in children if b"agent.sources.nvml.worker" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def wait_for_end(pidfd: int) -> bool:
    """Wait until the process behind a pidfd has ended."""
    ready, _, _ = select.select([pidfd], [], [], PATIENCE)
    os.close(pidfd)
    return bool(ready)


async def test_hanging_driver_degrades_the_component_and_blocks_nothing_else(fake: FakeNvml, start: Start) -> None:
    env = start(periods=HANGS)
    await env.status(ComponentState.READY)
    pid = env.source.worker_pid

    fake.hang()
    status = await env.status(ComponentState.DEGRADED)
    answer = await env.source.query([], timeout=PATIENCE)

    assert "unresponsive" in status.message
    assert "nvml" in status.message
    assert isinstance(answer, Unknown)
    assert not env.source.inventory.complete
    assert env.source.inventory.answers(gpu_uuid(0)) is None
    assert len(env.source.inventory.gpus) == 8
    assert workers() == [pid]

    fake.resume()
    await env.status(ComponentState.READY)

    assert workers() == [pid]
    assert env.source.inventory.complete
    assert env.findings.empty()


async def test_query_in_flight_when_driver_hangs_is_unknown(fake: FakeNvml, start: Start) -> None:
    env = start(periods=Periods(poll_period=NEVER, hang_deadline=HANGS.hang_deadline))
    await env.status(ComponentState.READY)
    fake.hang(Group.GETTERS, gpu=2)

    answer = await env.source.query([gpu_uuid(2)], timeout=PATIENCE)  # type: ignore[list-item]

    assert isinstance(answer, Unknown)
    fake.resume()
    await env.status(ComponentState.READY)


async def test_driver_hanging_in_nvmlinit_is_given_time(fake: FakeNvml, start: Start) -> None:
    fake.hang(Group.INIT)
    env = start(periods=HANGS)

    status = await env.status(ComponentState.DEGRADED)
    pid = env.source.worker_pid
    fake.resume()
    await env.status(ComponentState.READY)

    assert status.message
    assert workers() == [pid]


async def test_hang_of_event_wait_alone_is_detected(fake: FakeNvml, start: Start) -> None:
    env = start(periods=HANGS)
    await env.status(ComponentState.READY)

    fake.hang(Group.EVENTS)
    status = await env.status(ComponentState.DEGRADED)
    fake.resume()
    await env.status(ComponentState.READY)
    fake.xid(gpu=0, code=94)

    assert "nvmlEventSetWait" in status.message
    await env.finding(FindingKind.XID)


async def test_stopped_worker_is_unresponsive_until_it_continues(start: Start) -> None:
    env = start(periods=HANGS)
    await env.status(ComponentState.READY)
    pid = env.source.worker_pid
    assert pid is not None

    os.kill(pid, signal.SIGSTOP)
    try:
        await env.status(ComponentState.DEGRADED)
        assert workers() == [pid]
    finally:
        os.kill(pid, signal.SIGCONT)
    await env.status(ComponentState.READY)

    assert workers() == [pid]


async def test_agent_that_was_stopped_does_not_take_its_worker_for_silent(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = start(periods=replace(QUICK, hang_deadline=PATIENCE))
    await env.status(ComponentState.READY)
    loop = asyncio.get_running_loop()

    monkeypatch.setattr(loop, "time", lambda now=loop.time: now() + 10 * PATIENCE)
    answer = await env.source.query([gpu_uuid(0)], timeout=PATIENCE)  # type: ignore[list-item]

    assert isinstance(answer, DevicesAnswer)
    assert env.statuses.empty()


async def test_driver_slower_than_poll_period_answers_without_hang(fake: FakeNvml, start: Start) -> None:
    fake.slow(Group.HANDLES, milliseconds=20)
    env = start(periods=Periods(poll_period=0.05))
    await env.status(ComponentState.READY)

    answer = await env.source.query([gpu_uuid(0)], timeout=PATIENCE)  # type: ignore[list-item]

    assert isinstance(answer, DevicesAnswer)
    assert env.statuses.empty()


async def test_polls_that_do_not_end_make_the_state_unknown(fake: FakeNvml, start: Start) -> None:
    """No call takes long enough to count as hanging, but the last poll says less and less about the GPUs."""
    env = start(periods=replace(QUICK, hang_deadline=1.0))
    await env.status(ComponentState.READY)

    fake.slow(Group.GETTERS, milliseconds=100)
    while "a poll of all GPUs" not in (await env.status(ComponentState.DEGRADED)).message:
        pass
    answers = env.source.inventory.answers(gpu_uuid(0))
    fake.slow(Group.GETTERS, milliseconds=0)
    await env.status(ComponentState.READY)

    assert answers is None
    assert env.source.inventory.answers(gpu_uuid(0)) is True


async def test_dead_worker_is_replaced(start: Start) -> None:
    env = start()
    await env.status(ComponentState.READY)
    first = env.source.worker_pid
    assert first is not None

    os.kill(first, signal.SIGKILL)
    status = await env.status(ComponentState.DEGRADED)
    await env.status(ComponentState.READY)

    assert "signal 9" in status.message
    assert workers() == [env.source.worker_pid]
    assert env.source.worker_pid != first


async def test_node_without_loaded_driver_is_idle_until_loaded(fake: FakeNvml, start: Start) -> None:
    fake.driver(Driver.ABSENT)
    env = start()

    status = await env.status(ComponentState.IDLE)
    assert not env.source.inventory.complete
    fake.driver(Driver.LOADED)
    await env.status(ComponentState.READY)

    assert "no NVIDIA driver" in status.message
    assert env.source.inventory.complete


async def test_library_that_appears_later_is_picked_up(nvml_library: Path, tmp_path: Path, start: Start) -> None:
    later = tmp_path / "driver" / "lib"
    env = start(env={"LD_LIBRARY_PATH": str(later)})

    status = await env.status(ComponentState.IDLE)
    later.parent.mkdir()
    later.symlink_to(nvml_library)
    await env.status(ComponentState.READY)

    assert "libnvidia-ml.so.1" in status.message


async def test_driver_that_disappears_is_not_an_idle_node(fake: FakeNvml, start: Start) -> None:
    env = start()
    await env.status(ComponentState.READY)

    fake.driver(Driver.ABSENT)
    while "has had GPUs" not in (await env.status(ComponentState.DEGRADED)).message:
        pass  # it has disappeared in the middle of a poll

    assert env.findings.empty()


async def test_driver_upgrade_gets_a_new_worker(fake: FakeNvml, start: Start) -> None:
    env = start()
    await env.status(ComponentState.READY)
    first = env.source.worker_pid

    fake.driver(Driver.MISMATCH)
    status = await env.status(ComponentState.DEGRADED)
    fake.driver(Driver.LOADED)
    await env.status(ComponentState.READY)

    assert "mismatch" in status.message
    assert workers() == [env.source.worker_pid]
    assert env.source.worker_pid != first


async def test_release_leaves_no_nvml_process_until_resume(fake: FakeNvml, start: Start) -> None:
    env = start()
    await env.status(ComponentState.READY)

    assert await env.source.release(timeout=PATIENCE)
    assert workers() == []
    assert isinstance(await env.source.query([], timeout=PATIENCE), Unknown)
    env.source.resume()
    await env.status(ComponentState.READY)

    assert env.source.inventory.complete


async def test_requirement_of_the_kernel_log_alone_ends_when_nvml_is_resumed(fake: FakeNvml, start: Start) -> None:
    """A reset while NVML is released: the driver requires it, and no longer does, without a poll in between."""
    env = start()
    await env.over(FindingKind.RECOVERY_ACTION, gpu=7)  # that of a previous agent

    assert await env.source.release(timeout=PATIENCE)
    env.source.resume()

    await env.over(FindingKind.RECOVERY_ACTION, gpu=7)


async def test_requirement_of_the_kernel_log_alone_ends_after_an_operators_clear(start: Start) -> None:
    """An operator cannot clear what the driver requires, but NVML had reported long ago that this is nothing."""
    env = start()
    await env.over(FindingKind.RECOVERY_ACTION, gpu=7)

    env.source.forget(gpu_uuid(7))

    await env.over(FindingKind.RECOVERY_ACTION, gpu=7)


async def test_release_of_hanging_worker_returns_false_in_time(fake: FakeNvml, start: Start) -> None:
    env = start()
    await env.status(ComponentState.READY)
    pid = env.source.worker_pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)  # as unresponsive as in an uninterruptible call

    released = await env.source.release(timeout=0.1)
    env.source.resume()
    alone = workers() == [pid]
    os.kill(pid, signal.SIGCONT)

    assert not released
    assert alone
    await env.status(ComponentState.READY)
    assert workers() == [env.source.worker_pid]


async def test_worker_ends_with_the_source(fake: FakeNvml, start: Start) -> None:
    env = start()
    await env.status(ComponentState.READY)
    assert env.source.worker_pid is not None
    pidfd = os.pidfd_open(env.source.worker_pid)

    assert await env.source.release(timeout=PATIENCE)

    assert await asyncio.to_thread(wait_for_end, pidfd)


async def test_worker_of_killed_agent_ends(fake: FakeNvml) -> None:
    assert await asyncio.to_thread(_orphan_ends, fake, hang=False)


async def test_hanging_worker_of_killed_agent_ends(fake: FakeNvml) -> None:
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


def test_worker_imports_nothing_heavy() -> None:
    code = "import kubemend.agent.sources.nvml.worker, json, sys; print(json.dumps(list(sys.modules)))"
    loaded = json.loads(subprocess.check_output([sys.executable, "-c", code]))

    assert not {"asyncio", "grpc", "structlog", "kubernetes", "aiohttp", "google.protobuf"} & set(loaded)


async def test_two_workers_share_one_fake(fake: FakeNvml, start: Start) -> None:
    one, other = start(periods=QUICK), start(periods=QUICK)
    await one.status(ComponentState.READY)
    await other.status(ComponentState.READY)

    fake.xid(gpu=0, code=94)

    assert (await one.finding(FindingKind.XID)).device == (await other.finding(FindingKind.XID)).device


def test_state_file_of_another_version_is_refused(tmp_path: Path, nvml_library: Path) -> None:
    stale = tmp_path / "stale"
    stale.write_bytes(b"not a state")

    with pytest.raises(ValueError, match="remove it"):
        control.FakeNvml(stale, nvml_library)
