"""Measure the milliseconds of one poll of all GPUs: ``python -m bench.poll_cost 100``. For ``bench.health``."""

import json
import sys
import time

import pynvml

from bench import figures
from kubemend.agent.sources.nvml import reader
from kubemend.agent.sources.nvml.calls import Calls
from kubemend.agent.sources.nvml.outcomes import Value


def main() -> None:
    """Poll as often as the argument requests, and print the figures as JSON."""
    calls = Calls(deadline=60.0, announce=lambda _: None, came_back=lambda: None)
    nvml = reader.Reader(pynvml=pynvml, calls=calls)
    assert isinstance(nvml.init(), Value), "NVML does not start"
    took = []
    for _ in range(int(sys.argv[1])):
        began = time.perf_counter()
        outcome = nvml.snapshot()
        took.append(time.perf_counter() - began)
        assert isinstance(outcome, Value), outcome
    print(json.dumps(figures.milliseconds(took)))


if __name__ == "__main__":
    main()
