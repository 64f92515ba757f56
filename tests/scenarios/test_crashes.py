"""The agent is killed at random steps of restarts: a short run of ``bench.crash``, and proof that it finds faults."""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from bench.crash import judging, subjects
from bench.crash.blows import Blows
from bench.crash.judging import Now, Wrong
from bench.crash.plans import Fault
from bench.crash.scene import Scene
from bench.crash.stages import Injected, Stage
from bench.crash.subjects import Subject
from bench.crash.trials import Trials
from hack.devnode import node
from kubemend.agent.actuator.hold.cgroups import Cgroup
from kubemend.agent.clients.journal.store import Store
from kubemend.agent.model.workloads import ContainerId, ContainerRef
from kubemend.agent.restart import clone, intents

pytestmark = pytest.mark.devnode

KILLS = 3
SEED = 8  # any will do; but kubelet takes 15 s to finish a rerun that was left half-way, and this one leaves none
DEADLINE = 120.0


def chosen(*names: str) -> list[Subject]:
    return [subject for subject in subjects.ALL if subject.name in names]


@pytest.mark.long
async def test_killed_agent_fails_duplicates_and_loses_nothing(dev: node.DevNode, tmp_path: Path) -> None:
    pods = chosen("never", "pair", "rerun")
    async with Scene.on(dev, subjects=pods, state_dir=tmp_path / "state") as scene:
        trials = Trials(scene)
        await trials.run(count=KILLS, seed=SEED, rounds=1)
    tally = trials.tally
    assert tally.flawless, json.dumps(trials.figures(), indent=1)
    assert tally.runs == KILLS <= tally.kills
    assert tally.faults >= KILLS
    assert {name for name, _ in tally.stages} == {subject.name for subject in pods}
    assert {stage for _, stage in tally.stages} - {Stage.NOT_JOURNALLED, Stage.CLOSED}, "no kill fell into a restart"


@pytest.mark.long
async def test_second_running_trainer_would_be_noticed(dev: node.DevNode, tmp_path: Path) -> None:
    (subject,) = chosen("on-failure")
    async with Scene.on(dev, subjects=[subject], state_dir=tmp_path / "state") as scene:
        assert await scene.quiet() == ()
        before, since = await scene.witness.look(subject), time.time()
        await start_beside(scene, subject)
        after = await overlap(scene, subject)
        assert Wrong.DUPLICATE in {violation.wrong for violation in judging.unsettled(after, [])}
        found = judging.wrongs(after, before=before, since=since, faults=[], kills=1)
        assert Wrong.DUPLICATE in {violation.wrong for violation in found}


@pytest.mark.long
async def test_unfinished_work_of_a_dead_agent_would_be_noticed(dev: node.DevNode, tmp_path: Path) -> None:
    (subject,) = chosen("always")
    async with Scene.on(dev, subjects=[subject], state_dir=tmp_path / "state") as scene:
        assert await scene.quiet() == ()
        await leave_created(scene, subject)
        assert Wrong.LEFT_BEHIND in await left(scene)
        await scene.kill_agent()
        assert await left(scene) == {Wrong.AGENT_NOT_READY}
        store = await Store.open(scene.journal.path)
        await store.begin(await intent_for(scene, subject))
        await store.close()
        assert await left(scene) == {Wrong.JOURNAL_OPEN}
        blows = Blows(dev=dev, rig=scene.rig, witness=scene.witness, gpus=scene.gpus)
        fault = await blows.inject(Fault(subject, "trainer", lead=0.0))
        assert await left(scene, fault) == {Wrong.LOST}
        await scene.start_agent()
        assert await scene.quiet() == (), "all of it can be fixed"


@pytest.mark.long
async def test_frozen_or_failed_pod_would_be_noticed(dev: node.DevNode, tmp_path: Path) -> None:
    (subject,) = chosen("never-alone")
    async with Scene.on(dev, subjects=[subject], state_dir=tmp_path / "state") as scene:
        assert await scene.quiet() == ()
        before, since = await scene.witness.look(subject), time.time()
        (trainer,) = before.running["trainer"]
        cgroup = Cgroup.of_process(
            await scene.rig.observer.pid(trainer.id), proc=Path("/proc"), mounted_at=Path("/sys/fs/cgroup")
        )
        assert cgroup is not None
        cgroup.freeze()
        await until(scene, lambda: found_standing_still(scene, subject))
        assert await left(scene) == {Wrong.FROZEN}
        cgroup.thaw()
        await scene.rig.cri.stop_container(trainer.id, grace=0)
        await until(scene, lambda: has_ended(scene, subject))
        after = await scene.witness.look(subject)
        assert Wrong.NOT_RUNNING in {violation.wrong for violation in judging.unsettled(after, [])}
        found = judging.wrongs(after, before=before, since=since, faults=[], kills=1)
        assert Wrong.POD_FAILED in {violation.wrong for violation in found}


async def left(scene: Scene, *faults: Injected) -> set[Wrong]:
    """Return the violations that exist at this moment."""
    return {violation.wrong for violation in await scene.quiet(faults, timeout=0.0)}


async def found_standing_still(scene: Scene, subject: Subject) -> bool:
    return bool((await scene.witness.look(subject)).frozen)


async def has_ended(scene: Scene, subject: Subject) -> bool:
    return scene.witness.now(subject).phases[-1:] == ("Failed",)


async def until(scene: Scene, holds: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(DEADLINE):
        while not await holds():
            await scene.witness.change(timeout=0.05)


async def start_beside(scene: Scene, subject: Subject) -> None:
    """Start a successor of the trainer, and leave the trainer running."""
    await scene.rig.cri.start_container(await leave_created(scene, subject))


async def leave_created(scene: Scene, subject: Subject) -> ContainerId:
    """Create a successor of the trainer, and leave the trainer running."""
    cri, intent = scene.rig.cri, await intent_for(scene, subject)
    info = await cri.container_status(intent.old)
    made = clone.successor(info.config, intent=intent, runtime_env=info.runtime_env)
    sandbox = await cri.sandbox_config(intent.sandbox_id)
    return await cri.create_container(sandbox_id=intent.sandbox_id, config=made.config, sandbox_config=sandbox)


async def intent_for(scene: Scene, subject: Subject) -> intents.Intent:
    """Return the intent to swap the trainer that runs."""
    (old,) = (await scene.witness.look(subject)).running["trainer"]
    return intents.Intent(
        id="beside",
        target=ContainerRef(old.ref.pod, "trainer"),
        sandbox_id=old.sandbox_id,
        old=old.id,
        old_attempt=old.attempt,
        order=intents.SwapOrder.CREATE_FIRST,
        reason="Test",
        created_at=time.time(),
    )


async def overlap(scene: Scene, subject: Subject) -> Now:
    """Return the pod's state once a trainer has recorded that another one ran when it began."""
    await until(scene, lambda: has_overlapped(scene, subject))
    return await scene.witness.look(subject)


async def has_overlapped(scene: Scene, subject: Subject) -> bool:
    return bool((await scene.witness.look(subject)).overlaps)
