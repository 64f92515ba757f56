"""A pod that is deleted, evicted, or ended by kubelet is not restarted, and its gang gets no fault.

Its trainer exits with an error of its own at SIGTERM: only the end of its pod distinguishes that from a crash.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from hack.devnode import node, patience, readyz, trainer
from hack.devnode.cluster import Cluster
from hack.devnode.observer import Observer, Seen
from hack.devnode.rounds import Rounds
from kubemend.agent.clients.cri.client import CriClient
from kubemend.agent.clients.cri.events import EventKind
from kubemend.agent.model.workloads import PodUid
from kubemend.agent.sources.containers import ContainerWatch
from kubemend.common.gangs import GangKey
from kubemend.common.kube import errors, paths
from tests.scenarios import test_exits, training
from tests.scenarios.gang.product import Product

pytestmark = pytest.mark.devnode

BOTH = [True, pytest.param(False, marks=pytest.mark.long)]
WAYS = ["eviction", "deletion", "kubelet"]
HOOKED = "kubelet-hooked"
"""Kubelet ends the pod, which has preStop hooks."""


@contextlib.asynccontextmanager
async def ended(dev: node.DevNode, uid: str) -> AsyncIterator["asyncio.Task[None]"]:
    """Follow a pod: the yielded task ends with its sandbox, and fails if a second trainer was created before."""

    async def over(cri: CriClient, watch: ContainerWatch) -> None:
        async with watch.subscribe(PodUid(uid)) as steps:
            while any(box.ready for box in await cri.list_sandboxes(pod_uid=PodUid(uid))) or not steps.empty():
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(0.1):
                        step = await steps.get()
                        made = step.kind is EventKind.CREATED and step.container.attempt > 0
                        assert not made, f"{step.container.ref} was made in a pod that is ending"

    async with (
        CriClient(str(dev.layout.containerd_socket), deadlines=patience.RUNTIME) as cri,
        asyncio.timeout(training.DEADLINE),
        asyncio.TaskGroup() as tasks,
    ):
        watch = ContainerWatch(cri, report=lambda _: None)
        watching = tasks.create_task(watch.run())
        await watch.until_listed()
        work = tasks.create_task(over(cri, watch))
        yield work
        await work
        watching.cancel()


@contextlib.asynccontextmanager
async def running(observer: Observer, made: dict[str, Any]) -> AsyncIterator[Seen]:
    """Run a pod for the length of the block; it may be deleted by the end."""
    name = made["metadata"]["name"]
    await observer.create(made)
    try:
        yield await observer.until(name, training.is_training, timeout=training.DEADLINE, what=f"{name} training")
    finally:
        with contextlib.suppress(errors.NotFoundError):
            await observer.delete(name)


def manifest(name: str, dev: node.DevNode, *, sidecar: bool, gang: str = "") -> dict[str, Any]:
    """Return a pod that kubelet evicts once its volume exceeds its limit."""
    made = trainer.manifest(
        name, node=dev.name, gpus=0, restart_policy="Always", sidecar=sidecar, script=test_exits.DIES
    )
    made["spec"]["terminationGracePeriodSeconds"] = 5
    made["spec"]["volumes"][0]["emptyDir"] = {"sizeLimit": "64Ki"}
    if gang:
        made["metadata"]["labels"] = {"kubemend.io/gang": gang}
    return made


def with_hooks(made: dict[str, Any]) -> dict[str, Any]:
    """Add preStop hooks: the trainer's makes it exit with an error, the other main container's takes its time.

    No signal is sent before the second ends, so that neither the runtime nor the pod's object shows the pod's end.
    """
    (trainers,) = made["spec"]["containers"]
    helper = {**trainers, "name": "helper", "command": ["/bin/sh", "-c", trainer.SIDECAR]}
    trainers["lifecycle"] = _pre_stop(f"cd {trainer.CHECKPOINTS}; echo 3 > die.new; mv die.new die; sleep 3")
    helper["lifecycle"] = _pre_stop("sleep 3")
    made["spec"]["containers"].append(helper)
    return made


def _pre_stop(script: str) -> dict[str, Any]:
    return {"preStop": {"exec": {"command": ["/bin/sh", "-c", script]}}}


async def bring_to_an_end(observer: Observer, name: str, seen: Seen, *, how: str) -> None:
    """End the pod in that way."""
    if how == "eviction":
        eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": "default"}}
        await observer.api.create(f"{paths.pod('default', name)}/eviction", eviction)
    elif how == "deletion":
        await observer.api.delete(paths.pod("default", name), options={})
    else:
        (observer.volume(seen.uid) / "too-much").write_bytes(b"x" * 2**20)


@pytest.mark.parametrize("sidecar", BOTH, ids=["sidecar", "alone"])
async def test_ended_pods_are_not_restarted(
    cluster: Cluster, observer: Observer, tmp_path: Any, *, sidecar: bool
) -> None:
    dev = cluster.first

    async def ends(agent: node.Agent, how: str) -> None:
        name = f"ends-{how}-{'with' if sidecar else 'alone'}"
        made = manifest(name, dev, sidecar=sidecar)
        async with running(observer, with_hooks(made) if how == HOOKED else made) as seen:
            async with ended(dev, seen.uid):
                await bring_to_an_end(observer, name, seen, how=how)
            decided = test_exits.logged(agent, "restart.decided", pod=name)
            assert all(each["verb"] != "act" for each in decided), decided

    async with dev.agent(f"--state-dir={tmp_path / 'state'}") as agent:
        await readyz.until_ready(agent)
        async with asyncio.TaskGroup() as pods:
            for how in (*WAYS, HOOKED):
                pods.create_task(ends(agent, how))


@pytest.mark.parametrize("sidecar", BOTH, ids=["sidecar", "alone"])
async def test_members_of_ended_pods_cause_no_gang_fault(
    cluster: Cluster, observer: Observer, product: Product, *, sidecar: bool
) -> None:
    await product.start(nodes=1)
    async with asyncio.TaskGroup() as gangs:
        for how in (*WAYS, HOOKED):
            gangs.create_task(causes_no_fault(cluster.first, observer, how, sidecar=sidecar))


async def causes_no_fault(dev: node.DevNode, observer: Observer, how: str, *, sidecar: bool) -> None:
    """End a member's pod in that way, and let another member exit."""
    gang = f"gang-{how}-{'with' if sidecar else 'alone'}"
    made = manifest(f"{gang}-0", dev, sidecar=sidecar, gang=gang)
    async with (
        running(observer, with_hooks(made) if how == HOOKED else made) as seen,
        running(observer, manifest(f"{gang}-1", dev, sidecar=sidecar, gang=gang)) as other,
    ):
        async with ended(dev, seen.uid):
            await bring_to_an_end(observer, f"{gang}-0", seen, how=how)
        # The controller receives the other member's fault after all reports of the first one.
        test_exits.end(observer, other, code=3)
        await observer.until(
            f"{gang}-1",
            lambda each: each.restart_counts["trainer"] > other.restart_counts["trainer"],
            timeout=training.DEADLINE,
            what=f"{gang}-1 restarted",
        )
        triggers = [
            each.get("status", {}).get("trigger", {}).get("member")
            for each in await Rounds(observer.api, GangKey("default", "Gang", gang)).all()
        ]
        assert f"{gang}-0" not in triggers
