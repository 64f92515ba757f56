"""Keep kubelet from creating a container of its own while a successor waits in CREATED.

A container that has ended by itself wakes kubelet. If kubelet's relist (once a second) finds the end and the successor
in CREATED at the same time, kubelet takes the successor for one that it must start itself, and creates another one
(``startContainer`` in pkg/kubelet/kuberuntime/kuberuntime_container.go, 1.36). That one's attempt is the successor's
plus one, and the runtime gives a name to one container only: so that name is reserved (``agent.restart.reservations``)
until kubelet has shown the successor running, or the restart is over.

Nothing depends on a reservation: without it, kubelet's container is resolved as usual. Kubelet's garbage collector
removes within a minute what a dead agent leaves.
"""

import asyncio

import structlog

from kubemend.agent import ports
from kubemend.agent.clients.cri.errors import CriError
from kubemend.agent.model.workloads import ContainerId, SandboxId
from kubemend.agent.restart import intents, reservations
from kubemend.common.pb.runtime.v1 import api_pb2

log = structlog.get_logger(__name__)


class NextNames:
    """The reservations of swaps in progress, one for each intent."""

    def __init__(self, runtime: ports.RestartCalls) -> None:
        self._runtime = runtime
        self._reserved: dict[str, ContainerId] = {}

    async def reserve(
        self, intent: intents.Intent, config: api_pb2.ContainerConfig, *, sandbox_config: api_pb2.PodSandboxConfig
    ) -> None:
        """Reserve the name that follows a successor's; ``config`` is the successor's. Never fails.

        The successor may be created only afterwards. With both calls at once kubelet was seen to create the next name.
        """
        if intent.id in self._reserved:
            return
        attempt = config.metadata.attempt + 1
        try:
            self._reserved[intent.id] = await self._runtime.create_container(
                sandbox_id=intent.sandbox_id,
                config=reservations.config(config, attempt=attempt),
                sandbox_config=sandbox_config,
            )
        except CriError as error:
            log.info("restart.not_reserved", restart=intent.id, attempt=attempt, error=str(error))

    async def give_back(self, intent: intents.Intent) -> None:
        """Release the name that is reserved for an intent, if any. May be called again, and never fails."""
        container_id = self._reserved.pop(intent.id, None)
        if container_id is None:
            return
        try:
            await self._runtime.remove_container(container_id)
        except CriError as error:
            log.warning("restart.not_given_back", restart=intent.id, container=container_id, error=str(error))

    async def clear(self, sandbox_id: SandboxId, *, name: str, attempt: int) -> None:
        """Remove the reservation of this name that another restart has left. Raises CriError."""
        views = await self._runtime.list_containers(sandbox_id=sandbox_id)
        left = [view.id for view in views if reservations.holds(view, name=name, attempt=attempt)]
        await asyncio.gather(*(self._runtime.remove_container(container_id) for container_id in left))
