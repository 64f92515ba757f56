"""Inject faults into running trainers, and determine the moment at which to kill their agent."""

import asyncio
import contextlib
import time
from collections.abc import Mapping
from dataclasses import dataclass

from bench.crash.plans import Fault, Pace, Plan
from bench.crash.stages import Injected
from bench.crash.witness import Witness
from bench.rig import Rig
from hack.devnode import node
from hack.fakenvml import control as nvml_control
from kubemend.agent.clients.cri.events import ContainerEvent, EventKind

_XID = 31
_AFTER_EVENT = 0.02
_LONGEST_LEAD = 0.5


@dataclass(frozen=True, slots=True)
class Blows:
    """Inject faults into the pods of one node. ``gpus`` has the number of each subject's GPU, by the subject's name."""

    dev: node.DevNode
    rig: Rig
    witness: Witness
    gpus: Mapping[str, int]

    async def strike(self, plan: Plan, *, paces: Mapping[str, Pace]) -> tuple[Injected, ...]:
        """Inject the plan's faults, and return at the moment of the kill. Raises CriError."""
        first = plan.faults[0]
        leads = [fault.lead * min(paces[fault.subject.name].closed, _LONGEST_LEAD) for fault in plan.faults]
        async with self.rig.events.subscribe(self.witness.pod(first.subject).ref.uid) as events:
            injected = await asyncio.gather(
                *(self.inject(fault, after=max(leads) - lead) for fault, lead in zip(plan.faults, leads, strict=True))
            )
            pace = paces[first.subject.name]
            if plan.event is None:
                await asyncio.sleep(plan.moment * (pace.closed if plan.whole else pace.acted))
            else:
                with contextlib.suppress(TimeoutError):  # not every restart has every event
                    async with asyncio.timeout(pace.closed):
                        await _first(plan.event, events)
                await asyncio.sleep(plan.moment * _AFTER_EVENT)
        return tuple(injected)

    async def inject(self, fault: Fault, *, after: float = 0.0) -> Injected:
        """Write an Xid that names the process of a container, after ``after`` seconds. Raises CriError."""
        subject = fault.subject
        (running,) = self.witness.now(subject).running[fault.container]
        pid = await self.rig.observer.pid(running.id)
        await self.witness.follow_freezing(subject)
        await asyncio.sleep(after)
        injected = Injected(subject, fault.container, old=running.id, pid=pid, at=time.time())
        pci = nvml_control.kernel_address(self.gpus[subject.name])
        self.dev.kernel_log.write_xid(_XID, pci=pci, pid=pid, name="sh")
        self.witness.note(subject, f"fault injected into {fault.container} ({running.id[:8]}, pid {pid})")
        return injected


async def _first(kind: EventKind, events: "asyncio.Queue[ContainerEvent]") -> None:
    while (await events.get()).kind is not kind:
        pass
