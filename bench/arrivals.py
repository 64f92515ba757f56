"""Measure when the DevicesHealthy condition of a pod that holds a GPU arrives at a watch of the API."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from bench.rig import SECONDS
from hack.devnode import node, trainer
from hack.devnode.observer import Observer
from hack.fakenvml import control as nvml_control
from kubemend.agent.reporters import pod_conditions
from kubemend.agent.reporters.allowances import Allowances
from kubemend.common.kube import client as kube
from kubemend.common.kube import paths

_OTHER_WRITES: Final = 5
"""Writes of the pod's conditions that no toggle causes: its first ones, and Unknown while the driver hangs."""

_POD: Final = "the pod"
_APART: Final = 2 * pod_conditions.SPACING
"""Seconds between a change and the next one: of two that follow at once, the second waits for others."""


def _allowance() -> Allowances:
    return Allowances(burst=pod_conditions.BURST - _OTHER_WRITES, refill=pod_conditions.REFILL)


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Watch one pod's condition: its status, and its arrival time (``time.perf_counter``). The pod holds ``gpu``.

    ``allowance`` is that of the pod's writes.
    """

    gpu: int
    seen: "asyncio.Queue[tuple[str, float]]"
    allowance: Allowances = field(default_factory=_allowance)

    async def until(self, status: str) -> float:
        """Return when the condition changed to that status. Raises TimeoutError."""
        async with asyncio.timeout(SECONDS):
            while True:
                found, at = await self.seen.get()
                if found == status:
                    return at

    async def toggled(self, *, times: int, toggle: Callable[[bool], object], fixed: str = "True") -> list[float]:
        """Break and fix the GPU alternately; return the seconds from each to the condition's arrival.

        Each waits until the agent may write at once: beyond a pod's allowance, or right after its last write, the wait
        for that would be measured. ``fixed`` is the status after a fix. In the end the GPU is fixed: an odd number is
        followed by a fix that is not measured.
        """
        took, now = [], asyncio.get_running_loop().time
        for number in range(times + times % 2):
            broken = number % 2 == 0
            await asyncio.sleep(max(_APART, self.allowance.next_at(_POD) - now()))
            began = time.perf_counter()
            toggle(broken)
            took.append(await self.until("False" if broken else fixed) - began)
            self.allowance.spend(_POD, now=now())
        return took[:times]


@contextlib.asynccontextmanager
async def of_a_pod(dev: node.DevNode) -> AsyncIterator[Arrivals]:
    """Run a pod that holds a GPU, and watch its condition; yields when its devices are healthy."""
    async with Observer.of(dev.layout) as observer, kube.connect(kubeconfig=dev.kubeconfig) as api:
        await observer.create(trainer.manifest("watched", node=dev.name, gpus=1))
        seen = await observer.until(
            "watched",
            lambda s: s.condition("DevicesHealthy").get("status") == "True",
            timeout=SECONDS,
            what="a pod with healthy devices",
        )
        (held,) = await dev.kubelet.devices_of("watched")
        arrivals = Arrivals(dev.gpu_uuids.index(held), asyncio.Queue())
        watching = asyncio.create_task(_watch(api, uid=seen.uid, seen=arrivals.seen), name="condition-watch")
        try:
            await arrivals.until("True")
            yield arrivals
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)


def by_line(dev: node.DevNode, *, gpu: int) -> Callable[[bool], object]:
    """Return a function that breaks and fixes a GPU by the driver's verdict in the kernel log (Xid 154)."""
    pci = nvml_control.kernel_address(gpu)
    return lambda broken: dev.kernel_log.write_recovery_action(int(broken), old=int(not broken), pci=pci)


async def _watch(api: kube.KubeClient, *, uid: str, seen: "asyncio.Queue[tuple[str, float]]") -> None:
    listing = await api.list(paths.PODS)
    for pod in listing.items:
        _arrived(pod, uid=uid, seen=seen)
    async for event in api.watch(paths.PODS, resource_version=listing.resource_version):
        _arrived(event.object, uid=uid, seen=seen)


def _arrived(pod: dict[str, Any], *, uid: str, seen: "asyncio.Queue[tuple[str, float]]") -> None:
    conditions: Sequence[dict[str, str]] = pod.get("status", {}).get("conditions") or ()
    status = next((item["status"] for item in conditions if item["type"] == "kubemend.io/DevicesHealthy"), None)
    if pod["metadata"].get("uid") == uid and status is not None:
        seen.put_nowait((status, time.perf_counter()))
