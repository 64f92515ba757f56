"""Failures in a row on one container, through the whole agent: does any restart take longer than the first?

Kubelet's own backoff would double with each. Each failure is an Xid in the kernel log; a restart is over when the new
process runs, by the runtime's clock. The agent is started anew in between, with its past restarts moved back in time:
its budget would slow down a container that dies young again and again, as it should.
"""

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from agent.restart.intents import Strategy
from bench.crash.blows import Blows
from bench.crash.plans import Fault
from bench.crash.scene import Scene
from bench.crash.subjects import Subject
from hack.devnode import node

_SUBJECTS = (
    Subject("row-swap"),
    Subject("row-rerun", strategy=Strategy.RERUN),
    Subject("row-reset", strategy=Strategy.RESET),
    Subject("row-rules", policy="Never", strategy=Strategy.RULES),
)


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


async def measure(dev: node.DevNode, *, count: int, strategies: Collection[Strategy]) -> dict[str, Row]:
    """Let one container per strategy fail so many times in a row; return the rows by the strategies' names.

    Raises AssertionError when a restart does not come to its end.
    """
    subjects = [subject for subject in _SUBJECTS if subject.strategy in strategies]
    rows = {subject.strategy.value: Row() for subject in subjects}
    async with Scene.on(dev, subjects=subjects, state_dir=dev.layout.agent_state) as scene:
        blows = Blows(dev=dev, rig=scene.rig, witness=scene.witness, gpus=scene.gpus)
        assert not await scene.quiet()
        for _ in range(count):
            for subject in subjects:
                rows[subject.strategy.value].seconds.append(await _fail(scene, blows, subject))
            await scene.renew_agent()
            assert not await scene.quiet()
    return rows


async def _fail(scene: Scene, blows: Blows, subject: Subject) -> float:
    """Return the seconds from a fault to the start of the new process."""
    fault = await blows.inject(Fault(subject, "trainer", lead=0.0))
    left = await scene.quiet([fault])
    assert not left, left
    (running,) = scene.witness.now(subject).running["trainer"]
    started, _ = await scene.rig.observer.times(running.id)
    return started - fault.at
