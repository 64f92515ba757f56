"""Slow kills: a process that still ends is waited for, a stuck one is reported, by the state of its threads."""

import asyncio
import itertools
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

import grpc
import pytest

from kubemend.agent.actuator import listings, progress
from kubemend.agent.actuator.device_release import ReleaseGates
from kubemend.agent.actuator.dying import PollIntervals
from kubemend.agent.actuator.release_gate import Timeouts
from kubemend.agent.actuator.swap import SwapActuator
from kubemend.agent.model.devices import DeviceId
from kubemend.agent.model.hangs import Thread
from kubemend.agent.model.outcomes import Outcome, Result
from kubemend.agent.model.workloads import ContainerId
from kubemend.agent.restart import intents
from kubemend.agent.restart.device_release import DeviceUse
from tests import eventually
from tests.environments.runtime import CriEnv
from tests.fakes.gpu_host import GpuHost

QUICK = PollIntervals(first=0.0, each=0.01, window=0.3)
MANY = 1000
LONG = 3000.0
"""Seconds that no call takes: its deadline comes first."""
GPU = DeviceId("GPU-0")
PID = 11
GIB = 1 << 30


class Processes:
    """The threads of killed processes, as ``shows`` returns them at each poll."""

    def __init__(self, shows: Callable[[int], Thread]) -> None:
        self._shows = shows
        self._looks = itertools.count()

    def container_pids(self, pid: int, *, of: ContainerId) -> frozenset[int]:
        return frozenset({pid, 77})

    def threads(self, pids: Iterable[int]) -> tuple[Thread, ...]:
        assert 77 in pids, "the processes other than the first one are checked, too"
        return (self._shows(next(self._looks)),)


def frees(look: int) -> Thread:
    return Thread(77, 78, "python", "D", stack=("nv_free_pages",), used=look)


def hangs(_: int) -> Thread:
    return Thread(77, 78, "python", "D", waits_in="os_acquire_mutex")


def sleeps(_: int) -> Thread:
    return Thread(77, 78, "python", "S")


def gives_up_kills(cri_env: CriEnv) -> None:
    """Let a kill without an answer end at its deadline soon; in other tests it does not, however busy the machine."""
    cri_env.cri._deadlines = replace(cri_env.cri._deadlines, margin=0.3)


async def swapped(
    cri_env: CriEnv, processes: Processes, *, unanswered: int = 0, takes: float = 0.15, time_limit: float = 30.0
) -> Outcome:
    """Swap a container whose kill times out repeatedly. ``takes`` are the seconds of each call."""
    intent = cri_env.intent()
    successor_spec = await cri_env.successor_spec(intent)
    cri_env.server.fail("StopContainer", grpc.StatusCode.DEADLINE_EXCEEDED, times=unanswered)
    cri_env.server.delay("StopContainer", takes)
    tools = replace(cri_env.tools(time_limit=time_limit), processes=processes, poll_intervals=QUICK)
    return await SwapActuator(tools).carry_out(intent, successor_spec=successor_spec)


async def test_death_while_driver_frees_memory_is_waited_for(cri_env: CriEnv) -> None:
    outcome = await swapped(cri_env, Processes(frees), unanswered=5)
    assert outcome.result is Result.SWAPPED


async def test_process_stuck_in_kernel_is_reported_with_its_place(cri_env: CriEnv) -> None:
    outcome = await swapped(cri_env, Processes(hangs), unanswered=MANY)
    assert outcome.result is Result.STUCK
    assert "python (78) D in os_acquire_mutex" in outcome.detail


async def test_death_in_progress_extends_the_time_limit(cri_env: CriEnv) -> None:
    gives_up_kills(cri_env)
    limit = 1.5
    ends_at = time.monotonic() + limit + 0.5

    def frees_until_then(look: int) -> Thread:
        if time.monotonic() > ends_at:
            cri_env.server.delay("StopContainer", 0.0)
        return frees(look)

    outcome = await swapped(cri_env, Processes(frees_until_then), takes=LONG, time_limit=limit)
    assert outcome.result is Result.SWAPPED


