"""What the agent's end of the hub needs of other parts, as narrow protocols; ``agent.app`` plugs the real ones in."""

import asyncio
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from agent.cri.answers import ContainerInfo
from agent.cri.events import ContainerEvent
from agent.model import rounds
from agent.model.devices import GpuUuid
from agent.model.loads import Load
from agent.model.workloads import Allocations, ContainerId, ContainerView, PodUid, PodView
from agent.sources.pods import PodChange


class Pods(Protocol):
    """The node's pods (``agent.sources.pods.PodWatch``)."""

    async def until_synced(self) -> None: ...
    def pods(self) -> Mapping[PodUid, PodView]: ...
    def by_name(self, namespace: str, name: str) -> PodView | None: ...
    def subscribe(self, listener: Callable[[PodChange], None]) -> Callable[[], None]: ...


class Containers(Protocol):
    """The node's containers (``agent.sources.containers.ContainerWatch``)."""

    async def until_listed(self) -> None: ...
    def containers(self) -> tuple[ContainerView, ...]: ...
    def subscribe(
        self, pod_uid: PodUid | None = None
    ) -> AbstractAsyncContextManager["asyncio.Queue[ContainerEvent]"]: ...


class Runtime(Protocol):
    """The container runtime (``agent.cri.client.CriClient``)."""

    async def container_info(self, container_id: ContainerId) -> ContainerInfo:
        """Ask everything about one container. Raises CriError."""

    def has_ended(self, container_id: ContainerId) -> bool:
        """Whether this agent has asked for the container's end."""


class Rounds(Protocol):
    """The members of rounds that are on this node (``agent.engine.rounds.Rounds``)."""

    async def carry_out(self, order: rounds.Order, *, told: Callable[[rounds.Standing], None]) -> None: ...
    def release(self, round_id: str, pods: Collection[PodUid], /) -> None: ...
    def abort(self, round_id: str, pods: Collection[PodUid], /, *, reason: str) -> None: ...
    def guarding(self, failed: ContainerView, /) -> AbstractAsyncContextManager[asyncio.Event]: ...
    def standings(self) -> tuple[rounds.Standing, ...]: ...
    def tell_taken_up(self, told: Callable[[rounds.Standing], None]) -> None: ...
    def held(self) -> frozenset[ContainerId]: ...
    def expects_end(self, container: ContainerId) -> bool: ...
    def busy(self, pod: PodUid) -> bool: ...


class Epochs(Protocol):
    """The highest epoch that this node has obeyed, on disk (``agent.history.store.Store``). Raises HistoryError."""

    async def obeyed_epoch(self) -> int: ...
    async def obey(self, epoch: int, *, highest: int | None = None) -> None: ...


class Holders(Protocol):
    """Who holds which device (``agent.app.holders.GpuHolders``)."""

    async def current(self, *, max_age: float) -> Allocations: ...


class Loads(Protocol):
    """How busy the GPUs are (``agent.sources.nvml.driver.Driver``)."""

    def loads(self) -> Mapping[GpuUuid, Load]: ...
