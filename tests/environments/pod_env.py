"""Set up a pod of an init container, a sidecar and two mains on a fake runtime, and play its kubelet and process."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import Any

from kubemend.agent.actuator.pod_strategies import PodActuator
from kubemend.agent.clients.cri.events import ContainerEvent, EventKind
from kubemend.agent.model.workloads import (
    ContainerId,
    ContainerRole,
    ContainerSpec,
    ContainerState,
    ContainerSummary,
    PodView,
    RestartPolicy,
)
from kubemend.agent.restart import clone, intents, reservations
from kubemend.agent.restart.intents import Planned, Strategy
from kubemend.agent.restart.successor_spec import SuccessorSpec
from tests.environments.runtime import POD, TARGET, CriEnv
from tests.fakes import outside

ROLES = {
    "prepare": ContainerRole.INIT,
    "shipper": ContainerRole.SIDECAR,
    "trainer": ContainerRole.MAIN,
    "logger": ContainerRole.MAIN,
}
LASTING = ("shipper", "trainer", "logger")


@dataclass
class PodEnv:
    """The pod as kubelet has created it: the init container has ended, the others run."""

    cri_env: CriEnv
    old: dict[str, ContainerId]
    pods: outside.Pods

    def intent(self, **changes: Any) -> intents.PodIntent:
        probes = changes.pop("startup_probes", ())
        defaults: dict[str, Any] = {
            "id": "r1",
            "target": TARGET,
            "sandbox_id": self.cri_env.sandbox_id,
            "strategy": Strategy.RERUN,
            "plan": tuple(
                Planned(name=name, role=role, old=(self.old[name],), old_attempt=0, has_startup_probe=name in probes)
                for name, role in ROLES.items()
            ),
            "reason": "Xid31",
            "created_at": 1000.0,
        }
        return intents.PodIntent(**defaults | changes)

    async def successor_specs(self, intent: intents.PodIntent, **changes: Any) -> dict[str, SuccessorSpec]:
        found = {}
        for planned in intent.plan:
            info = await self.cri_env.cri.container_status(planned.old[-1])
            found[planned.name] = SuccessorSpec(
                successor=clone.successor(
                    info.config, intent=intent.of_container(planned), runtime_env=info.runtime_env
                ),
                sandbox_config=await self.cri_env.cri.sandbox_config(intent.sandbox_id),
                **changes,
            )
        return found

    def actuator(self, *, time_limit: float = 10.0) -> PodActuator:
        return PodActuator(self.cri_env.tools(time_limit=time_limit), pods=self.pods)

    async def containers(self) -> tuple[ContainerSummary, ...]:
        return await self.cri_env.cri.list_containers(pod_uid=POD.uid)

    async def in_sandbox(self) -> tuple[ContainerSummary, ...]:
        """Return all containers, including reservations."""
        return await self.cri_env.cri.list_containers(sandbox_id=self.cri_env.sandbox_id)

    async def reserved(self) -> set[tuple[str, int]]:
        """Return the names and attempts that are reserved."""
        held = (view for view in await self.in_sandbox() if reservations.reserves(view))
        return {(view.ref.name.partition(".")[0], view.attempt) for view in held}

    async def running(self) -> dict[str, list[ContainerId]]:
        found: dict[str, list[ContainerId]] = {}
        for view in await self.containers():
            if view.state is ContainerState.RUNNING:
                found.setdefault(view.ref.name, []).append(view.id)
        return found

    async def kubelet_starts(self, name: str, *, attempt: int, start: bool = True) -> ContainerId:
        return await self.cri_env.kubelet_creates(attempt=attempt, name=name, start=start)

    async def until_started(self, name: str, events: "asyncio.Queue[ContainerEvent]") -> None:
        """Wait for the start of a new container; the stream may lag, and still report the old one's."""
        while True:
            event = await events.get()
            is_new = event.container.ref.name == name and event.container_id != self.old[name]
            if is_new and event.kind is EventKind.STARTED:
                return

    async def kubelet_collects(self) -> None:
        """Remove containers that do not run and belong to unknown pods, as kubelet's garbage collector does."""
        for view in await self.in_sandbox():
            if view.ref.pod.uid != POD.uid:
                await self.cri_env.cri.remove_container(view.id)

    async def kubelet_says_started(self, name: str) -> None:
        """Report in kubelet's status that the startup probe of the running container has succeeded."""
        (container,) = (await self.running())[name]
        await self._kubelet_says(name, started=True, container_id=container)

    async def kubelet_says_running(self, *names: str) -> None:
        """Report the running containers in kubelet's status."""
        running = await self.running()
        for name in names:
            await self._kubelet_says(name, running=True, container_id=running[name][-1])

    async def _kubelet_says(self, name: str, **changes: Any) -> None:
        pod = self.pods.pods()[POD.uid]
        specs = (replace(spec, **changes) if spec.name == name else spec for spec in pod.containers)
        await self.pods.put(replace(pod, containers=tuple(specs)))


@contextlib.asynccontextmanager
async def made(cri_env: CriEnv, *, exit_code: int = 0, may_end: asyncio.Event | None = None) -> AsyncIterator[PodEnv]:
    """Create the pod; init containers started from now on end with ``exit_code`` as soon as they may."""
    old = {TARGET.name: cri_env.old}
    for name in ROLES.keys() - old:
        old[name] = await cri_env.kubelet_creates(attempt=0, name=name)
    cri_env.server.runtime.exit(old["prepare"], exit_code=0)
    specs = tuple(
        ContainerSpec(name=name, role=role, container_id=old[name], running=name in LASTING)
        for name, role in ROLES.items()
    )
    pod = PodView(ref=POD, phase="Running", restart_policy=RestartPolicy.ALWAYS, containers=specs)
    async with cri_env.watch.subscribe(POD.uid) as events:
        ending = asyncio.create_task(
            _end_inits(cri_env, events, before=frozenset(old.values()), exit_code=exit_code, may_end=may_end),
            name="init ends",
        )
        cri_env.server.calls.clear()
        yield PodEnv(cri_env=cri_env, old=old, pods=outside.Pods(pod))
        ending.cancel()
        await asyncio.gather(ending, return_exceptions=True)


async def _end_inits(
    cri_env: CriEnv, events: Any, *, before: frozenset[ContainerId], exit_code: int, may_end: asyncio.Event | None
) -> None:
    while True:
        event = await events.get()
        started = event.container.ref.name == "prepare" and event.kind is EventKind.STARTED
        if started and event.container_id not in before:
            if may_end is not None:
                await may_end.wait()
            if event.container_id in cri_env.server.runtime.containers:
                cri_env.server.runtime.exit(event.container_id, exit_code=exit_code)
