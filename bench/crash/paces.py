"""Measure how long restarts take from fault to end on this machine, so that kills fall into them."""

import asyncio
import statistics
import time
from collections import defaultdict

from bench.crash.blows import Blows
from bench.crash.plans import Fault, Pace
from bench.crash.scene import Scene
from bench.crash.stages import Injected
from bench.crash.subjects import Subject
from bench.rig import SECONDS

_LOOK_AGAIN = 0.02


async def measure(scene: Scene, blows: Blows, *, rounds: int) -> dict[str, Pace]:
    """Restart every subject ``rounds`` times, in turns, and return the medians by the subjects' names.

    Raises TimeoutError when a restart does not finish.
    """
    taken: defaultdict[str, list[Pace]] = defaultdict(list)
    for _ in range(rounds):
        await scene.renew_agent()
        await scene.quiet()  # no restart waits for the agent's start
        for subject in scene.subjects:
            taken[subject.name].append(await _one(scene, blows, subject))
            await scene.quiet()
    return {
        name: Pace(
            acted=statistics.median(pace.acted for pace in each), closed=statistics.median(pace.closed for pace in each)
        )
        for name, each in taken.items()
    }


async def _one(scene: Scene, blows: Blows, subject: Subject) -> Pace:
    fault = await blows.inject(Fault(subject, subject.mains[0], lead=0.0))
    async with asyncio.timeout(SECONDS):
        while not _acted(scene, fault):
            await scene.witness.change(timeout=_LOOK_AGAIN)
        acted = time.time() - fault.at
        while not _closed(scene, fault):
            await scene.witness.change(timeout=_LOOK_AGAIN)
    return Pace(acted=acted, closed=time.time() - fault.at)


def _acted(scene: Scene, fault: Injected) -> bool:
    running = scene.witness.now(fault.subject).running
    return all(any(fault.is_older_than(view) for view in running.get(name, ())) for name in fault.subject.replaced)


def _closed(scene: Scene, fault: Injected) -> bool:
    entries = scene.journal.entries(since=fault.at)
    return bool(entries) and all(entry.outcome is not None for entry in entries)
