"""Measure failures in a row on one container, through the whole agent: no restart may take longer than the first.

Kubelet's own backoff would double with each. Each failure is an Xid in the kernel log; a restart is over when the new
process runs, by the runtime's clock. The agent is restarted in between, with its past restarts moved back in time: its
budget would slow down a container with repeated short lifetimes, as it should. The duration of kubelet's own part
depends on its next listing: rows of that are in ``bench.kubelets``.
"""

import asyncio
from dataclasses import dataclass, field
from typing import Any

from bench.crash.blows import Blows
from bench.crash.plans import Fault
from bench.crash.scene import Scene
from bench.crash.stages import Injected
from bench.crash.subjects import Subject
from bench.rig import SECONDS
from hack.devnode import node
from kubemend.agent.model.workloads import ContainerSummary
from kubemend.agent.restart.intents import Strategy

_SUBJECTS = (
    Subject("row-swap"),
    Subject("row-rerun", strategy=Strategy.RERUN),
)
_LOOK_AGAIN = 0.02


@dataclass
class Row:
    """Hold durations in seconds, from the fault to the new process running, in order."""

    seconds: list[float] = field(default_factory=list)

    def figures(self) -> dict[str, Any]:
        """Return the printed figures."""
        milliseconds = [round(each * 1000, 1) for each in self.seconds]
        return {
            "ms": milliseconds,
            "first": milliseconds[0],
            "max": max(milliseconds),
            "max_over_first": round(max(self.seconds) / self.seconds[0], 2),
        }


async def measure(dev: node.DevNode, *, count: int) -> dict[str, Row]:
    """Let one container per strategy fail ``count`` times in a row; return the rows by the strategies' names.

    Raises TimeoutError or AssertionError when a restart does not finish.
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


def _newer(scene: Scene, fault: Injected) -> ContainerSummary | None:
    running = scene.witness.now(fault.subject).running.get(fault.container, ())
    return next((view for view in running if fault.is_older_than(view)), None)
