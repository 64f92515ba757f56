"""Measure the time from the kernel's line about a program's fault, and from the attribution to its container, to the
agent's decision to restart the container.

The agent only observes, so one container can have many faults, and a restart's journal entry is not part of the time.
"""

import asyncio
import datetime as dt
import itertools
import time
from dataclasses import dataclass
from typing import Any, Final

from bench.faults import looking
from bench.rig import SECONDS
from hack.devnode import node, readyz, trainer
from hack.devnode.observer import Observer
from hack.fakenvml import control as nvml_control
from kubemend.agent.faults import finding_queue

_CODES: Final = (13, 31, 32, 43)
"""Xids that a program causes, in turns: the same one again within a second is the same fault."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Hold the seconds to one decision."""

    from_line: float
    from_attribution: float


async def measure(dev: node.DevNode, *, count: int) -> list[Sample]:
    """Return a sample of each of ``count`` faults."""
    async with Observer.of(dev.layout) as observer:
        await observer.create(trainer.manifest("decided", node=dev.name, gpus=1, sidecar=False))
        seen = await observer.until("decided", lambda s: bool(s.running.get("trainer")), timeout=SECONDS, what="a pod")
        (held,) = await dev.kubelet.devices_of("decided")
        pid = await observer.pid(seen.running["trainer"][0])
        pci = nvml_control.kernel_address(dev.gpu_uuids.index(held))
        try:
            async with dev.agent("--dry-run") as agent:
                await readyz.until_ready(agent)
                codes = itertools.islice(itertools.cycle(_CODES), count)
                return [await _one(dev, agent, code, pci=pci, pid=pid) for code in codes]
        finally:
            await observer.delete("decided")


async def _one(dev: node.DevNode, agent: node.Agent, code: int, *, pci: str, pid: int) -> Sample:
    log = looking.Log(agent.log)
    began = time.time()
    dev.kernel_log.write_xid(code, pci=pci, pid=pid, name="sh")

    async def decided() -> dict[str, Any] | None:
        return next(iter(log.events("restart.decided", cause=f"Xid{code}")), None)

    decision = await looking.until(decided, what="a decision")
    await asyncio.sleep(finding_queue.CALM / (len(_CODES) - 1))
    attribution = log.events("fault.attributed")[-1]
    return Sample(_at(decision) - began, _at(decision) - _at(attribution))


def _at(event: dict[str, Any]) -> float:
    return dt.datetime.fromisoformat(event["timestamp"]).timestamp()
