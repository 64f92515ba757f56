"""Measure restarts that kubelet carries out, resets and the pod's own rules: the time until everything runs again.

They are made in a row on one pod, without kubemend's backoff: kubelet's own would double with each.
"""

import asyncio
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from bench import figures
from bench.rig import SECONDS, Rig
from hack.devnode import node, trainer
from kubemend.agent.clients.cri.events import EventKind
from kubemend.agent.model.workloads import ContainerRef, ContainerRole, PodUid, PodView, SandboxId
from kubemend.agent.restart import intents, rules
from kubemend.agent.restart.intents import Strategy
from kubemend.agent.restarts import runtime_state


@dataclass
class Samples:
    """Hold durations in seconds: ``acted`` until kubemend's part was done, ``running`` until everything ran again."""

    acted: list[float] = field(default_factory=list)
    running: list[float] = field(default_factory=list)

    def figures(self, *, bare: float) -> dict[str, Any]:
        """Return the printed figures. ``bare`` is the duration of the calls alone, in milliseconds."""
        running = figures.milliseconds(self.running)
        return {
            "restarts": len(self.running),
            "acted_ms": figures.milliseconds(self.acted),
            "running_ms": running,
            "ratio": round(running["p50"] / bare, 3),
            "max_over_median": round(running["max"] / running["p50"], 2),
        }


async def measure(dev: node.DevNode, rig: Rig, *, strategy: Strategy, count: int) -> Samples | None:
    """Restart a pod (init container, sidecar, main) ``count`` times; None when kubelet does not know the strategy."""
    samples = Samples()
    name = strategy.value
    await rig.observer.create(_manifest(name, node=dev.name, strategy=strategy))
    await rig.running(name, restart=0)
    pod = await _pod(rig, name)
    if strategy is Strategy.RULES and rules.trigger(pod, preferred="trainer") is None:
        return None
    for _ in range(count):
        await _one(rig, await _pod(rig, name), strategy=strategy, samples=samples)
    return samples


def _manifest(name: str, *, node: str, strategy: Strategy) -> Mapping[str, Any]:
    made = trainer.manifest(name, node=node, gpus=0)
    if strategy is Strategy.RULES:
        made["spec"]["containers"][0].update(trainer.RESTARTS_ALL_ON_KILL)
    return made


async def _pod(rig: Rig, name: str) -> PodView:
    uid = PodUid((await rig.observer.see(name)).uid)
    pod = await rig.pods.wait_for(uid, lambda _: True, timeout=SECONDS)
    assert pod is not None
    return pod


async def _one(rig: Rig, pod: PodView, *, strategy: Strategy, samples: Samples) -> None:
    before = await rig.observer.see(pod.ref.name)
    intent = intents.PodIntent(
        id=uuid.uuid4().hex[:12],
        target=ContainerRef(pod=pod.ref, name="trainer"),
        sandbox_id=SandboxId(before.sandbox),
        strategy=strategy,
        plan=await runtime_state.plan(rig.cri, pod),
        reason="Bench",
        created_at=time.time(),
        trigger=before.running["trainer"][0] if strategy is Strategy.RULES else None,
    )
    await rig.store.begin(intent)
    awaited = {planned.name for planned in intent.plan if planned.role is not ContainerRole.INIT}
    async with rig.events.subscribe(pod.ref.uid) as events, asyncio.timeout(SECONDS):
        kill = time.perf_counter()
        outcome = await rig.whole_pods.carry_out(intent)
        acted = time.perf_counter()
        assert outcome.result.restarted, outcome
        while awaited:
            event = await events.get()
            if event.kind is EventKind.STARTED and event.container_id not in intent.old_ids:
                awaited.discard(event.container.ref.name)
        done = time.perf_counter()
    samples.acted.append(acted - kill)
    samples.running.append(done - kill)
    await rig.store.finish(intent.id, outcome=outcome.result.value, now=time.time())
    await rig.observer.until(
        pod.ref.name,
        lambda s: (
            s.phase == "Running"
            and s.running.keys() == before.running.keys()
            and all(ids == (s.container_ids[name],) for name, ids in s.running.items())
        ),
        timeout=SECONDS,
        what=f"kubelet's consent to a {strategy.value}",
    )
