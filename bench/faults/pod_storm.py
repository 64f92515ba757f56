"""Fault: thousands of pods are created, changed and deleted, on an agent's node and as members of gangs."""

import asyncio
import contextlib
import signal
import time
import uuid
from collections.abc import AsyncIterator
from typing import Any, Final

from bench import footprint
from bench.faults import looking
from bench.faults.reporting import Kind, Reported
from bench.faults.scale import Scale
from bench.faults.stage import Stage
from hack.devnode import images
from hack.devnode.gang_objects import NAMESPACE
from kubemend.common import gangs
from kubemend.common.kube import client as kube
from kubemend.common.kube import paths

PROMISE: Final = (
    "With any number of created, changed and deleted pods the memory of agent and controller stays bounded, "
    "and a fault during 10,000 such changes is handled."
)

_PODS = paths.collection("pods", namespace=NAMESPACE)
CHANGES_OF_A_POD: Final = 3  # it is created, changed, and deleted
_AT_ONCE: Final = 50
_GANG_OF: Final = 10
_PADDING: Final = "x" * 1024
_MAY_GROW_BY: Final = 48 * 2**20
"""Bytes. 10,000 such pods kept whole would be more than 100 MiB."""


async def tried(stage: Stage, scale: Scale, reported: Reported) -> None:
    """Create and delete them on the second node, whose kubelet is stopped: it would run them all."""
    second = stage.nodes[1]
    pods = scale.changes // CHANGES_OF_A_POD
    async with stage.product() as product:
        await product.start(nodes=2)
        agent, log = product.agents[1], product.log(1)
        watched = {"agent": agent.child.pid, "controller": product.controllers[1].child.pid}
        async with (
            stage.trainer("amid", node=1) as trainer,
            stage.trainer("beside", node=1) as bystander,
            stage.gang("amid-gang", nodes=(0,)) as gang,
        ):
            before = {name: _resident(pid) for name, pid in watched.items()}
            reported.tries(f"{pods} pods come, change and go, {_AT_ONCE} at a time, and faults come among them")
            await second.kubelet.stop()
            try:
                began = time.monotonic()
                async with storming(stage.api, node=second.name, pods=pods // 2) as storm:
                    await storm
                async with storming(stage.api, node=second.name, pods=pods - pods // 2) as storm:
                    old = await trainer.fails()
                    reported.measures("restart_seen_after_ms", round(await trainer.replaced(old) * 1000))
                    fault = await gang.end(1, exit_code=1)
                    await stage.keeps_round(gang, reported, number=1, since=fault, what="the round among them")
                    await storm
                reported.measures("changes_per_second", round(pods * CHANGES_OF_A_POD / (time.monotonic() - began)))
            finally:
                await second.kubelet.start()
            reported.keeps(Kind.RESTART, "it was not restarted in place", holds=await trainer.is_in_place())
            reported.keeps(Kind.UNASKED, "a pod without a fault was restarted", holds=await bystander.is_untouched())
            acted = log.events("restart.acted")
            reported.keeps(Kind.UNASKED, f"{len(acted)} restarts for one fault", holds=len(acted) == 1)
            for name, pid in watched.items():
                grown = _resident(pid) - before[name]
                reported.measures(f"{name}_grew_by_mib", round(grown / 2**20, 1))
                reported.keeps(Kind.PROCESS, f"the {name} has grown by {grown} bytes", holds=grown < _MAY_GROW_BY)
            after = await looking.metrics(agent.metrics_address)
            reported.keeps(Kind.DECISION, "a finding was dropped", holds=after["kubemend_findings_lost_total"] == 0)
            status = await product.end_agent(1, signal.SIGTERM)
            reported.keeps(Kind.PROCESS, f"the agent ended with {status}", holds=status == 0)


@contextlib.asynccontextmanager
async def storming(api: kube.KubeClient, *, node: str, pods: int) -> AsyncIterator["asyncio.Task[None]"]:
    """Yield a task in which that many pods come and go; it has ended when the block ends."""
    task = asyncio.create_task(_storm(api, node=node, pods=pods), name="pod-storm")
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _storm(api: kube.KubeClient, *, node: str, pods: int) -> None:
    """Create a burst of pods, then change all of them, then delete all; then the next burst."""
    for first in range(0, pods, _AT_ONCE):
        burst = uuid.uuid4().hex[:8]
        names = [f"storm-{burst}-{number}" for number in range(min(_AT_ONCE, pods - first))]
        await asyncio.gather(*(api.create(_PODS, _pod(name, node=node)) for name in names))
        change = {"metadata": {"annotations": {"example.com/changed": _PADDING}}}
        await asyncio.gather(*(api.patch(paths.pod(NAMESPACE, name), change) for name in names))
        await asyncio.gather(
            *(api.delete(paths.pod(NAMESPACE, name), options={"gracePeriodSeconds": 0}) for name in names)
        )


def _pod(name: str, *, node: str) -> dict[str, Any]:
    burst, _, number = name.removeprefix("storm-").partition("-")
    labels = {gangs.JOBSET_NAME: f"storm-{burst}-{int(number) % _GANG_OF}", gangs.JOB_INDEX: number}
    container = {"name": "worker", "image": images.PAUSE, "imagePullPolicy": "Never"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": NAMESPACE,
            "labels": labels,
            "annotations": {"kubemend.io/restart": "InPlace", "example.com/padding": _PADDING},
        },
        "spec": {"nodeName": node, "automountServiceAccountToken": False, "containers": [container]},
    }


def _resident(pid: int) -> int:
    return sum(footprint.of(pid).resident.values())
