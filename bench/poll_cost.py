"""Measure what the polls of all GPUs cost: ``python -m bench.poll_cost 100``. For ``bench.health``.

It runs on the NVML that it finds, so on a real GPU the costs are real. Prints JSON: the duration of a cheap and of a
full poll, the share of a core that the worker's polls use at their periods, and of each NVML function how often a full
poll calls it, and the median and mean of its duration.
"""

import contextlib
import json
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, Final

import pynvml

from bench import figures
from kubemend.agent.sources.nvml import reader
from kubemend.agent.sources.nvml.calls import Calls, Value
from kubemend.agent.sources.nvml.source import Periods

H100_CALL_US: Final = 190
"""Processor time of one call: a full poll of an H100 took up to 8.4 ms for at least 44, a cheap one 2.0 ms for 11."""


class Timed(Calls):
    """Takes the duration of each call, in seconds."""

    def __init__(self) -> None:
        super().__init__(deadline=60.0, announce=lambda _: None, came_back=lambda: None)
        self.took: dict[str, list[float]] = defaultdict(list)

    @contextlib.contextmanager
    def during(self, name: str, *, wait: float = 0.0) -> Iterator[None]:
        """Time the call."""
        with super().during(name, wait=wait):
            began = time.perf_counter()
            try:
                yield
            finally:
                self.took[name].append(time.perf_counter() - began)


def main() -> None:
    """Poll as often as the argument requests, and print the figures as JSON."""
    rounds = int(sys.argv[1])
    calls = Timed()
    nvml = reader.Reader(pynvml=pynvml, calls=calls)
    assert isinstance(nvml.init(), Value), "NVML does not start"
    nvml.snapshot(full=True)  # reads the constants, once
    cheap, cheap_work = _polls(nvml, full=False, rounds=rounds)
    calls.took.clear()
    full, full_work = _polls(nvml, full=True, rounds=rounds)
    found: dict[str, Any] = {
        "cheap_ms": figures.milliseconds(cheap),
        "full_ms": figures.milliseconds(full),
        "percent_of_a_core": round(100 * share(cheap=cheap_work, full=full_work, periods=Periods()), 3),
        "calls": {
            name: {
                "times": round(len(took) / rounds),
                "p50_us": round(statistics.median(took) * 1e6, 1),
                "mean_us": round(statistics.fmean(took) * 1e6, 1),
            }
            for name, took in sorted(calls.took.items(), key=lambda item: -sum(item[1]))
        },
    }
    print(json.dumps(found))


def share(*, cheap: float, full: float, periods: Periods) -> float:
    """Return the share of a core that the worker's polls use. ``cheap``, ``full``: processor seconds of one poll."""
    cheap_polls = periods.full_period / periods.poll_period - 1  # a full poll takes the place of one
    return (full + cheap_polls * cheap) / periods.full_period


def _polls(nvml: reader.Reader, *, full: bool, rounds: int) -> tuple[list[float], float]:
    """Return the duration of each poll, and the processor time of one."""
    took = []
    work = time.thread_time()
    for _ in range(rounds):
        began = time.perf_counter()
        outcome = nvml.snapshot(full=full)
        took.append(time.perf_counter() - began)
        assert isinstance(outcome, Value), outcome
    return took, (time.thread_time() - work) / rounds


if __name__ == "__main__":
    main()
