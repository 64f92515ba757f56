"""Keep kubelet from creating a container of its own while a successor waits in CREATED.

A container that has ended by itself wakes kubelet. If kubelet's relist (once a second) finds the end and the successor
in CREATED at the same time, kubelet takes the successor for one that it must start itself, and creates another one
(``startContainer`` in pkg/kubelet/kuberuntime/kuberuntime_container.go, 1.36). That one's attempt is the successor's
plus one, and the runtime gives a name to one container only: so that name is reserved (``agent.restart.reservations``)
until kubelet has shown the successor running, or the restart is over.

Nothing depends on a reservation: without it, kubelet's container is resolved as usual. Kubelet's garbage collector
removes it within a minute, also one whose successor waits for its devices. Those of a dead agent are adopted or
released by the next one.
"""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Final

import structlog

from kubemend.agent import ports
from kubemend.agent.clients.cri.errors import CriError
from kubemend.agent.model.workloads import ContainerId, ContainerSummary, SandboxId
from kubemend.agent.restart import clone, intents, reservations
from kubemend.common.pb.runtime.v1 import api_pb2

log = structlog.get_logger(__name__)

_CHECK_SECONDS: Final = 1.0
"""Seconds after which a reservation may have been removed, and is looked for."""


@dataclass(frozen=True, slots=True)
class NameAhead:
    """The name after that of the successor of ``old``, which has ended and may not be restarted at all.

    ``config`` need only identify the container's pod (``clone.identity``).
    """

    old: ContainerSummary
    config: api_pb2.ContainerConfig
    attempt: int
    sandbox_config: api_pb2.PodSandboxConfig

    @property
    def restart_id(self) -> str:
        """Return the id under which it is reserved."""
        return self.config.annotations[clone.RESTART_ID_ANNOTATION]


@dataclass(frozen=True, slots=True)
class _Reservation:
    """The reservation of a name, for a restart; ``container`` is None if its creation has failed: then it may exist.

    Only the answer may be lost, or another restart may have left one of this name.

    ``seen_at`` is when it was last known to exist, by the loop's clock.
    """

    restart_id: str
    sandbox_id: SandboxId
    name: str
    attempt: int
    container: ContainerId | None
    seen_at: float = field(default_factory=lambda: asyncio.get_running_loop().time())


