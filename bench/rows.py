"""Failures in a row on one container, through the whole agent: does any restart take longer than the first?

Kubelet's own backoff would double with each. Each failure is an Xid in the kernel log; a restart is over when the new
process runs, by the runtime's clock. The agent is started anew in between, with its past restarts moved back in time:
its budget would slow down a container that dies young again and again, as it should. How long kubelet takes for what it
does itself hangs on when it looks next: rows of that are in ``bench.kubelets``.
"""

import asyncio
from dataclasses import dataclass, field
from typing import Any

from agent.model.workloads import ContainerView
from agent.restart.intents import Strategy
from bench.crash.blows import Blows
from bench.crash.plans import Fault
from bench.crash.scene import Scene
from bench.crash.stages import Injected
from bench.crash.subjects import Subject
from bench.rig import SECONDS
from hack.devnode import node

_SUBJECTS = (
    Subject("row-swap"),
    Subject("row-rerun", strategy=Strategy.RERUN),
)
_LOOK_AGAIN = 0.02


@dataclass
class Row:
    """Durations in seconds, from the fault to the new process running, in order."""

    seconds: list[float] = field(default_factory=list)

    def figures(self) -> dict[str, Any]:
        """Return what is printed."""
        milliseconds = [round(each * 1000, 1) for each in self.seconds]
        return {
            "ms": milliseconds,
            "first": milliseconds[0],
            "max": max(milliseconds),
            "max_over_first": round(max(self.seconds) / self.seconds[0], 2),
        }


async def measure(dev: node.DevNode, *, count: int) -> dict[str, Row]:
    """Let one container per strategy fail so many times in a row; return the rows by the strategies' names.

    Raises TimeoutError or AssertionError when a restart does not come to its end.
    """
    rows = {subject.strategy.value: Row() for subject in _SUBJECTS}
    async with Scene.on(dev, subjects=_SUBJECTS, state_dir=dev.layout.agent_state) as scene:
        blows = Blows(dev=dev, rig=scene.rig, witness=scene.witness, gpus=scene.gpus)
        assert not await scene.quiet()
        for _ in range(count):
            for subject in _SUBJECTS:
                fault = await blows.inject(Fault(subject, "trainer", lead=0.0))
                rows[subject.strategy.value].seconds.append(await _answered(scene, fault))
                assert not (left := await scene.quiet([fault])), left
            await scene.renew_agent()
            assert not (left := await scene.quiet()), left
    return rows


async def _answered(scene: Scene, fault: Injected) -> float:
    """Return the seconds from a fault to the start of the new process, as soon as that runs."""
    async with asyncio.timeout(SECONDS):
        while (new := _newer(scene, fault)) is None:
            await scene.witness.change(timeout=_LOOK_AGAIN)
    started, _ = await scene.rig.observer.times(new.id)
    return started - fault.at


def _newer(scene: Scene, fault: Injected) -> ContainerView | None:
    running = scene.witness.now(fault.subject).running.get(fault.container, ())
    return next((view for view in running if fault.is_older_than(view)), None)
