"""Slow kills: a process that still ends is waited for, a stuck one is reported, by the state of its threads."""

import itertools
from collections.abc import Callable, Iterable
from dataclasses import replace

import grpc

from kubemend.agent.actuator.dying import Rhythm
from kubemend.agent.actuator.outcomes import Outcome, Result
from kubemend.agent.actuator.swap import SwapActuator
from kubemend.agent.model.hangs import Thread
from tests.unit.actuator.conftest import Rig

QUICK = Rhythm(first=0.0, each=0.01, window=0.3)
MANY = 1000


class Processes:
    """The threads of killed processes, as ``shows`` returns them at each poll."""

    def __init__(self, shows: Callable[[int], Thread]) -> None:
        self._shows = shows
        self._looks = itertools.count()

    def beside(self, pid: int) -> frozenset[int]:
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


async def swapped(rig: Rig, processes: Processes, *, unanswered: int, time_limit: float = 30.0) -> Outcome:
    """Swap a container whose kill times out repeatedly."""
    intent = rig.intent()
    material = await rig.material(intent)
    rig.server.fail("StopContainer", grpc.StatusCode.DEADLINE_EXCEEDED, times=unanswered)
    rig.server.delay("StopContainer", 0.05)
    tools = replace(rig.tools(time_limit=time_limit), processes=processes, rhythm=QUICK)
    return await SwapActuator(tools).carry_out(intent, material=material)


async def test_death_while_driver_frees_memory_is_waited_for(rig: Rig) -> None:
    outcome = await swapped(rig, Processes(frees), unanswered=5)
    assert outcome.result is Result.SWAPPED


async def test_process_stuck_in_kernel_is_reported_with_its_place(rig: Rig) -> None:
    outcome = await swapped(rig, Processes(hangs), unanswered=MANY)
    assert outcome.result is Result.STUCK
    assert "python (78) D in os_acquire_mutex" in outcome.detail


async def test_death_in_progress_extends_the_time_limit(rig: Rig) -> None:
    outcome = await swapped(rig, Processes(frees), unanswered=5, time_limit=0.5)
    assert outcome.result is Result.SWAPPED


async def test_runtime_that_does_not_kill_is_not_a_stuck_process(rig: Rig) -> None:
    outcome = await swapped(rig, Processes(sleeps), unanswered=MANY, time_limit=1.0)
    assert outcome.result is Result.UNFINISHED
