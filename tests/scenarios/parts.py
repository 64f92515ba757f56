"""The product's own parts on a dev node, in this process: for more restarts in a row than a budget allows."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass

from agent.actuator.host_files import HostFiles
from agent.actuator.outcomes import Outcome
from agent.actuator.tools import Tools
from agent.cri.client import CriClient
from agent.engine import ports, preparing, targets
from agent.engine.acts import Act
from agent.engine.aftermath import Aftermath
from agent.model.workloads import ContainerId, ContainerRef, PodUid
from agent.restart import admission, clone, verification
from agent.restart.intents import Strategy
from agent.sources.containers import ContainerWatch
from agent.sources.pods import PodWatch
from agent.sources.processes import ProcFs
from common.kube import client as kube
from hack.devnode import node
from tests.fakes import outside

_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Parts:
    """Restarts pods as the engine does, but for admission, budget and journal."""

    outside: ports.Outside

    async def prepared(self, uid: str, strategy: Strategy) -> Act:
        """Return a restart of the pod's trainer, ready to be carried out."""
        pod = await self.outside.pods.wait_for(PodUid(uid), lambda _: True, timeout=_SECONDS)
        assert pod is not None
        target = await targets.find(self.outside.runtime, ContainerRef(pod.ref, "trainer"))
        assert target is not None
        decision = admission.Decision(admission.Verb.ACT, admission.Reason.ADMITTED, strategy=strategy)
        return await preparing.prepare(self.outside, decision, target=target, pod=pod, reason="Test", now=time.time())

    async def is_ours(self, container: ContainerId, act: Act) -> bool:
        """Whether we, not kubelet, have made a container in this restart."""
        info = await self.outside.runtime.container_info(container)
        return info.annotations.get(clone.RESTART_ID_ANNOTATION) == act.id

    async def settled(self, act: Act, outcome: Outcome) -> tuple[Outcome, tuple[verification.Check, ...]]:
        """Verify it."""
        outcome, checks = await Aftermath(outside=self.outside).settle(act, outcome)
        return outcome, tuple(checks)


@contextlib.asynccontextmanager
async def on(dev: node.DevNode) -> AsyncIterator[Parts]:
    """Connect the parts to the node's API and runtime."""
    async with kube.connect(kubeconfig=dev.kubeconfig) as api, CriClient(str(dev.layout.containerd_socket)) as cri:
        events = ContainerWatch(cri, report=lambda _: None)
        pods = PodWatch(api=api, node_name=dev.name, report=lambda _: None)
        files = HostFiles(symlink_dir=dev.layout.container_log_links)
        tasks = [asyncio.create_task(events.run(), name="events"), asyncio.create_task(pods.run(), name="pods")]
        try:
            yield Parts(
                ports.Outside(
                    runtime=cri,
                    events=events,
                    pods=pods,
                    devices=outside.Devices(),
                    owners=outside.Owners(),
                    reporter=outside.Conditions(),
                    processes=ProcFs(),
                    actuators=ports.Actuators.of(Tools(runtime=cri, events=events, files=files), pods=pods),
                )
            )
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
