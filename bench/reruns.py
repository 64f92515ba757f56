"""Rerun whole pods under kubelet, and measure how often, in which order and how fast each container ran.

Pods of an init container, a sidecar and a main container are rerun by the product, each at a random moment relative to
kubelet's listing of the runtime once a second. In turns, as many others are restarted by the bare calls of a rerun.
Runs are counted by the runtime's events and by the init container itself, not by kubemend's reports.

Prints JSON. A round is the rerun of one pod; all that is not milliseconds is a number of rounds. ``rerun_ms`` is from
the first call to the confirmed new processes, ``reserve_ms`` its part before the kill, ``prepare_ms`` the time before
it. ``adopted`` counts, by container, where kubelet was faster than kubemend.
"""

import asyncio
import json
import random
import sys
import time
import uuid
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import click

from bench import rerun_samples, rig
from bench.rerun_samples import Samples
from bench.rig import SECONDS, Rig
from hack.devnode import node, trainer
from hack.devnode.observer import Seen
from kubemend.agent.clients.cri import errors
from kubemend.agent.clients.cri.events import ContainerEvent, EventKind
from kubemend.agent.model.outcomes import Outcome, Result
from kubemend.agent.model.workloads import ContainerId, ContainerRef, ContainerRole, ContainerState, PodUid, SandboxId
from kubemend.agent.restart import intents, reservations
from kubemend.agent.restart.successor_spec import SuccessorSpec
from kubemend.agent.restarts import runtime_state
from kubemend.agent.sources.processes import ProcFs
from kubemend.common import logs

_COPY_SECONDS = 3.0
_INIT = "prepare"
_LASTING = ("shipper", "trainer")


@dataclass(frozen=True, slots=True)
class _Round:
    """Hold one restart of one pod, by the product or by bare calls. ``before`` is the pod before it."""

    name: str
    intent: intents.PodIntent
    successor_specs: Mapping[str, SuccessorSpec]
    before: Seen
    outcome: Outcome | None = None


async def measure(dev: node.DevNode, made: Rig, *, count: int, pods: int = 1, seed: int = 5532) -> Samples:
    """Rerun ``pods`` pods by the product and as many by bare calls, ``count`` times each."""
    samples, chance = Samples(), random.Random(seed)
    ours = [f"rerun-{number}" for number in range(pods)]
    bare = [f"bare-{number}" for number in range(pods)]
    for name in (*ours, *bare):
        await made.observer.create(trainer.manifest(name, node=dev.name, gpus=0))
    for name in (*ours, *bare):
        await _whole(made, name, restart=0)
    async with made.events.subscribe() as events:
        for number in range(1, count + 1):
            done = [
                *await asyncio.gather(*(_rerun(made, name, samples, after=chance.random()) for name in ours)),
                *await asyncio.gather(*(_bare_calls(made, name, samples) for name in bare)),
            ]
            done = await asyncio.gather(*(_settled(made, each, restart=number) for each in done))
            happened = [events.get_nowait() for _ in range(events.qsize())]
            for each in done[:pods]:
                await _judge(made, each, [event for event in happened if event.pod.name == each.name], samples)
    return samples


async def _prepared(made: Rig, name: str) -> _Round:
    seen = await made.observer.see(name)
    pod = await made.pods.wait_for(PodUid(seen.uid), lambda _: True, timeout=SECONDS)
    assert pod is not None
    intent = intents.PodIntent(
        id=uuid.uuid4().hex[:12],
        target=ContainerRef(pod=pod.ref, name="trainer"),
        sandbox_id=SandboxId(seen.sandbox),
        strategy=intents.Strategy.RERUN,
        plan=await runtime_state.plan(made.cri, pod),
        reason="Bench",
        created_at=time.time(),
    )
    successor_specs = await runtime_state.successor_specs(made.cri, intent, pod=pod, processes=ProcFs())
    return _Round(name=name, intent=intent, successor_specs=successor_specs, before=seen)


async def _rerun(made: Rig, name: str, samples: Samples, *, after: float) -> _Round:
    await asyncio.sleep(after)
    began = time.perf_counter()
    begun = await _prepared(made, name)
    await made.store.begin(begun.intent)
    kill = time.perf_counter()
    outcome = await made.whole_pods.carry_out(begun.intent, successor_specs=begun.successor_specs)
    done = time.perf_counter()
    assert outcome.result.restarted, outcome
    samples.prepare.append(kill - began)
    samples.rerun.append(done - kill)
    samples.reserve.append(outcome.phases["reserve"])
    samples.left_to_kubelet += outcome.result is Result.LEFT_TO_KUBELET
    await made.store.finish(begun.intent.id, outcome=outcome.result.value, now=time.time())
    return replace(begun, outcome=outcome)


