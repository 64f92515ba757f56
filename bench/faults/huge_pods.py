"""Fault: pods as large as the API server accepts, on an agent's node and as members of gangs."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any, Final

from bench.faults import looking, memory_cgroup
from bench.faults.memory_cgroup import MemoryCgroup
from bench.faults.product import Product
from bench.faults.reporting import Kind, Reported
from bench.faults.scale import Scale
from bench.faults.stage import Stage
from bench.memory import __main__ as memory
from bench.memory import pods
from hack.devnode import images
from hack.devnode.gang_objects import NAMESPACE
from hack.devnode.observer import Seen
from kubemend.common import gangs
from kubemend.common.kube import client as kube
from kubemend.common.kube import paths

PROMISE: Final = (
    "Pods of any size do not end agent or controller out of memory: each is restarted as any other, or refused "
    "with a reason."
)

_PODS: Final = paths.collection("pods", namespace=NAMESPACE)
_MB: Final = 1_000_000
_MOST_OF_ANNOTATIONS: Final = 250_000
"""All annotations of an object together may have 256 KiB (apimachinery, ``TotalAnnotationSizeLimitB``)."""

_VARIABLE: Final = 100_000
"""The kernel accepts up to 128 KiB for one variable (MAX_ARG_STRLEN in execve(2))."""

_SMALL: Final = 1_000
"""With many smaller ones the API server still needs a second for each pod."""

_MAPS: Final = 2
_IN_A_MAP: Final = 40_000
"""Variables in a ConfigMap, which takes 1.1 MB of the API server's 1.5 MB. The pod that imports it is small."""
_WITHIN: Final = 300.0
"""Seconds until that pod trains: at load 12 kubelet took 70 of them to start it, and then every program copies all."""

_MANY: Final = 500
_FEW: Final = 80
_GANG_OF: Final = 10
_AT_ONCE: Final = 4
_ROLES: Final = ("agent", "controller")


async def tried(stage: Stage, scale: Scale, reported: Reported) -> None:
    """Create them on the second node, whose kubelet is stopped: it would run them all.

    Two that run there are large, too.
    """
    dev = stage.nodes[1]
    async with contextlib.AsyncExitStack() as stack:
        cgroups = {each: stack.enter_context(memory_cgroup.made(f"kubemend-{dev.name}-{each}")) for each in _ROLES}
        product = await stack.enter_async_context(stage.product())
        trainer = await stack.enter_async_context(stage.trainer("large", node=1, change=_large))
        refused = await stack.enter_async_context(stage.trainer("wordy", node=1, change=_wordy))
        await stack.enter_async_context(_variables(stage.api))
        importing = await stack.enter_async_context(
            stage.trainer("importing", node=1, change=_importing, within=_WITHIN)
        )
        gang = await stack.enter_async_context(stage.gang("beside", nodes=(0,)))
        count = _MANY if scale.whole else _FEW
        reported.tries(f"{count} pods with 1 MB of environment each")
        await _started(product, cgroups)
        await dev.kubelet.stop()
        try:
            async with _crowded(stage.api, node=dev.name, count=count):
                reported.tries(
                    "a pod with 800 KB of environment fails, one with 250 KB of annotations, "
                    f"one with {_MAPS * _IN_A_MAP} variables, and a gang"
                )
                old = await trainer.fails()
                await refused.fails()
                await importing.fails()
                fault = await gang.end(1, exit_code=1)
                await trainer.replaced(old)
                seen = await refused.until(_is_refused, what="the condition that the restart is refused")
                reported.measures("refused_with", seen.condition("InPlaceRestart")["message"])
                seen = await importing.until(_is_not_copied, what="the condition that the config is not copied")
                reported.measures("not_copied_with", seen.condition("InPlaceRestart")["message"])
                await stage.keeps_round(gang, reported, number=1, since=fault, what="the round among them")
        finally:
            await dev.kubelet.start()
        reported.keeps(Kind.UNASKED, "the refused pod was restarted", holds=await refused.is_untouched())
        reported.keeps(Kind.UNASKED, "the one with most variables was restarted", holds=await importing.is_untouched())
        reported.keeps(Kind.RESTART, "it was not restarted in place", holds=await trainer.comes_back_in_place())
        children = {"agent": product.agents[1].child, "controller": product.controllers[1].child}
        for role, cgroup in cgroups.items():
            reported.measures(f"{role}_most_used_mib", cgroup.most() >> 20)
            reported.keeps(Kind.PROCESS, f"the {role} was killed for memory", holds=cgroup.kills() == 0)
            reported.keeps(Kind.PROCESS, f"the {role} ended", holds=children[role].returncode is None)


