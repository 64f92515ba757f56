"""Measure how soon a device fault is in the API, and the cost of watching for it.

A whole agent runs on a node with 8 GPUs. The CPU time of its start is taken once it is ready. The driver's verdict is
toggled by kernel log lines (Xid 154), then by NVML events (recovery action), then by lines again while every call into
the driver hangs; the time from each to the pod condition in the API is taken by a watch. Then the kernel log is
flooded, then nothing happens for a while: the usage of the agent and its NVML worker at rest. An agent that only
observes shows the time from a line about a program's fault, and from its attribution, to the decision about its
container. Last, the cost of the
polls of all GPUs, in a process of its own on the same library: with free calls, and with calls that use as much of the
processor as those of an H100. Both have a row for each NVML function: how often a full poll of all GPUs calls it, and
the median of its duration. So has the record of a real H200 (``h200_poll.json``, of one GPU, whose cheap polls still
read the margin). On a machine with a GPU, ``python -m bench.poll_cost 100`` prints the same with the real costs.

Prints JSON. The goals are in ``bench.goals``; apart from those, at most 0.5 % of a core for the polls of eight H100s.
"""

import asyncio
import json
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import click

from bench import arrivals, decisions, figures, footprint, poll_cost
from bench.rig import SECONDS
from hack.devnode import node, readyz
from kubemend.common import logs

RECORDED = Path(__file__).with_name("h200_poll.json")

_POLLS = 100
_SETTLING = 5.0  # seconds after the last event, before rest begins
_FLOOD_LINE = "usb 1-1: new high-speed USB device number 4 using xhci_hcd"


@dataclass(frozen=True, slots=True)
class Counts:
    """Set how often each thing is measured; ``rest`` is in seconds."""

    lines: int
    events: int
    faults: int
    records: int
    rest: float


async def measure(counts: Counts) -> dict[str, Any]:
    """Run everything and return the figures."""
    async with node.DevNode.named("bench-health") as dev:
        async with dev.agent() as agent:
            start = await _start_cost(agent)
            times = await _toggles(dev, counts)
            flood = await _flood(dev, agent, records=counts.records)
            await asyncio.sleep(_SETTLING)
            before = footprint.of(agent.child.pid)
            await asyncio.sleep(counts.rest)
            rest = footprint.of(agent.child.pid).since(before)
        decided = await decisions.measure(dev, count=counts.faults)
        poll = await asyncio.to_thread(_poll_cost, dev)
        dev.nvml.cost(microseconds=poll_cost.H100_CALL_US)
        as_h100 = await asyncio.to_thread(_poll_cost, dev)
        kinds = dev.kinds
    return {
        "node": kinds,
        "start_cpu_seconds": start,
        "log_line_to_condition_ms": figures.milliseconds(times.by_line),
        "nvml_event_to_condition_ms": figures.milliseconds(times.by_event),
        "log_line_to_condition_while_nvml_hangs_ms": figures.milliseconds(times.while_hung),
        "log_line_to_decision_ms": figures.milliseconds([each.from_line for each in decided]),
        "attribution_to_decision_ms": figures.milliseconds([each.from_attribution for each in decided]),
        "kernel_log": flood,
        "at_rest": rest,
        "poll_of_8_gpus": poll,
        "poll_of_8_gpus_as_costly_as_h100": as_h100,
        "recorded_poll_of_an_h200": json.loads(RECORDED.read_text()),
    }


@dataclass(frozen=True, slots=True)
class Times:
    """Hold the seconds from a fault, or its end, to the condition in the API."""

    by_line: list[float]
    by_event: list[float]
    while_hung: list[float]


async def _toggles(dev: node.DevNode, counts: Counts) -> Times:
    """Toggle the driver's verdict on a GPU that a pod holds, by the kernel log and by NVML."""
    async with arrivals.of_a_pod(dev) as conditions:
        gpu = conditions.gpu
        by_line = arrivals.by_line(dev, gpu=gpu)
        lines = await conditions.toggled(times=counts.lines, toggle=by_line)
        events = await conditions.toggled(
            times=counts.events, toggle=lambda broken: dev.nvml.recovery(int(broken), gpu=gpu)
        )
        dev.nvml.hang()
        try:
            await conditions.until("Unknown")  # a driver that does not answer is not healthy
            hung = await conditions.toggled(times=counts.lines, toggle=by_line, fixed="Unknown")
        finally:
            dev.nvml.resume()
    return Times(by_line=lines, by_event=events, while_hung=hung)


async def _start_cost(agent: node.Agent) -> float:
    """Return the CPU seconds of the agent and its worker processes until every component is ready."""
    await readyz.until_ready(agent)
    return round(footprint.of(agent.child.pid).cpu_seconds, 2)


async def _flood(dev: node.DevNode, agent: node.Agent, *, records: int) -> dict[str, Any]:
    """Append records as fast as the file accepts them; return the rate of reading, and the losses."""
    before = await _counters(agent)
    began = time.perf_counter()
    await asyncio.to_thread(dev.kernel_log.flood, _FLOOD_LINE, count=records)
    async with asyncio.timeout(SECONDS):
        while True:
            now = await _counters(agent)
            read = now["read"] - before["read"]
            if read >= records:
                break
            await asyncio.sleep(0.02)
    took = time.perf_counter() - began
    lost = now["lost"] - before["lost"]
    return {"records": int(read), "lost": int(lost), "records_per_second": round(records / took)}


async def _counters(agent: node.Agent) -> dict[str, float]:
    url = f"http://{agent.metrics_address}/metrics"
    async with aiohttp.ClientSession(trust_env=False) as session, session.get(url) as answer:
        page = await answer.text()
    found = dict(re.findall(r"^kubemend_kernel_log_records_(read|lost)_total (\S+)$", page, re.MULTILINE))
    return {name: float(value) for name, value in found.items()}


def _poll_cost(dev: node.DevNode) -> dict[str, Any]:
    """Return the cost of the polls, in the environment of the agent's worker."""
    line = [sys.executable, "-m", "bench.poll_cost", str(_POLLS)]
    done = subprocess.run(line, env=dev.agent_environment(), capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@click.command(help=__doc__)
@click.option("--lines", default=30, show_default=True, help="Kernel log lines, and as many while the driver hangs.")
@click.option("--events", default=30, show_default=True, help="NVML events.")
@click.option("--faults", default=100, show_default=True, help="Faults of a program.")
@click.option("--records", default=100_000, show_default=True, help="Kernel log records of the flood.")
@click.option("--rest", default=60.0, show_default=True, help="Seconds at rest.")
def main(**counts: Any) -> None:
    """Measure and print."""
    logs.configure(level="error", log_format="console")
    click.echo(json.dumps(asyncio.run(measure(Counts(**counts))), indent=2))


if __name__ == "__main__":
    main()