async def _settled(made: Rig, done: _Round, *, restart: int) -> _Round:
    """Wait until kubelet shows one of each. The product checks again, as always; after bare calls that is a cleanup."""
    if done.outcome is not None:
        again = await made.whole_pods.carry_out(done.intent, successor_specs=done.successor_specs)
        await _whole(made, done.name, restart=restart)
        return replace(done, outcome=replace(done.outcome, notes=(*done.outcome.notes, *again.notes)))
    async with asyncio.timeout(SECONDS):
        while True:
            try:
                await _whole(made, done.name, restart=restart, timeout=_COPY_SECONDS)
            except TimeoutError:
                await made.whole_pods.carry_out(done.intent, successor_specs=None)
            else:
                return done


async def _whole(made: Rig, name: str, *, restart: int, timeout: float = SECONDS) -> None:
    """Wait until one of each lasting container runs, and kubelet shows that."""
    await made.observer.until(
        name,
        lambda s: (
            s.restart_counts.get("trainer", -1) >= restart
            and all(s.running.get(each) == (s.container_ids[each],) for each in _LASTING)
        ),
        timeout=timeout,
        what=f"restart {restart} of {name} in kubelet's status",
    )


async def _judge(made: Rig, done: _Round, happened: list[ContainerEvent], samples: Samples) -> None:
    """Count the results of the pod."""
    seen = await made.observer.see(done.name)
    started = Counter(event.container.ref.name for event in happened if event.kind is EventKind.STARTED)
    samples.init_runs[max(started[_INIT], seen.init_runs - done.before.init_runs)] += 1
    samples.started_again.update(name for name, times in started.items() if times > 1)
    samples.side_by_side.update(
        rerun_samples.side_by_side(happened) | {name for name, ids in seen.running.items() if len(ids) > 1}
    )
    ours = [view for view in await made.cri.list_containers() if view.restart_id == done.intent.id]
    made_by_us = {view.ref.name for view in ours}
    samples.names_kept += any(reservations.reserves(view) for view in ours)
    samples.reported += done.outcome is not None and bool(done.outcome.notes)
    samples.adopted.update(name for name in (_INIT, *_LASTING) if name not in made_by_us)
    times = {name: await made.observer.times(ContainerId(container)) for name, container in seen.container_ids.items()}
    samples.order_kept += 0 < times[_INIT][1] <= times["shipper"][0] <= times["trainer"][0]
    samples.counted_once += all(
        count == done.before.restart_counts[name] + 1 for name, count in seen.restart_counts.items()
    )
    place = (seen.uid, seen.ip, seen.sandbox, seen.phase)
    samples.in_place += place == (done.before.uid, done.before.ip, done.before.sandbox, done.before.phase)


async def _bare_calls(made: Rig, name: str, samples: Samples) -> _Round:
    """Make the calls alone, as early as possible: exited containers are removed first, init is awaited by its exit
    event.
    """
    begun = await _prepared(made, name)
    views = await made.cri.list_containers(pod_uid=begun.intent.target.pod.uid)
    exited = [view.id for view in views if view.state is ContainerState.EXITED]
    others = [view.id for view in views if view.state is not ContainerState.EXITED]
    async with made.events.subscribe(begun.intent.target.pod.uid) as changes:
        began = time.perf_counter()
        for group in (exited, others):
            await asyncio.gather(*(made.cri.remove_container(container) for container in group))
        try:
            for planned in begun.intent.plan:
                await _start(made, begun, planned=planned, changes=changes)
        except errors.NameReserved:
            samples.bare_lost += 1
        else:
            samples.bare.append(time.perf_counter() - began)
    return begun


async def _start(
    made: Rig, begun: _Round, *, planned: intents.Planned, changes: "asyncio.Queue[ContainerEvent]"
) -> None:
    successor_spec = begun.successor_specs[planned.name]
    container = await made.cri.create_container(
        sandbox_id=begun.intent.sandbox_id,
        config=successor_spec.successor.config,
        sandbox_config=successor_spec.sandbox_config,
    )
    await made.cri.start_container(container)
    if planned.role is ContainerRole.INIT:
        await _ended(container, changes)


async def _ended(container: ContainerId, changes: "asyncio.Queue[ContainerEvent]") -> None:
    async with asyncio.timeout(SECONDS):
        while (event := await changes.get()).container_id != container or event.kind is not EventKind.STOPPED:
            pass


async def _run(*, rounds: int, pods: int, seed: int) -> dict[str, Any]:
    async with node.DevNode.named("reruns") as dev, rig.on(dev) as made:
        samples = await measure(dev, made, count=rounds, pods=pods, seed=seed)
        return {"node": dev.kinds, "pods": pods, **samples.figures()}


@click.command(help=__doc__)
@click.option("--rounds", default=200, show_default=True, help="Reruns of each pod.")
@click.option("--pods", default=1, show_default=True, help="Pods that are rerun side by side.")
@click.option("--seed", default=5532, show_default=True, help="Seed of the moments at which reruns begin.")
def main(rounds: int, pods: int, seed: int) -> None:
    """Measure and print."""
    logs.configure(level="error", log_format="console")
    click.echo(json.dumps(asyncio.run(_run(rounds=rounds, pods=pods, seed=seed)), indent=2))


if __name__ == "__main__":
    sys.exit(main())
