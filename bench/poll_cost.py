"""How long one poll of all GPUs takes, in milliseconds: ``python -m bench.poll_cost 100``. For ``bench.health``."""

import json
import sys
import time

import pynvml

from agent.sources.nvml import reader
from agent.sources.nvml.calls import Calls
from agent.sources.nvml.outcomes import Value
from bench import figures


def main() -> None:
    """Poll as often as the argument says, and print the figures as JSON."""
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
