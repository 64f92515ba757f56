"""Make only the calls that any restart of a container needs: the baseline of restart times."""

import asyncio
import contextlib
import time
import uuid
from dataclasses import dataclass

from bench.rig import SECONDS
from hack.devnode import gang_objects
from hack.devnode.gang_objects import CONTAINER
from hack.devnode.gangs import Gang
from kubemend.agent.clients.cri import errors
from kubemend.agent.clients.cri.client import CriClient
from kubemend.agent.model.workloads import ContainerRef, ContainerState, PodRef, PodUid, RestartPolicy
from kubemend.agent.restart import intents
from kubemend.agent.restart.successor_spec import SuccessorSpec
from kubemend.agent.restarts import runtime_state
from kubemend.agent.sources.processes import ProcFs
from kubemend.common.kube import paths

_KUBELETS = (errors.NameReserved, errors.ContainerBusy)
"""Errors of the runtime when kubelet does the same at the same time."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """Hold everything that a restart needs, gathered as the product does."""

    target: runtime_state.RuntimeState
    intent: intents.Intent
    successor_spec: SuccessorSpec


async def prepared(cri: CriClient, ref: ContainerRef, target: runtime_state.RuntimeState) -> Prepared:
    """Prepare the restart of a container. Raises CriError."""
    intent = intents.Intent(
        id=uuid.uuid4().hex[:12],
        target=ref,
        sandbox_id=target.view.sandbox_id,
        old=target.view.id,
        old_attempt=target.view.attempt,
        order=intents.SwapOrder.of(policy=RestartPolicy.ON_FAILURE, grace_seconds=0.0).with_start_first,
        reason="Bench",
        created_at=time.time(),
    )
    successor_spec = await runtime_state.successor_spec(cri, target.info, intent=intent, pod=None, processes=ProcFs())
    return Prepared(target, intent, successor_spec)


async def calls(cri: CriClient, restart: Prepared) -> None:
    """Make the three calls in the product's order, with the config that it would use."""
    successor_spec = restart.successor_spec
    container_id = await cri.create_container(
        sandbox_id=restart.intent.sandbox_id,
        config=successor_spec.successor.config,
        sandbox_config=successor_spec.sandbox_config,
    )
    await cri.start_container(container_id)
    await cri.stop_container(restart.target.view.id, grace=0)


class BareGang(Gang):
    """Run workers that have not opted in, under the same kubelet. Create it with ``BareGang.on``."""

    async def restarted(self, *, at_once: int, timeout: float = SECONDS) -> float:
        """Restart all workers, ``at_once`` at a time; return the seconds from the first call to the last worker's
        start.

        Everything is gathered before the first call. Containers that kubelet creates in the meantime are left to it,
        and one that kubelet started next to the benchmark's is kept. Returns when the API shows the new workers.
        """
        places = asyncio.Semaphore(at_once)
        async with CriClient(str(self.nodes[0].layout.containerd_socket)) as cri:
            restarts = await asyncio.gather(*(self._prepared(cri, pod) for pod in await self.pods()))

            async def one(restart: Prepared) -> None:
                async with places:
                    with contextlib.suppress(*_KUBELETS):
                        await calls(cri, restart)

            began = time.monotonic_ns()
            await asyncio.gather(*(one(each) for each in restarts))
            lives = await self.all_running(since=began, timeout=timeout)
            await asyncio.gather(*(self._end_all_but_newest(cri, index) for index in range(self.size)))
        await self.shown_running(timeout=timeout)
        return (max(life.began for life in lives) - began) / 1e9

    async def _create(self) -> None:
        self.template.lives.mkdir(parents=True)
        for index in range(self.size):
            name = self._names[index] = self.template.member(index)
            pod = self.template.pod(index, name=name, node=self.nodes[index].name, job_uid="")
            pod["metadata"] = {"name": name, "namespace": gang_objects.NAMESPACE}
            await self._api.create(paths.collection("pods", namespace=gang_objects.NAMESPACE), pod)

    async def _end_all_but_newest(self, cri: CriClient, index: int) -> None:
        """End all but the newest container of a name.

        Kubelet considers only the newest one (pkg/kubelet/container/helpers.go) and ignores the others. Raises
        CriError.
        """
        running = [view for view in await self.containers(index) if view.state is ContainerState.RUNNING]
        for view in sorted(running, key=lambda view: view.created_at)[:-1]:
            await cri.stop_container(view.id, grace=0)

    async def _prepared(self, cri: CriClient, pod: gang_objects.Json) -> Prepared:
        metadata = pod["metadata"]
        ref = ContainerRef(PodRef(metadata["namespace"], metadata["name"], PodUid(metadata["uid"])), CONTAINER)
        target = await runtime_state.find(cri, ref)
        assert target is not None
        return await prepared(cri, ref, target)
