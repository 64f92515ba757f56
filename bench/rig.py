"""Provide the product's own parts on a dev node, for the benchmarks."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from hack.devnode import node, patience
from hack.devnode.observer import Observer
from kubemend.agent.actuator.context import ActuatorContext
from kubemend.agent.actuator.hold.exec_hold import ExecHolds
from kubemend.agent.actuator.hold.standby import Standbys
from kubemend.agent.actuator.host_files import HostFiles
from kubemend.agent.actuator.pod_strategies import PodActuator
from kubemend.agent.actuator.swap import SwapActuator
from kubemend.agent.clients.cri import client as cri_client
from kubemend.agent.clients.journal.store import Store
from kubemend.agent.sources.containers import ContainerWatch
from kubemend.agent.sources.pods import PodWatch
from kubemend.common.kube import client as kube

SECONDS = 60.0
"""The timeout of all waits of a benchmark."""

_PROC, _CGROUPS = Path("/proc"), Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class Rig:
    """Hold the parts, on the node's runtime and API."""

    cri: cri_client.CriClient
    swap: SwapActuator
    whole_pods: PodActuator
    events: ContainerWatch
    pods: PodWatch
    store: Store
    observer: Observer

    async def running(self, name: str, *, restart: int, timeout: float = SECONDS) -> None:
        """Wait until kubelet shows the restart: the next one must not meet a pod in the middle of the last."""
        await self.observer.until(
            name,
            lambda s: (
                s.restart_counts.get("trainer", -1) >= restart
                and s.running.get("trainer") == (s.container_ids["trainer"],)
            ),
            timeout=timeout,
            what=f"restart {restart} of {name} in kubelet's status",
        )


async def _standbys(cri: cri_client.CriClient) -> Standbys:
    """Return the hold mechanism for successors, as the agent has it. Raises HoldError where this machine cannot."""
    holds = ExecHolds(socket_path=cri.endpoint, proc=_PROC, roots=cri)
    made = Standbys(holds=holds, proc=_PROC, cgroup_root=_CGROUPS)
    await made.check()
    return made


@contextlib.asynccontextmanager
async def on(dev: node.DevNode) -> AsyncIterator[Rig]:
    """Connect the parts to a node."""
    where = dev.layout
    store = await Store.open(Path(where.agent_state) / "bench.db")
    async with (
        cri_client.CriClient(str(where.containerd_socket), deadlines=patience.RUNTIME) as cri,
        kube.connect(kubeconfig=where.kubeconfig, deadlines=patience.API) as api,
        Observer.of(where) as observer,
    ):
        events = ContainerWatch(cri, report=lambda _: None)
        pods = PodWatch(api=api, node_name=dev.name, report=lambda _: None)
        files = HostFiles(symlink_dir=where.container_log_links)
        tools = ActuatorContext(runtime=cri, events=events, files=files, standbys=await _standbys(cri))
        tasks = [asyncio.create_task(events.run(), name="events"), asyncio.create_task(pods.run(), name="pods")]
        try:
            yield Rig(
                cri=cri,
                swap=SwapActuator(tools),
                whole_pods=PodActuator(tools, pods=pods),
                events=events,
                pods=pods,
                store=store,
                observer=observer,
            )
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await store.close()
