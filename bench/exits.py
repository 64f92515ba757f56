"""Measure how soon a container runs again that has exited with an error.

Pods of one container exit one after another; the time is from the end of the old container to the start of the new one,
both by the runtime's clock. ``agent_ms`` are pods that opted in, under the agent and the real kubelet; ``kubelet_ms``
are pods that did not, whose first restart is kubelet's own (its later ones wait 10 s and more). In the end kubelet is
stopped: ``runtime_ms`` is the agent on the runtime alone, and ``calls_ms`` are the two bare calls there, made by this
program at the runtime's event.

Prints JSON. ``kubelet_first`` counts the containers that kubelet created, ``crash_loops`` the pods that opted in and
were shown in CrashLoopBackOff.
"""

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import click

from bench import bare, figures, rig
from bench.dying import Waiting
from hack.devnode import node, readyz, trainer
from kubemend.agent.clients.cri.events import EventKind
from kubemend.agent.model.workloads import ContainerRef, PodRef, PodUid
from kubemend.agent.restarts import runtime_state
from kubemend.common import logs

_DIES = f"""
step=$(cat {trainer.CHECKPOINTS}/step 2>/dev/null || echo 0)
echo $((step + 1)) > {trainer.CHECKPOINTS}/step
until [ -e {trainer.CHECKPOINTS}/die ]; do sleep 0.2; done
rm {trainer.CHECKPOINTS}/die
exit 3
"""
_OPTED_IN = {"kubemend.io/restart": "InPlace"}
_EXITS_A_POD = 3
"""Restarts that the agent makes without a wait, however soon they follow each other (``common.budgets.Backoff``)."""


@dataclass
class Row:
    """Hold the seconds from each exit to the new container, and how often kubelet created it."""

    seconds: list[float] = field(default_factory=list)
    kubelet_first: int = 0

    def figures(self) -> dict[str, float]:
        """Return the printed figures."""
        return {**figures.milliseconds(self.seconds), "kubelet_first": self.kubelet_first}


async def measure(count: int) -> dict[str, Any]:
    """Let containers exit ``count`` times in each way; return the figures."""
    rows = {name: Row() for name in ("agent", "kubelet", "runtime", "calls")}
    names = {
        "agent": [f"agent-{number}" for number in range(-(-count // _EXITS_A_POD))],
        "kubelet": [f"kubelet-{number}" for number in range(count)],
        "runtime": [f"runtime-{number}" for number in range(count)],
        "calls": ["calls"],
    }
    options = node.Options(gpus=0)
    async with (
        node.DevNode.named("bench-exits", options=options) as dev,
        rig.on(dev) as made,
        Waiting.on(dev) as waiting,
    ):
        for kind, of_kind in names.items():
            for name in of_kind:
                await _create(made, name, node_name=dev.name, opted_in=kind in ("agent", "runtime"))
        pods = {kind: [await _started(made, name) for name in of_kind] for kind, of_kind in names.items()}
        async with dev.agent() as agent:
            await readyz.until_ready(agent)
            for number in range(count):
                pod = pods["agent"][number // _EXITS_A_POD]
                await _exit(made, pod, rows["agent"], by=_leave_it)
                await made.running(pod.name, restart=number % _EXITS_A_POD + 1)
                await _exit(made, pods["kubelet"][number], rows["kubelet"], by=_leave_it)
            await dev.kubelet.stop()
            for number in range(count):
                await _exit(made, pods["runtime"][number], rows["runtime"], by=_leave_it)
                await _exit(made, pods["calls"][0], rows["calls"], by=_bare_calls)
        crash_loops = sum("CrashLoopBackOff" in waiting.of(name) for name in names["agent"])
    return {"exits": count, "crash_loops": crash_loops, **{f"{name}_ms": row.figures() for name, row in rows.items()}}


async def _create(made: rig.Rig, name: str, *, node_name: str, opted_in: bool) -> None:
    annotations = _OPTED_IN if opted_in else {}
    await made.observer.create(
        trainer.manifest(name, node=node_name, gpus=0, annotations=annotations, sidecar=False, script=_DIES)
    )


async def _started(made: rig.Rig, name: str) -> PodRef:
    await made.running(name, restart=0)
    seen = await made.observer.until(name, lambda s: s.step > 0, timeout=rig.SECONDS, what=f"{name} at work")
    return PodRef("default", name, PodUid(seen.uid))


async def _exit(
    made: rig.Rig, pod: PodRef, row: Row, *, by: Callable[[rig.Rig, bare.Prepared], Awaitable[None]]
) -> None:
    """Have a pod's trainer exit, and wait for the next one, which ``by`` may create. Raises TimeoutError."""
    ref = ContainerRef(pod, "trainer")
    target = await runtime_state.find(made.cri, ref)
    assert target is not None
    restart = await bare.prepared(made.cri, ref, target)
    ended = 0
    async with made.events.subscribe(pod.uid) as steps, asyncio.timeout(rig.SECONDS):
        (made.observer.volume(pod.uid) / "die").touch()
        while True:
            step = await steps.get()
            if step.container_id == target.view.id and step.kind is EventKind.STOPPED:
                ended = step.created_at
                await by(made, restart)
            elif step.kind is EventKind.STARTED and step.container.ref == ref:
                break
    row.seconds.append((step.created_at - ended) / 1e9)
    row.kubelet_first += step.container.restart_id is None


async def _leave_it(made: rig.Rig, restart: bare.Prepared) -> None:
    """Leave the successor to the agent, or to kubelet."""


async def _bare_calls(made: rig.Rig, restart: bare.Prepared) -> None:
    """Create and start the successor. Raises CriError."""
    container = await made.cri.create_container(
        sandbox_id=restart.intent.sandbox_id,
        config=restart.successor_spec.successor.config,
        sandbox_config=restart.successor_spec.sandbox_config,
    )
    await made.cri.start_container(container)


@click.command(help=__doc__)
@click.option("--count", default=12, show_default=True, help="Exits of each kind.")
def main(count: int) -> None:
    """Measure and print."""
    logs.configure(level="error", log_format="console")
    click.echo(json.dumps(asyncio.run(measure(count)), indent=2))


if __name__ == "__main__":
    sys.exit(main())
