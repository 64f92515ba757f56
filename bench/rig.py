"""The product's own parts on a dev node, as the benchmarks use them."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from agent.actuator.host_files import HostFiles
from agent.actuator.rerun import RerunActuator
from agent.actuator.reset import ResetActuator
from agent.actuator.rules import RulesActuator
from agent.actuator.swap import SwapActuator
from agent.actuator.tools import Tools
from agent.cri import client as cri_client
from agent.history.store import Store
from agent.sources.containers import ContainerWatch
from agent.sources.pods import PodWatch
from common.kube import client as kube
from hack.devnode import node
from hack.devnode.observer import Observer

SECONDS = 60.0
"""The deadline of everything that a benchmark waits for."""

_PROBE = aiohttp.ClientTimeout(total=5.0)


@dataclass(frozen=True, slots=True)
class Rig:
    """The parts, on the node's runtime and API."""

    cri: cri_client.CriClient
    swap: SwapActuator
    rerun: RerunActuator
    reset: ResetActuator
    rules: RulesActuator
    events: ContainerWatch
    pods: PodWatch
    store: Store
    observer: Observer

    async def running(self, name: str, *, restart: int, timeout: float = SECONDS) -> None:
        """Wait until kubelet shows the restart: the next one must not meet a pod half-way through the last."""
        await self.observer.until(
            name,
            lambda s: (
                s.restart_counts.get("trainer", -1) >= restart
                and s.running.get("trainer") == (s.container_ids["trainer"],)
            ),
            timeout=timeout,
            what=f"restart {restart} of {name} in kubelet's status",
        )


async def is_ready(agent: node.Agent) -> bool:
    """Whether every part of an agent works; one that does not listen (yet) is not ready."""
    url = f"http://{agent.metrics_address}/readyz"
    try:
        async with aiohttp.ClientSession(trust_env=False, timeout=_PROBE) as session, session.get(url) as answer:
            return answer.ok
    except (aiohttp.ClientConnectionError, TimeoutError):
        return False


@contextlib.asynccontextmanager
async def on(dev: node.DevNode) -> AsyncIterator[Rig]:
    """Connect the parts to a node."""
    where = dev.layout
    store = await Store.open(Path(where.agent_state) / "bench.db")
    async with (
        cri_client.CriClient(str(where.containerd_socket)) as cri,
        kube.connect(kubeconfig=where.kubeconfig) as api,
        Observer.of(where) as observer,
    ):
        events = ContainerWatch(cri, report=lambda _: None)
        pods = PodWatch(api=api, node_name=dev.name, report=lambda _: None)
        tools = Tools(runtime=cri, events=events, files=HostFiles(symlink_dir=where.container_log_links))
        tasks = [asyncio.create_task(events.run(), name="events"), asyncio.create_task(pods.run(), name="pods")]
        try:
            yield Rig(
                cri=cri,
                swap=SwapActuator(tools),
                rerun=RerunActuator(tools, pods=pods),
                reset=ResetActuator(tools, pods=pods),
                rules=RulesActuator(tools),
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