async def _started(product: Product, cgroups: dict[str, MemoryCgroup]) -> None:
    """Start a controller, and agents on both nodes; the second one and the controller have the manifests' limits."""
    for role, cgroup in cgroups.items():
        cgroup.limit(memory.limit_of(role))
    await product.start_controller()
    cgroups["controller"].add(product.controllers[1].child.pid)
    agent = await product.launch_agent(1)
    cgroups["agent"].add(agent.child.pid)
    await product.start_agent(0)
    await looking.until(lambda: looking.works(agent.metrics_address), what="the agent")


@contextlib.asynccontextmanager
async def _crowded(api: kube.KubeClient, *, node: str, count: int) -> AsyncIterator[None]:
    """Have that many large pods for the length of the block."""
    turns = asyncio.Semaphore(_AT_ONCE)

    async def comes(number: int) -> None:
        async with turns:
            await api.create(_PODS, _member(number, node=node))
            made.append(number)

    async def goes(number: int) -> None:
        async with turns:
            await api.delete(paths.pod(NAMESPACE, f"huge-{number}"), options={"gracePeriodSeconds": 0})

    made: list[int] = []
    try:
        async with asyncio.TaskGroup() as tasks:
            for number in range(count):
                tasks.create_task(comes(number), name=f"huge-{number}")
        yield
    finally:
        await asyncio.gather(*(goes(number) for number in made))


def _member(number: int, *, node: str) -> dict[str, Any]:
    variables = [{"name": f"V{each}", "value": "x" * _SMALL} for each in range(_MB // _SMALL)]
    container = {"name": "worker", "image": images.PAUSE, "imagePullPolicy": "Never", "env": variables}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"huge-{number}",
            "namespace": NAMESPACE,
            "labels": {gangs.GANG: f"huge-{number // _GANG_OF}"},
            "annotations": {"kubemend.io/restart": "InPlace"},
        },
        "spec": {"nodeName": node, "automountServiceAccountToken": False, "containers": [container]},
    }


def _large(pod: dict[str, Any]) -> None:
    variables = [{"name": f"LARGE_{number}", "value": "x" * _VARIABLE} for number in range(8)]
    pod["spec"]["containers"][0]["env"] = variables


@contextlib.asynccontextmanager
async def _variables(api: kube.KubeClient) -> AsyncIterator[None]:
    """Have ConfigMaps with many variables for the length of the block."""
    maps = paths.collection("configmaps", namespace=NAMESPACE)
    made: list[str] = []
    try:
        for number in range(_MAPS):
            data = {f"V{number}{each:05}": "x" for each in range(_IN_A_MAP)}
            named = {"name": f"variables-{number}", "namespace": NAMESPACE}
            await api.create(maps, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": named, "data": data})
            made.append(f"{maps}/{named['name']}")
        yield
    finally:
        await asyncio.gather(*map(api.delete, made))


def _importing(pod: dict[str, Any]) -> None:
    """Have it import many variables; explicitly swapped, because ``auto`` would need kubelet."""
    pod["metadata"]["annotations"]["kubemend.io/strategy"] = "swap"
    sources = [{"configMapRef": {"name": f"variables-{number}"}} for number in range(_MAPS)]
    pod["spec"]["containers"][0]["envFrom"] = sources


def _wordy(pod: dict[str, Any]) -> None:
    pods.our_annotations(pod, _MOST_OF_ANNOTATIONS)


def _is_refused(seen: Seen) -> bool:
    condition = seen.condition("InPlaceRestart")  # before the fault it has this reason, too
    return condition.get("reason") == "BadAnnotation" and " not restarted for " in condition["message"]


def _is_not_copied(seen: Seen) -> bool:
    return "ConfigTooLarge" in seen.condition("InPlaceRestart").get("message", "")
