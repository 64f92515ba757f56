"""A program's start is compared with a fault's time by a clock that is never set."""

import asyncio

import pytest

from kubemend.agent.model.workloads import ContainerId
from kubemend.agent.sources.program_starts import ProgramStarts

TRAINER = ContainerId("trainer")


@pytest.mark.parametrize("step", [0.0, 3600.0, -3600.0, -1e9], ids=["", "forward", "back", "to-the-nineties"])
@pytest.mark.parametrize(("age", "is_newer"), [(30.0, False), (5.0, True)])
async def test_program_is_newer_than_fault_however_the_wall_clock_was_set(
    step: float, age: float, is_newer: bool
) -> None:
    wall, monotonic = 1.8e9, 500.0
    starts = ProgramStarts(now=lambda: wall, clock=lambda: monotonic)
    starts.started(TRAINER, age)
    wall += step
    newer = asyncio.create_task(starts.since(TRAINER, wall - 10.0))
    await asyncio.sleep(0)
    assert newer.done() is is_newer
    starts.started(TRAINER, 0.0)
    await newer
