"""Run the product's own parts on a dev node in this process, for more restarts in a row than a budget allows."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass

from hack.devnode import node, patience
from kubemend.agent.actuator.context import ActuatorContext
from kubemend.agent.actuator.host_files import HostFiles
from kubemend.agent.clients.cri.client import CriClient
from kubemend.agent.model.outcomes import Outcome
from kubemend.agent.model.workloads import ContainerId, ContainerRef, PodUid
from kubemend.agent.restart import admission, clone, verification
from kubemend.agent.restart.intents import Strategy
from kubemend.agent.restart.reasons import Reason
from kubemend.agent.restarts import planning, runtime_state
from kubemend.agent.restarts.dependencies import Dependencies
from kubemend.agent.restarts.plan_execution import AnyExecution, execution_of
from kubemend.agent.restarts.restart_plan import RestartPlan
from kubemend.agent.restarts.verifier import RestartVerifier
from kubemend.agent.sources.containers import ContainerWatch
from kubemend.agent.sources.pods import PodWatch
from kubemend.agent.sources.processes import ProcFs
from kubemend.common.kube import client as kube
from tests.environments.restarts import dependencies

_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Parts:
    """Restart pods as the agent does, but without admission, budget and journal."""

    dependencies: Dependencies

    async def prepared(self, uid: str, strategy: Strategy) -> AnyExecution:
        """Return a planned restart of the pod's trainer."""
        pod = await self.dependencies.pods.wait_for(PodUid(uid), lambda _: True, timeout=_SECONDS)
        assert pod is not None
        target = await runtime_state.find(self.dependencies.runtime, ContainerRef(pod.ref, "trainer"))
        assert target is not None
        decision = admission.Decision(admission.Verb.ACT, Reason.ADMITTED, strategy=strategy)
        plan = await planning.prepare(
            self.dependencies, decision, target=target, pod=pod, reason="Test", now=time.time()
        )
        return execution_of(self.dependencies, plan)

    async def is_ours(self, container: ContainerId, plan: RestartPlan) -> bool:
        """Return whether kubemend, not kubelet, has created a container in this restart."""
        info = await self.dependencies.runtime.container_status(container)
        return info.annotations.get(clone.RESTART_ID_ANNOTATION) == plan.id

    async def settled(self, restart: AnyExecution, outcome: Outcome) -> tuple[Outcome, tuple[verification.Check, ...]]:
        """Verify it."""
        outcome, checks = await RestartVerifier(dependencies=self.dependencies).wait_for_kubelet(restart, outcome)
        return outcome, tuple(checks)


@contextlib.asynccontextmanager
async def on(dev: node.DevNode) -> AsyncIterator[Parts]:
    """Connect the parts to the node's API and runtime."""
    async with (
        kube.connect(kubeconfig=dev.kubeconfig, deadlines=patience.API) as api,
        CriClient(str(dev.layout.containerd_socket), deadlines=patience.RUNTIME) as cri,
    ):
        events = ContainerWatch(cri, report=lambda _: None)
        pods = PodWatch(api=api, node_name=dev.name, report=lambda _: None)
        files = HostFiles(symlink_dir=dev.layout.container_log_links)
        tasks = [asyncio.create_task(events.run(), name="events"), asyncio.create_task(pods.run(), name="pods")]
        try:
            yield Parts(
                dependencies(
                    ActuatorContext(runtime=cri, events=events, files=files),
                    runtime=cri,
                    events=events,
                    pods=pods,
                    processes=ProcFs(),
                )
            )
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
