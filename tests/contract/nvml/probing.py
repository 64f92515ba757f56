"""Read NVML once by kubemend's own reader, in a process of its own: the readings, and the cost."""

import json
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

_PROBE = """
import json, time, pynvml
from kubemend.agent.sources.nvml import protocol, reader
from kubemend.agent.sources.nvml.calls import Calls

nvml = reader.Reader(
    pynvml=pynvml, calls=Calls(deadline=60.0, announce=lambda _: None, came_back=lambda: None)
)
nvml.init()
found = {"polls": {}}
for name, full in (("full", True), ("cheap", False)):
    nvml.snapshot(full=full)
    walls, works = [], []
    for _ in range(ROUNDS):
        wall, work = time.perf_counter(), time.process_time()
        snapshot = nvml.snapshot(full=full)
        walls.append(time.perf_counter() - wall)
        works.append(time.process_time() - work)
    found["polls"][name] = {
        "wall_ms": round(1000 * sorted(walls)[ROUNDS // 2], 3), "cpu_ms": round(1000 * sum(works) / ROUNDS, 3)
    }
    found[name] = protocol.encode(snapshot.value).decode()
print(json.dumps(found))
"""


def look(env: Mapping[str, str], *, rounds: int = 1) -> dict[str, Any]:
    """Return a full and a cheap poll as the worker would send them, and the time of each, over ``rounds`` rounds."""
    code = _PROBE.replace("ROUNDS", str(rounds))
    output = subprocess.check_output([sys.executable, "-c", code], env=dict(env), timeout=120)
    found: dict[str, Any] = json.loads(output)
    return found
