"""``bench.arrivals``: the GPU that is broken and fixed alternately."""

import asyncio

import pytest

from bench.arrivals import Arrivals


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
