"""Restarts of one pod on the fake runtime: the scheduler with all that it needs, and a kubelet."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from kubemend.agent import ports
from kubemend.agent.actuator.context import ActuatorContext
from kubemend.agent.clients.cri.errors import NameReserved
from kubemend.agent.clients.journal.store import Store
from kubemend.agent.model import conditions
from kubemend.agent.model.conditions import Condition
from kubemend.agent.model.devices import DeviceId
from kubemend.agent.model.workloads import ContainerSpec, ContainerState, ContainerSummary
from kubemend.agent.restart import admission
from kubemend.agent.restarts.dependencies import Actuators, Dependencies
from kubemend.agent.restarts.requests import Request
from kubemend.agent.restarts.scheduler import RestartScheduler
from tests.environments import node, pod_env
from tests.environments.pod_env import PodEnv
from tests.environments.runtime import POD, TARGET, CriEnv
from tests.fakes import outside
from tests.fakes.launchers import Launchers
from tests.fakes.outside import Heartbeats

NOW = 10_000_000_000.0
"""After the start of every container of the fake runtime."""


def dependencies(
    tools: ActuatorContext, *, runtime: ports.Runtime, events: ports.Events, pods: ports.Pods, **others: Any
) -> Dependencies:
    """Return what restarts need on this runtime; ``others`` replace fakes."""
    fakes: dict[str, Any] = {
        "devices": outside.Devices(),
        "owners": outside.Owners(),
        "reporter": outside.Conditions(),
        "processes": outside.Processes(),
    }
    return Dependencies(
        runtime=runtime, events=events, pods=pods, actuators=Actuators.of(tools, pods=pods), **fakes | others
    )


@dataclass
class RestartEnv:
    """One pod on the runtime, and a scheduler."""

    pod: PodEnv
    said: outside.Conditions
    store: Store
    dependencies: Dependencies
    restarts: RestartScheduler
    launchers: Launchers = field(default_factory=Launchers)
    heartbeats: Heartbeats = field(default_factory=Heartbeats)

    async def ask(self, **annotations: str) -> Condition:
        """Opt in so, request a restart, let kubelet agree with any outcome, and return the last condition."""
        return await self.ask_on(None, **annotations)

    async def ask_on(self, device: DeviceId | None, /, **annotations: str) -> Condition:
        """As ``ask``; the fault was on this device, which the container holds."""
        view = self.pod.pods.pods()[POD.uid]
        wishes = {"kubemend.io/restart": "InPlace"} | {f"kubemend.io/{key}": text for key, text in annotations.items()}
        await self.pod.pods.put(replace(view, annotations=wishes))
        cause = admission.Cause(code="Xid31", message="Xid 31", happened_at=NOW, device=device)
        held = frozenset({device} if device is not None else ())
        async with self.kubelet():
            await self.restarts.submit(Request(target=TARGET, cause=lambda: cause, devices=held))
        return self.said.said[POD, conditions.IN_PLACE_RESTART]

    @contextlib.asynccontextmanager
    async def kubelet(self) -> AsyncIterator[None]:
        """Start missing containers in order, and report the running ones to the API server."""
        async with self.pod.cri_env.watch.subscribe(POD.uid) as events:
            work = asyncio.create_task(self._kubelet(events), name="kubelet")
            try:
                yield
            finally:
                work.cancel()
                await asyncio.gather(work, return_exceptions=True)

    async def _kubelet(self, events: "asyncio.Queue[Any]") -> None:
        while True:
            await events.get()
            if not await self.pod.containers():
                with contextlib.suppress(NameReserved):  # the agent was faster
                    await self._rerun()
            newest = {view.ref.name: view for view in await self.pod.containers()}
            view = self.pod.pods.pods()[POD.uid]
            specs = (_shown(spec, newest.get(spec.name)) for spec in view.containers)
            await self.pod.pods.put(replace(view, containers=tuple(specs)))

    async def _rerun(self) -> None:
        for name in pod_env.ROLES:
            made = await self.pod.kubelet_starts(name, attempt=1)
            if name == "prepare":
                self.pod.cri_env.server.runtime.exit(made, exit_code=0)


def _shown(spec: ContainerSpec, view: ContainerSummary | None) -> ContainerSpec:
    """Return kubelet's status of a container: the id even of one in CREATED."""
    running = view is not None and view.state is ContainerState.RUNNING
    return replace(spec, container_id=view.id if view is not None else None, running=running)


@contextlib.asynccontextmanager
async def restarts_on(
    cri_env: CriEnv, directory: Path, *, tools: dict[str, Any] | None = None, **options: Any
) -> AsyncIterator[RestartEnv]:
    """Run a pod on the runtime, with a state file in that directory.

    ``tools`` replace services of the actuators, ``options`` are the scheduler's.
    """
    said, launchers, heartbeats = outside.Conditions(), Launchers(), Heartbeats()
    store = await Store.open(directory / "state.db")
    try:
        async with pod_env.made(cri_env) as pod:
            everything = dependencies(
                replace(cri_env.tools(), launchers=launchers, **tools or {}),
                runtime=cri_env.cri,
                events=cri_env.watch,
                pods=pod.pods,
                reporter=said,
                launchers=launchers,
                heartbeats=heartbeats,
            )
            scheduler: dict[str, Any] = {"metrics": node.metrics(), "now": lambda: NOW}
            yield RestartEnv(
                pod=pod,
                said=said,
                store=store,
                dependencies=everything,
                restarts=RestartScheduler(dependencies=everything, store=store, **scheduler | options),
                launchers=launchers,
                heartbeats=heartbeats,
            )
    finally:
        await store.close()
