"""``make demo``: GPU faults restart a container, and then a whole gang of four, in place, on real Kubernetes.

Every line is observed from outside the agent: in the API, in the runtime, on the volume, in the logs. The exit code is
0 only when all expectations were met.
"""

import asyncio
import contextlib
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import click

from hack import demo_gang, demo_pod
from hack.demo_report import Report
from hack.devnode import controllers, controlplane, jobsets, kubernetes, node, packages, patience, readyz
from hack.devnode.cluster import Cluster
from hack.devnode.layout import NodeLayout
from kubemend.common import logs
from kubemend.common.kube import client as kube

_PICTURE: Final = Path("build/demo-timeline.svg")
_NODES: Final = 2
_GPUS: Final = 4


async def main() -> int:
    """Run the whole demo; return the exit code."""
    logs.configure(level="warning", log_format="console")
    if reason := controlplane.missing():
        click.secho(reason, fg="red", err=True)
        return 1
    began = time.monotonic()
    report = Report()
    cluster = Cluster(NodeLayout.named("demo"), nodes=_NODES, options=node.Options(gpus=_GPUS))
    _print_real_parts(report)
    async with contextlib.AsyncExitStack() as stack:
        report.section(f"1. A cluster of {_NODES} nodes, each with {_GPUS} GPUs")
        await stack.enter_async_context(cluster)
        await stack.enter_async_context(jobsets.run_on(cluster.first))
        report.check("the nodes are Ready", True, ", ".join(each.name for each in cluster.nodes))
        agents = await _product(cluster, report, stack)
        api = await stack.enter_async_context(kube.connect(kubeconfig=cluster.first.kubeconfig, deadlines=patience.API))
        async with demo_pod.placed(cluster, agents, report, api=api) as (scene, seen):
            await demo_pod.is_restarted_twice(scene, seen)
            await demo_gang.play(cluster, report, api=api, picture=_PICTURE)
            await demo_pod.loses_its_gpu(scene)
    left = cluster.leftovers()
    report.check("nothing is left behind", not left, left or "no process, mount, network or file")
    return _verdict(report, seconds=time.monotonic() - began)


def _print_real_parts(report: Report) -> None:
    """Print which parts are real and which are simulated."""
    report.section("Real and simulated parts")
    report.say(
        f"real     etcd, kube-apiserver, kube-controller-manager, kube-scheduler, kubelet {kubernetes.version()}"
    )
    report.say(
        "real     containerd and runc, which run every container, and the kernel's cgroups, namespaces and freezer"
    )
    report.say("real     kubemend's agents and controller, as processes next to the nodes")
    report.say("fake     the GPUs: NVML is a library that the demo controls, a device plugin offers them to kubelet")
    report.say("fake     the kernel log: a file in the kernel's format, so that your own log stays free of Xids")


async def _product(cluster: Cluster, report: Report, stack: contextlib.AsyncExitStack) -> Mapping[str, node.Agent]:
    """Run a controller, and an agent for each node; return the agents by their node."""
    hub = await stack.enter_async_context(controllers.Controllers.on(cluster.nodes, replicas=1))
    await stack.enter_async_context(hub.run())
    agents = {each.name: await stack.enter_async_context(hub.agent(each)) for each in cluster.nodes}
    for name, agent in agents.items():
        parts = (await readyz.until_ready(agent, hub=True))["parts"]
        reported = ", ".join(f"{part} {parts[part]['state']}" for part in parts)
        report.check(f"the agent of {name} is ready", True, reported)
    report.check("a controller leads", True, await hub.leader())
    return agents


def _verdict(report: Report, *, seconds: float) -> int:
    """Print the result; return the exit code."""
    if report.failures:
        click.secho(f"\n{len(report.failures)} observations were not as expected.", fg="red", bold=True)
        return 1
    click.secho(f"\nAll observations were as expected, after {seconds:.0f} s.", fg="green", bold=True)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(asyncio.run(main()))
    except packages.PackagesError as error:
        sys.exit(str(error))