async def test_runtime_that_does_not_kill_is_not_a_stuck_process(cri_env: CriEnv) -> None:
    outcome = await swapped(cri_env, Processes(sleeps), unanswered=MANY, time_limit=1.0)
    assert outcome.result is Result.UNFINISHED


class Declines(GpuHost):
    """A driver that lists less memory of the old process at each query, as an H100 with pinned memory does."""

    async def uses(self, uuids: Iterable[DeviceId], *, timeout: float) -> Mapping[DeviceId, DeviceUse] | None:
        used = self.listed[GPU].get(PID)
        if used is not None and self.questions:
            self.listed[GPU][PID] = max(used - 4 * GIB, GIB)
        return await super().uses(uuids, timeout=timeout)


class Reported:
    """What the restart reports of the memory."""

    def __init__(self) -> None:
        self.left: list[int] = []
        self.reported = asyncio.Event()

    def notify(self, event: progress.Event) -> None:
        if isinstance(event, progress.Freeing):
            assert event.container == "trainer"
            self.left.append(event.left)
            self.reported.set()


async def freed(
    cri_env: CriEnv,
    host: GpuHost,
    reported: Reported,
    *,
    takes: float,
    order: intents.SwapOrder = intents.SwapOrder.STOP_FIRST,
    leave: float = 0.05,
    at_once: bool = False,
) -> Outcome:
    """Swap a container whose kill takes some seconds, in which the driver frees its memory."""
    host.put(GPU, PID, container=cri_env.old, used=41 * GIB)
    intent = cri_env.intent(order=order)
    successor_spec = await cri_env.successor_spec(intent)
    cri_env.server.delay("StopContainer", takes)
    gates = ReleaseGates(driver=host, processes=host, timeouts=Timeouts(before=5.0, answer=5.0, leave=leave))
    poll_intervals = replace(QUICK, memory=0.01)
    tools = replace(cri_env.tools(), processes=Processes(frees), poll_intervals=poll_intervals, gates=gates)
    async with gates.around([intent], devices=frozenset({GPU})) as visit:
        await visit.remembered()
        if at_once:
            host.end(PID)
        return await SwapActuator(tools).carry_out(intent, successor_spec=successor_spec, followed=reported)


async def test_memory_that_is_left_is_reported_while_the_driver_frees_it(cri_env: CriEnv) -> None:
    gives_up_kills(cri_env)
    reported = Reported()
    work = asyncio.create_task(freed(cri_env, Declines(), reported, takes=LONG))
    await eventually.true(lambda: GIB in reported.left)
    cri_env.server.delay("StopContainer", 0.0)
    outcome = await work
    assert outcome.result is Result.SWAPPED
    assert reported.left[:3] == [37 * GIB, 33 * GIB, 29 * GIB]
    assert min(reported.left) == GIB
    assert outcome.phases["free"] > 0
    assert outcome.phases["stop"] >= 0


@pytest.mark.parametrize("order", list(intents.SwapOrder))
async def test_memory_that_is_left_after_the_kill_is_reported(
    cri_env: CriEnv, monkeypatch: pytest.MonkeyPatch, order: intents.SwapOrder
) -> None:
    monkeypatch.setattr(listings, "RELIST_SECONDS", 0.02)
    reported, host = Reported(), GpuHost()
    work = asyncio.create_task(freed(cri_env, host, reported, takes=0.0, order=order, leave=60.0))
    async with asyncio.timeout(30):
        await host.questions_reach(1)
        host.die(PID)
        await reported.reported.wait()
    host.leave(PID)
    assert (await work).result is Result.SWAPPED
    assert set(reported.left) == {41 * GIB}


async def test_memory_of_a_quick_kill_is_not_queried(cri_env: CriEnv) -> None:
    reported, host = Reported(), GpuHost()
    outcome = await freed(cri_env, host, reported, takes=0.0, at_once=True)
    assert (outcome.result, reported.left, "free" in outcome.phases) == (Result.SWAPPED, [], False)


async def test_driver_that_does_not_answer_reports_nothing(cri_env: CriEnv) -> None:
    reported, host = Reported(), GpuHost(answers=False)
    outcome = await freed(cri_env, host, reported, takes=0.1)
    assert (outcome.result, reported.left, "free" in outcome.phases) == (Result.SWAPPED, [], False)
