"""Run each arm of gangs, with all members on one dev node, or on two of which one fails."""

import asyncio
import contextlib
import signal
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bench.faults.product import Product
from bench.peers import upstream
from bench.steps import arms, records, recovery, spares
from hack.devnode import apiserver, controlplane, jobsets, layout, watching
from hack.devnode import cluster as clusters
from hack.devnode.cluster import Cluster
from hack.devnode.node import DevNode
from hack.devnode.observer import Observer
from kubemend.common import gangs
from kubemend.common.kube import client as kube

_UNMARKED_SECONDS: Final = 30.0
"""Seconds from the time when Kubernetes has noticed a lost node to its mark."""
_NOTICED_SECONDS: Final = 180.0

Json = dict[str, Any]


async def measure(wanted: tuple[str, ...], plan: arms.Plan, *, members: int, directory: Path) -> Json:
    """Run the arms one after another, and return the figures."""
    chosen = [arm for arm in arms.GANG_ARMS if arm.name in wanted]
    found: Json = {
        arm.name: {"what": arm.what, "fault": arm.fault(plan), "none": arm.not_possible(plan)} for arm in chosen
    }
    chosen = [arm for arm in chosen if not arm.not_possible(plan)]
    ours = [arm for arm in chosen if arm.restarter.is_kubemend]
    upstreams = [arm for arm in chosen if arm not in ours]
    loses = plan.fault.loses_node
    async with contextlib.AsyncExitStack() as stack:
        # Upstream's agents run in pods and watch the API server from there: it listens on the pods' bridge, too.
        api_server = apiserver.KubeApiServer(directory, options=["--bind-address=0.0.0.0"])
        await stack.enter_async_context(api_server)
        nodes = Cluster(layout.NodeLayout.named("bench-steps-gang"), nodes=2 if loses else 1, api=api_server)
        await stack.enter_async_context(nodes)
        await upstream.define_jobsets(nodes.first)
        await stack.enter_async_context(jobsets.run_on(nodes.first, also=controlplane.EVICTION if loses else ()))
        api = await stack.enter_async_context(kube.connect(kubeconfig=nodes.first.kubeconfig))
        for restarts, group in ((_upstream, upstreams), (_kubemend, ours)):
            if group:
                async with restarts(nodes, api, directory) as product:
                    for arm in group:
                        run = _Run(api, nodes, product, arm, plan, members, directory / arm.name)
                        found[arm.name] = {"what": arm.what, "fault": arm.fault(plan), **await run.figures()}
    return found


@dataclass(frozen=True, slots=True)
class _Run:
    """The run of one arm. ``product`` is kubemend where it restarts the gang."""

    api: kube.KubeClient
    nodes: Cluster
    product: Product | None
    arm: arms.GangArm
    plan: arms.Plan
    members: int
    where: Path

    async def figures(self) -> Json:
        """Run until the gang has recovered from its last fault. A gang loses a node only once."""
        self.where.mkdir()
        if self.plan.fault.loses_node:
            return recovery.figures(*[await self._loses_node(number) for number in range(self.plan.faults)])
        async with self._gang(self.where) as last:
            if self.arm.has_spares:
                return await self._with_spares(last)
            return recovery.figures(await records.with_recoveries(last, count=self.plan.faults, what=self.arm.name))

    async def _with_spares(self, last: Path) -> Json:
        """Return the figures of faults each of which comes when all members have a spare."""
        async with Observer.of(self.nodes.first.layout) as observer, asyncio.TaskGroup() as tasks:
            gate = spares.FaultGate(observer, last, self._pods)
            opening = tasks.create_task(gate.open(faults=self.plan.faults), name="faults")
            found = await records.with_recoveries(last, count=self.plan.faults, what=self.arm.name)
            opening.cancel()
        return {**recovery.figures(found), "had_spare": gate.had_spare}

    async def _pods(self) -> Sequence[str]:
        pods = await self.api.list(jobsets.PODS, params=jobsets.of(self.arm.name))
        return [pod["metadata"]["name"] for pod in pods.items]

    @contextlib.asynccontextmanager
    async def _gang(self, where: Path) -> AsyncIterator[Path]:
        """Run the gang; yield the records of its last member, which has the faults."""
        made = arms.gang(self.arm, self.plan, members=self.members, node=self.nodes.first, records=where)
        await self.api.create(jobsets.JOBSETS, made)
        yield where / f"{self.members - 1}.records"
        await jobsets.delete(self.api, self.arm.name)

    async def _loses_node(self, number: int) -> list[recovery.Record]:
        """Have the node of the last member fail, for as long as the gang recovers; return that member's records.

        How soon it is marked as out of service depends on the cluster, and not on what restarts the gang.
        """
        where = self.where / str(number)
        where.mkdir()
        async with self._gang(where) as last:
            await records.until_step(last, self.plan.every, what=self.arm.name)
            lost = await self._node_of_last()
            async with self._without_agent(lost):
                fault = time.monotonic_ns()
                await clusters.power_off(lost)
                if self.plan.fault is arms.Fault.NOTICED_NODE:
                    await self._is_noticed(lost)
                    await asyncio.sleep(_UNMARKED_SECONDS)
                    fault = time.monotonic_ns()
                records.add_fault(last, at=fault)
                await clusters.out_of_service(self.api, lost.name)
                found = await records.with_recoveries(last, count=1, what=self.arm.name)
                await clusters.power_on(self.api, lost)
        return found

    async def _is_noticed(self, lost: DevNode) -> None:
        """Wait until Kubernetes' node controller has found no Lease for 50 s, and has marked the node's pods for it."""
        pods = watching.collection(self.api, jobsets.PODS, params=jobsets.of(self.arm.name))
        async with asyncio.timeout(_NOTICED_SECONDS), contextlib.aclosing(pods) as seen:
            async for found in seen:
                if not any(_is_ready(pod) for pod in found if pod["spec"].get("nodeName") == lost.name):
                    break

    async def _node_of_last(self) -> DevNode:
        """Return the last member's node. Raises RuntimeError if all members are there."""
        pods = (await self.api.list(jobsets.PODS, params=jobsets.of(self.arm.name))).items
        on = {int(pod["metadata"]["labels"][gangs.JOB_INDEX]): pod["spec"]["nodeName"] for pod in pods}
        if len(set(on.values())) == 1:
            raise RuntimeError(f"{self.arm.name}: all members are on {on[0]}, and no one would miss another")
        return next(each for each in self.nodes.nodes if each.name == on[self.members - 1])

    @contextlib.asynccontextmanager
    async def _without_agent(self, node: DevNode) -> AsyncIterator[None]:
        index = self.nodes.nodes.index(node)
        if self.product is not None:
            await self.product.end_agent(index, signal.SIGKILL)
        yield
        if self.product is not None:
            await self.product.start_agent(index)


def _is_ready(pod: Json) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


@contextlib.asynccontextmanager
async def _upstream(nodes: Cluster, api: kube.KubeClient, _directory: Path) -> AsyncIterator[None]:
    async with upstream.controller(nodes.first, api):
        yield


@contextlib.asynccontextmanager
async def _kubemend(nodes: Cluster, _api: kube.KubeClient, directory: Path) -> AsyncIterator[Product]:
    async with Product.on(nodes, state=directory / "agents") as product:
        await product.start(nodes=len(nodes.nodes))
        yield product
