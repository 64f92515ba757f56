"""Trainers die of their fault by themselves while they are restarted: a short run of ``bench.dying``."""

from pathlib import Path

import pytest

from bench import dying
from bench.crash.scene import Scene
from hack.devnode import node

pytestmark = pytest.mark.devnode

RUNS = 3
SEED = 5  # any will do


async def test_program_that_dies_of_its_fault_gets_one_successor(dev: node.DevNode, tmp_path: Path) -> None:
    pods = [subject for subject in dying.SUBJECTS if subject.name in ("always-alone", "onfailure", "never")]
    async with (
        dying.Waiting.on(dev) as waiting,
        Scene.on(dev, subjects=pods, state_dir=tmp_path / "state") as scene,
    ):
        deaths = dying.Deaths(scene, waiting)
        await deaths.run(count=RUNS, seed=SEED)
    assert deaths.tally.flawless, deaths.tally.figures()
    assert deaths.tally.runs.total() == RUNS
    assert deaths.tally.runs.keys() == {subject.name for subject in pods}
