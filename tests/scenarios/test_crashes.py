"""The agent is killed at random steps of restarts: a short run of ``bench.crash``, and proof that it would notice."""

import asyncio
import time
from pathlib import Path

import pytest

from agent.model.workloads import ContainerRef
from agent.restart import clone, intents
from bench.crash import judging, subjects
from bench.crash.judging import Now, Wrong
from bench.crash.scene import Scene
from bench.crash.stages import Stage
from bench.crash.subjects import Subject
from bench.crash.trials import Trials
from hack.devnode import node

pytestmark = pytest.mark.devnode

KILLS = 4
SEED = 5  # any will do; the benchmark draws its own
DEADLINE = 60.0


def chosen(*names: str) -> list[Subject]:
    return [subject for subject in subjects.ALL if subject.name in names]


async def test_an_agent_that_is_killed_again_and_again_fails_duplicates_and_loses_nothing(
    dev: node.DevNode, tmp_path: Path
) -> None:
    pods = chosen("never", "pair", "rerun")
    async with Scene.on(dev, subjects=pods, state_dir=tmp_path / "state") as scene:
        trials = Trials(scene)
        await trials.run(count=KILLS, seed=SEED, rounds=1)
    tally = trials.tally
    assert tally.flawless, trials.figures()
    assert tally.runs == KILLS <= tally.kills
    assert tally.faults >= KILLS
    assert tally.refused == 0
    assert {name for name, _ in tally.stages} == {subject.name for subject in pods}
    assert {stage for _, stage in tally.stages} - {Stage.NOT_JOURNALLED, Stage.CLOSED}, "no kill fell into a restart"


async def test_a_second_trainer_beside_the_first_would_be_noticed(dev: node.DevNode, tmp_path: Path) -> None:
    (subject,) = chosen("on-failure")
    async with Scene.on(dev, subjects=[subject], state_dir=tmp_path / "state") as scene:
        assert await scene.quiet() == ()
        before, since = await scene.witness.look(subject), time.time()
        await start_beside(scene, subject)
        after = await overlap(scene, subject)
        assert Wrong.DUPLICATE in {violation.wrong for violation in judging.unsettled(after, [])}
        found = judging.wrongs(after, before=before, since=since, faults=[], kills=1)
        assert Wrong.DUPLICATE in {violation.wrong for violation in found}


async def start_beside(scene: Scene, subject: Subject) -> None:
    """Start a successor of the trainer, and leave the trainer running."""
    cri = scene.rig.cri
    (old,) = (await scene.witness.look(subject)).running["trainer"]
    info = await cri.container_info(old.id)
    intent = intents.Intent(
        id="beside",
        target=ContainerRef(old.ref.pod, "trainer"),
        sandbox_id=old.sandbox_id,
        old=old.id,
        old_attempt=old.attempt,
        order=intents.Order.CREATE_FIRST,
        reason="Test",
        created_at=time.time(),
    )
    made = clone.successor(info.config, intent=intent, runtime_env=info.runtime_env)
    sandbox = clone.sandbox_config(await cri.sandbox_config(old.sandbox_id))
    await cri.start_container(
        await cri.create_container(sandbox_id=old.sandbox_id, config=made.config, sandbox_config=sandbox)
    )


async def overlap(scene: Scene, subject: Subject) -> Now:
    """Return how the pod is once a trainer has said that another one ran when it began."""
    async with asyncio.timeout(DEADLINE):
        while not (now := await scene.witness.look(subject)).overlaps:
            await scene.witness.change(timeout=0.05)
    return now
