"""``bench.arrivals``: the GPU that is broken and fixed alternately."""

import asyncio

import pytest

from bench.arrivals import Arrivals
from kubemend.agent.reporters import pod_conditions
from kubemend.agent.reporters.allowances import Allowances
from tests import virtual_time


@pytest.mark.parametrize("times", [0, 1, 2, 5])
async def test_gpu_is_fixed_in_the_end_and_only_the_wanted_number_is_measured(times: int) -> None:
    arrivals = Arrivals(gpu=0, seen=asyncio.Queue())
    is_broken = False

    def toggle(broken: bool) -> None:
        nonlocal is_broken
        assert broken is not is_broken, "the condition does not change, so nothing arrives"
        is_broken = broken
        arrivals.seen.put_nowait(("False" if broken else "True", 0.0))

    for _ in range(2):
        assert len(await arrivals.toggled(times=times, toggle=toggle)) == times
        assert not is_broken


def test_agent_may_write_at_once_after_each_toggle() -> None:
    async def toggled() -> list[float]:
        arrivals, waits = Arrivals(gpu=0, seen=asyncio.Queue()), list[float]()
        agents = Allowances(burst=pod_conditions.BURST, refill=pod_conditions.REFILL)
        clock = asyncio.get_running_loop().time

        def toggle(broken: bool) -> None:
            waits.append(max(0.0, agents.next_at("pod") - clock()))
            agents.spend("pod", now=clock())
            arrivals.seen.put_nowait(("False" if broken else "True", 0.0))

        for _ in range(2):
            await arrivals.toggled(times=40, toggle=toggle)
        return waits

    assert virtual_time.run(toggled()) == [0.0] * 80
