"""Measure the time from a line in the kernel log to a node's condition in the API, by kubemend and by others.

node-problem-detector and kubemend's agent run at the same time on one node and get the same lines at the same moment.
The lines are the driver's verdicts on a GPU (Xid 154): that it must be reset, and that it need not. The time from each
line to the node's condition in the API is taken by one watch for both. They come at random moments, as
node-problem-detector writes once a second.

node-problem-detector reads /dev/kmsg. It runs where that path is the benchmark's pipe, which gets each record in the
kernel's format. It never clears a permanent problem by itself: the line that ends one is a problem of its own, with
another reason for the same condition.
"""

import asyncio
import contextlib
import json
import os
import random
import shlex
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from bench import figures
from bench.peers import modules
from bench.rig import SECONDS
from hack.devnode import node, processes, readyz
from hack.fakenvml import control as nvml_control
from kubemend.common.kube import client as kube
from kubemend.common.kube import paths

_OURS, _THEIRS = "kubemend.io/DevicesHealthy", "GpuProblem"
_LINE: Final = "GPU recovery action changed from"
_REASONS: Final = {True: "GpuResetRequired", False: "NoGpuResetRequired"}
_STOP_SECONDS: Final = 10.0
_LONGEST_WAIT: Final = 1.0  # node-problem-detector's own period (condition/manager.go, updatePeriod)

Json = dict[str, Any]


@dataclass
class Conditions:
    """Hold a node's watched conditions: for each, status or reason, and its arrival time (``time.perf_counter``)."""

    ours: "asyncio.Queue[tuple[str, float]]" = field(default_factory=asyncio.Queue)
    theirs: "asyncio.Queue[tuple[str, float]]" = field(default_factory=asyncio.Queue)

    def seen(self, item: Json) -> None:
        """Record the conditions of a node's object."""
        now = time.perf_counter()
        for condition in item.get("status", {}).get("conditions") or ():
            if condition["type"] == _OURS:
                self.ours.put_nowait((condition["status"], now))
            elif condition["type"] == _THEIRS:
                self.theirs.put_nowait((condition["reason"], now))


async def measure(dev: node.DevNode, *, lines: int) -> Json:
    """Return the figures of both, and the ratio of their medians."""
    ours: list[float] = []
    theirs: list[float] = []
    chance = random.Random(0)
    async with contextlib.AsyncExitStack() as stack:
        pipe = stack.enter_context(_pipe(_place(dev) / "kmsg"))
        await stack.enter_async_context(_detector(dev))
        agent = await stack.enter_async_context(dev.agent())
        await readyz.until_ready(agent)
        conditions = await stack.enter_async_context(_watched(dev))
        await _until(conditions.ours, "True")
        await _until(conditions.theirs, "NoGpuProblem")
        pci = nvml_control.kernel_address(0)
        for number in range(lines):
            broken = number % 2 == 0
            await asyncio.sleep(chance.uniform(0.0, _LONGEST_WAIT))
            size = dev.layout.kernel_log.stat().st_size
            began = time.perf_counter()
            dev.kernel_log.write_recovery_action(int(broken), old=int(not broken), pci=pci)
            os.write(pipe, dev.layout.kernel_log.read_bytes()[size:])
            ours.append(await _until(conditions.ours, "False" if broken else "True") - began)
            theirs.append(await _until(conditions.theirs, _REASONS[broken]) - began)
    mine, others = figures.milliseconds(ours), figures.milliseconds(theirs)
    return {
        "lines": lines,
        "kubemend_ms": mine,
        "node_problem_detector_ms": others,
        "ratio": round(others["p50"] / mine["p50"], 2),
    }


def _place(dev: node.DevNode) -> Path:
    return dev.layout.root / "node-problem-detector"


@contextlib.contextmanager
def _pipe(path: Path) -> Iterator[int]:
    """Create a named pipe, and yield a descriptor for writing that does not wait for a reader."""
    path.parent.mkdir()
    os.mkfifo(path)
    descriptor = os.open(path, os.O_RDWR)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextlib.asynccontextmanager
async def _detector(dev: node.DevNode) -> AsyncIterator[None]:
    """Run node-problem-detector for the length of the block, in a mount namespace where /dev/kmsg is the pipe."""
    programs = await asyncio.to_thread(modules.programs, modules.NODE_PROBLEM_DETECTOR)
    where = _place(dev)
    (where / "monitor.json").write_text(json.dumps(_MONITOR))
    api = f"https://127.0.0.1:{dev.api.port}?inClusterConfig=false&auth={dev.kubeconfig}"
    command = [
        str(programs / "nodeproblemdetector"),
        f"--config.system-log-monitor={where / 'monitor.json'}",
        f"--apiserver-override={api}",
        f"--hostname-override={dev.name}",
        "--port=0",
        "--prometheus-port=0",
    ]
    script = f"mount --bind {shlex.quote(str(where / 'kmsg'))} /dev/kmsg && exec {shlex.join(command)}"
    child = processes.Child.start(
        ["unshare", "--mount", "--propagation", "private", "sh", "-euc", script],
        name="node-problem-detector",
        log=where / "log",
        pid_file=where / "pid",
    )
    try:
        yield
    finally:
        await child.stop(grace=_STOP_SECONDS)


@contextlib.asynccontextmanager
async def _watched(dev: node.DevNode) -> AsyncIterator[Conditions]:
    conditions = Conditions()
    async with kube.connect(kubeconfig=dev.kubeconfig) as api:
        listing = await api.list(_NODES)
        for each in listing.items:
            conditions.seen(each)

        async def watch() -> None:
            async for change in api.watch(_NODES, resource_version=listing.resource_version):
                conditions.seen(change.object)

        watching = asyncio.create_task(watch(), name="condition-watch")
        try:
            yield conditions
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)


async def _until(seen: "asyncio.Queue[tuple[str, float]]", wanted: str) -> float:
    """Return when the condition changed to that status or reason. Raises TimeoutError."""
    async with asyncio.timeout(SECONDS):
        while True:
            found, at = await seen.get()
            if found == wanted:
                return at


_NODES: Final = paths.collection("nodes")
_MONITOR: Final = {
    "plugin": "kmsg",
    "logPath": "/dev/kmsg",
    "lookback": "5m",
    "bufferSize": 10,
    "source": "gpu-monitor",
    "metricsReporting": False,
    "conditions": [{"type": _THEIRS, "reason": "NoGpuProblem", "message": "no GPU problem"}],
    "rules": [
        {"type": "permanent", "condition": _THEIRS, "reason": _REASONS[True], "pattern": f"{_LINE} .* to 0x1 .*"},
        {"type": "permanent", "condition": _THEIRS, "reason": _REASONS[False], "pattern": f"{_LINE} .* to 0x0 .*"},
    ],
}