class NextNames:
    """The reservations of swaps in progress, one for each intent, and those made ahead, one for each old container."""

    def __init__(self, runtime: ports.RestartCalls) -> None:
        self._runtime = runtime
        self._reserved: dict[str, _Reservation] = {}
        self._ahead: dict[ContainerId, tuple[NameAhead, asyncio.Task[_Reservation]]] = {}

    def adopt(self, seen: Iterable[ContainerSummary]) -> None:
        """Take over reservations that a dead agent has made for swaps that are still open."""
        for view in seen:
            reserved = _found(view)
            self._reserved.setdefault(reserved.restart_id, reserved)

    async def release(self, seen: Iterable[ContainerSummary]) -> None:
        """Release reservations that a dead agent has left for no open swap. Never fails."""
        for view in seen:
            await self._release(_found(view))

    def reserve_ahead(self, name: NameAhead) -> None:
        """Begin to reserve a name before it is decided whether the container is restarted.

        ``reserve`` takes it over; what no restart has taken over is released by ``give_back_ahead``.
        """
        work = self._create(name.old.sandbox_id, name.config, attempt=name.attempt, sandbox_config=name.sandbox_config)
        self._ahead[name.old.id] = name, asyncio.create_task(work, name=f"reservation for {name.old.ref}")

    async def give_back_ahead(self, old: ContainerId) -> None:
        """Release the name that was reserved ahead for a container, unless a restart uses it. Never fails."""
        if old in self._ahead:
            _, creating = self._ahead.pop(old)
            await self._release(await creating)

    async def reserve(
        self, intent: intents.Intent, config: api_pb2.ContainerConfig, *, sandbox_config: api_pb2.PodSandboxConfig
    ) -> None:
        """Reserve the name that follows a successor's; ``config`` is the successor's. Never fails.

        The successor may be created only afterwards. With both calls at once kubelet was seen to create the next name.
        """
        held = self._reserved.get(intent.id)
        if held is not None and held.container is not None:
            return
        attempt = config.metadata.attempt + 1
        ahead = self._ahead.get(intent.old)
        if ahead is not None and ahead[0].attempt == attempt:
            self._reserved[intent.id] = await asyncio.shield(ahead[1])
            self._ahead.pop(intent.old, None)
        else:
            # A call that is cut off, because the time is up, may still take effect.
            self._reserved[intent.id] = _Reservation(
                intent.id, intent.sandbox_id, config.metadata.name, attempt, container=None
            )
            self._reserved[intent.id] = await self._create(
                intent.sandbox_id, config, attempt=attempt, sandbox_config=sandbox_config
            )

    async def renew(
        self, intent: intents.Intent, config: api_pb2.ContainerConfig, *, sandbox_config: api_pb2.PodSandboxConfig
    ) -> None:
        """Reserve a name once more if its reservation has been removed. Never fails."""
        held, now = self._reserved.get(intent.id), asyncio.get_running_loop().time()
        if held is None or held.container is None or now - held.seen_at < _CHECK_SECONDS:
            return
        try:
            views = await self._runtime.list_containers(sandbox_id=held.sandbox_id)
        except CriError as error:
            log.info("restart.reservation_not_checked", restart=intent.id, error=str(error))
            return
        if any(view.id == held.container for view in views):
            self._reserved[intent.id] = replace(held, seen_at=now)
        else:
            del self._reserved[intent.id]
            await self.reserve(intent, config, sandbox_config=sandbox_config)

    async def give_back(self, intent: intents.Intent) -> None:
        """Release the name that is reserved for an intent, if any. May be called again, and never fails."""
        await self._release(self._reserved.pop(intent.id, None))

    async def _create(
        self,
        sandbox_id: SandboxId,
        config: api_pb2.ContainerConfig,
        *,
        attempt: int,
        sandbox_config: api_pb2.PodSandboxConfig,
    ) -> _Reservation:
        """Create the reservation of this attempt."""
        made = reservations.config(config, attempt=attempt)
        restart_id = config.annotations.get(clone.RESTART_ID_ANNOTATION, "")
        container = None
        try:
            container = await self._runtime.create_container(
                sandbox_id=sandbox_id, config=made, sandbox_config=sandbox_config
            )
        except CriError as error:
            log.info("restart.not_reserved", restart=restart_id, attempt=attempt, error=str(error))
        return _Reservation(restart_id, sandbox_id, config.metadata.name, attempt, container)

    async def _release(self, reserved: _Reservation | None) -> None:
        if reserved is None:
            return
        try:
            if reserved.container is None:
                await self.clear(reserved.sandbox_id, name=reserved.name, attempt=reserved.attempt)
            else:
                await self._runtime.remove_container(reserved.container)
        except CriError as error:
            log.warning(
                "restart.name_not_released", restart=reserved.restart_id, attempt=reserved.attempt, error=str(error)
            )

    async def clear(self, sandbox_id: SandboxId, *, name: str, attempt: int) -> None:
        """Remove the reservation of this name that another restart has left. Raises CriError."""
        views = await self._runtime.list_containers(sandbox_id=sandbox_id)
        left = [view.id for view in views if reservations.holds(view, name=name, attempt=attempt)]
        await asyncio.gather(*(self._runtime.remove_container(container_id) for container_id in left))


def _found(view: ContainerSummary) -> _Reservation:
    name, attempt = reservations.name_of(view)
    return _Reservation(str(view.restart_id), view.sandbox_id, name, attempt, view.id)
