"""Reruns of a whole pod (init container, sidecar, main) against the bare calls that they are made of, in turns."""

import asyncio
import random
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from agent.actuator.outcomes import Result
from agent.actuator.tools import Material
from agent.cri import errors
from agent.cri.events import ContainerEvent, EventKind
from agent.engine import targets
from agent.model.workloads import ContainerId, ContainerRef, ContainerRole, ContainerState, PodUid, SandboxId
from agent.restart import intents
from agent.sources.processes import ProcFs
from bench import figures
from bench.rig import SECONDS, Rig
from hack.devnode import node, trainer

_COPY_SECONDS = 3.0


@dataclass
class Samples:
    """Durations in seconds.

    Of the reruns ``adopted`` counts those in which kubelet was faster somewhere, ``init_twice`` those in which it has
    run an init container beside ours; ``bare_lost`` counts the bare calls that kubelet has spoiled by being faster.
    """

    prepare: list[float] = field(default_factory=list)
    rerun: list[float] = field(default_factory=list)
    bare: list[float] = field(default_factory=list)
    adopted: int = 0
    left_to_kubelet: int = 0
    init_twice: int = 0
    bare_lost: int = 0

    def figures(self) -> dict[str, Any]:
        """Return what is printed."""
        rerun, bare = figures.milliseconds(self.rerun), figures.milliseconds(self.bare)
        return {
            "reruns": len(self.rerun),
            "adopted": self.adopted,
            "left_to_kubelet": self.left_to_kubelet,
            "init_twice": self.init_twice,
            "bare_lost": self.bare_lost,
            "prepare_ms": figures.milliseconds(self.prepare),
            "rerun_ms": rerun,
            "bare_calls_ms": bare,
            "ratio": round(rerun["p50"] / bare["p50"], 3),
        }


async def measure(dev: node.DevNode, rig: Rig, *, count: int) -> Samples:
    """Rerun one pod by the product and another by bare calls, so many times each."""
    samples = Samples()
    for name in ("rerun", "rerun-bare"):
        await rig.observer.create(trainer.manifest(name, node=dev.name, gpus=0))
        await rig.running(name, restart=0)
    chance = random.Random(5532)
    for number in range(1, count + 1):
        # Waiting for kubelet's status has brought us into step with its look once a second: leave that step.
        await asyncio.sleep(chance.random())
        done = (await _rerun(rig, samples), await _bare_calls(rig, samples))
        for name, intent in zip(("rerun", "rerun-bare"), done, strict=True):
            await _settled(rig, name, intent, restart=number)
    return samples


async def _prepared(rig: Rig, name: str) -> tuple[intents.PodIntent, Mapping[str, Material]]:
    seen = await rig.observer.see(name)
    pod = await rig.pods.wait_for(PodUid(seen.uid), lambda _: True, timeout=SECONDS)
    assert pod is not None
    intent = intents.PodIntent(
        id=uuid.uuid4().hex[:12],
        target=ContainerRef(pod=pod.ref, name="trainer"),
        sandbox_id=SandboxId(seen.sandbox),
        strategy=intents.Strategy.RERUN,
        plan=await targets.plan(rig.cri, pod),
        reason="Bench",
        created_at=time.time(),
    )
    return intent, await targets.materials(rig.cri, intent, pod=pod, processes=ProcFs())


async def _settled(rig: Rig, name: str, intent: intents.PodIntent, *, restart: int) -> None:
    """Wait until kubelet shows one of each; a copy that it has started late is resolved, as the product would."""
    async with asyncio.timeout(SECONDS):
        while True:
            try:
                return await rig.running(name, restart=restart, timeout=_COPY_SECONDS)
            except TimeoutError:
                await rig.rerun.carry_out(intent, materials=None)


async def _rerun(rig: Rig, samples: Samples) -> intents.PodIntent:
    before = (await rig.observer.see("rerun")).init_runs
    began = time.perf_counter()
    intent, materials = await _prepared(rig, "rerun")
    await rig.store.begin(intent)
    kill = time.perf_counter()
    outcome = await rig.rerun.carry_out(intent, materials=materials)
    done = time.perf_counter()
    assert outcome.result.restarted, outcome
    samples.prepare.append(kill - began)
    samples.rerun.append(done - kill)
    ours = {view.id for view in await rig.cri.list_containers() if view.restart_id == intent.id}
    samples.adopted += not ours.issuperset(outcome.survivors.values())
    samples.left_to_kubelet += outcome.result is Result.LEFT_TO_KUBELET
    samples.init_twice += (await rig.observer.see("rerun")).init_runs > before + 1
    await rig.store.finish(intent.id, outcome=outcome.result.value, now=time.time())
    return intent


async def _bare_calls(rig: Rig, samples: Samples) -> intents.PodIntent:
    """The calls alone, as early as each can be: what has exited goes first, init is awaited by its exit event."""
    intent, materials = await _prepared(rig, "rerun-bare")
    views = await rig.cri.list_containers(pod_uid=intent.target.pod.uid)
    exited = [view.id for view in views if view.state is ContainerState.EXITED]
    others = [view.id for view in views if view.state is not ContainerState.EXITED]
    async with rig.events.subscribe(intent.target.pod.uid) as changes:
        began = time.perf_counter()
        for group in (exited, others):
            await asyncio.gather(*(rig.cri.remove_container(container) for container in group))
        try:
            for planned in intent.plan:
                await _start(rig, intent, materials[planned.name], planned=planned, changes=changes)
        except errors.NameReserved:
            samples.bare_lost += 1
        else:
            samples.bare.append(time.perf_counter() - began)
    return intent


async def _start(
    rig: Rig,
    intent: intents.PodIntent,
    material: Material,
    *,
    planned: intents.Planned,
    changes: "asyncio.Queue[ContainerEvent]",
) -> None:
    container = await rig.cri.create_container(
        sandbox_id=intent.sandbox_id, config=material.successor.config, sandbox_config=material.sandbox_config
    )
    await rig.cri.start_container(container)
    if planned.role is ContainerRole.INIT:
        await _ended(container, changes)


async def _ended(container: ContainerId, changes: "asyncio.Queue[ContainerEvent]") -> None:
    async with asyncio.timeout(SECONDS):
        while (event := await changes.get()).container_id != container or event.kind is not EventKind.STOPPED:
            pass
