"""Define what the hub client needs of other components as narrow protocols; ``agent.app`` supplies them."""

import asyncio
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from kubemend.agent.clients.cri.convert import ContainerStatus
from kubemend.agent.clients.cri.events import ContainerEvent
from kubemend.agent.model import rounds
from kubemend.agent.model.devices import GpuUuid
from kubemend.agent.model.loads import Load
from kubemend.agent.model.workloads import Allocations, ContainerId, ContainerSummary, PodUid, PodView
from kubemend.agent.sources.pods import PodChange


class Pods(Protocol):
    """Read the node's pods (``agent.sources.pods.PodWatch``)."""

    async def until_synced(self) -> None: ...
    def pods(self) -> Mapping[PodUid, PodView]: ...
    def by_name(self, namespace: str, name: str) -> PodView | None: ...
    def subscribe(self, listener: Callable[[PodChange], None]) -> Callable[[], None]: ...


class Containers(Protocol):
    """Observe the node's containers (``agent.sources.containers.ContainerWatch``)."""

    async def until_listed(self) -> None: ...
    def containers(self) -> tuple[ContainerSummary, ...]: ...
    def subscribe(
        self, pod_uid: PodUid | None = None
    ) -> AbstractAsyncContextManager["asyncio.Queue[ContainerEvent]"]: ...


class Runtime(Protocol):
    """Access the container runtime (``agent.clients.cri.client.CriClient``)."""

    async def container_status(self, container_id: ContainerId) -> ContainerStatus:
        """Return the full status of one container. Raises CriError."""

    def has_ended(self, container_id: ContainerId) -> bool:
        """Return whether this agent has requested the container's end."""


class Rounds(Protocol):
    """Manage the round members on this node (``agent.rounds.participant.RoundParticipant``)."""

    async def carry_out(self, order: rounds.Order, *, told: Callable[[rounds.Standing], None]) -> None: ...
    def release(self, round_id: str, pods: Collection[PodUid], /) -> None: ...
    def abort(self, round_id: str, pods: Collection[PodUid], /, *, reason: str) -> None: ...
    def guarding(self, failed: ContainerSummary, /) -> AbstractAsyncContextManager[asyncio.Event]: ...
    def standings(self) -> tuple[rounds.Standing, ...]: ...
    def tell_taken_up(self, told: Callable[[rounds.Standing], None]) -> None: ...
    def expects_end(self, container: ContainerId) -> bool: ...
    def busy(self, pod: PodUid) -> bool: ...


class HandledExits(Protocol):
    """Persist which containers' exits have been answered (``agent.app.persisted_state.StoredIds``). Never raises."""

    async def load(self) -> frozenset[ContainerId]: ...
    async def save(self, ids: frozenset[ContainerId], /) -> None: ...


class Epochs(Protocol):
    """Persist the highest epoch that this node accepted (``clients.journal.store.Store``). Raises HistoryError."""

    async def obeyed_epoch(self) -> int: ...
    async def obey(self, epoch: int, *, highest: int | None = None) -> None: ...


class Holders(Protocol):
    """List which containers hold which devices (``agent.clients.podresources.client.GpuHolders``)."""

    async def current(self, *, max_age: float) -> Allocations: ...


class Loads(Protocol):
    """Read the GPUs' utilization (``agent.sources.nvml.driver.Driver``)."""

    def loads(self) -> Mapping[GpuUuid, Load]: ...
