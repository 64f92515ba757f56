"""What the engine needs from the outside, as narrow protocols; ``agent.app`` plugs the real parts in."""

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Final, Protocol, Self

from agent.actuator import holding, tools
from agent.actuator.gates import Gates
from agent.actuator.rerun import RerunActuator
from agent.actuator.reset import ResetActuator
from agent.actuator.rules import RulesActuator
from agent.actuator.swap import SwapActuator
from agent.actuator.sweep import Broom
from agent.cri.answers import ContainerInfo
from agent.cri.events import ContainerEvent
from agent.model import rounds
from agent.model.announcements import Announcement
from agent.model.conditions import Condition
from agent.model.devices import GpuUuid, Inventory
from agent.model.workloads import (
    Allocations,
    ContainerId,
    ContainerRef,
    ContainerView,
    PodRef,
    PodUid,
    PodView,
    SandboxId,
    SandboxView,
)
from agent.restart import admission
from agent.sources.processes import ProcFs
from common.pb.runtime.v1 import api_pb2


class Runtime(tools.Runtime, Protocol):
    """The container runtime (``agent.cri.client.CriClient``). Every call raises CriError."""

    async def list_sandboxes(self, *, pod_uid: PodUid | None = None) -> tuple[SandboxView, ...]: ...
    async def info_of(self, view: ContainerView) -> ContainerInfo:
        """Return everything about a container that has just been listed."""

    async def resources(self, container_id: ContainerId) -> api_pb2.LinuxContainerResources | None:
        """Return what a container has by now; None when the runtime does not tell."""

    async def sandbox_config(self, sandbox_id: SandboxId) -> Mapping[str, Any] | None: ...


class Events(Protocol):
    """Container events of one pod, or of all (``agent.sources.containers.ContainerWatch``)."""

    def subscribe(
        self, pod_uid: PodUid | None = None
    ) -> AbstractAsyncContextManager["asyncio.Queue[ContainerEvent]"]: ...
    async def until_listed(self) -> None: ...
    def containers(self) -> tuple[ContainerView, ...]:
        """Return what is known now; nothing before the first listing, which does not mean that nothing runs."""
        ...


class Pods(Protocol):
    """The node's pods as the API server tells them (``agent.sources.pods.PodWatch``).

    ``synced`` says whether it has told any yet: before, a missing pod means nothing.
    """

    @property
    def synced(self) -> bool: ...
    async def until_synced(self) -> None: ...
    def pods(self) -> Mapping[PodUid, PodView]: ...
    def by_name(self, namespace: str, name: str) -> PodView | None: ...
    async def wait_for(
        self, uid: PodUid, predicate: Callable[[PodView], bool], *, timeout: float
    ) -> PodView | None: ...
    async def ask(self, pod: PodRef, *, timeout: float) -> PodView | None:
        """Ask the API server itself; None when it could not be asked, or has no such pod any more."""
        ...


class Devices(Protocol):
    """The driver (``agent.sources.nvml``)."""

    @property
    def inventory(self) -> Inventory: ...
    async def answering(self, uuids: Iterable[GpuUuid], *, timeout: float) -> frozenset[GpuUuid] | None:
        """Return which of the devices answer now; None when the driver could not be asked in time."""

    async def recovery_action(self, uuid: GpuUuid, *, timeout: float) -> int | None:
        """Return the driver's own verdict (NVML field 230); None when it does not say."""


class Holders(Protocol):
    """Who holds which device (``agent.podresources``)."""

    async def current(self, *, max_age: float) -> Allocations: ...


class Owners(Protocol):
    """What pods' owners make of restarts (``agent.sources.owners``)."""

    async def facts(self, pod: PodView, *, at_once: bool = False) -> admission.OwnerFacts | None:
        """Return it; None when that cannot be told, and ``at_once`` also when it cannot be told now."""


class Conditions(Protocol):
    """Brings conditions to the API server, sooner or later (``agent.reporters.pod_conditions``)."""

    def set(self, pod: PodRef, condition: Condition) -> None: ...


@dataclass(frozen=True, slots=True)
class Actuators:
    """How each strategy is carried out, the gates that they all pass, and what cleans before the start."""

    swap: SwapActuator
    rerun: RerunActuator
    reset: ResetActuator
    rules: RulesActuator
    gates: Gates
    broom: Broom

    @classmethod
    def of(cls, using: tools.Tools, *, pods: Pods) -> Self:
        """Make all of them."""
        return cls(
            swap=SwapActuator(using),
            rerun=RerunActuator(using, pods=pods),
            reset=ResetActuator(using, pods=pods),
            rules=RulesActuator(using),
            gates=using.gates,
            broom=using.broom,
        )


class Announcements(Protocol):
    """Tells people what has happened (``agent.reporters.events``)."""

    def tell(self, announcement: Announcement) -> None: ...


class Freezer(holding.Freezer, Protocol):
    """The freezer, as those see it who come after an agent that died (``agent.actuator.freezer``)."""

    async def take_over(self, *, keep: Collection[str]) -> Mapping[str, Mapping[ContainerId, bool]]:
        """Find what an earlier agent has frozen, and let go what bears no mark of ``keep``.

        Return by mark all that was found, and whether each was still to be held.
        """


class Gangs(Protocol):
    """Whoever restarts gangs together (``agent.coordination``)."""

    async def take(self, target: ContainerRef, cause: admission.Cause, *, kind: rounds.FaultKind) -> rounds.Taken:
        """Tell of a fault that has hit a container; return what becomes of it, ALONE where nobody says so in time."""

    async def device_lost(self, target: ContainerRef, cause: admission.Cause) -> rounds.Taken:
        """Tell that a container's device is lost for good; return what becomes of it, however long that takes.

        ALONE at once for whom no gang has to be asked.
        """


class _NoGangs:
    async def take(
        self,
        target: ContainerRef,  # noqa: ARG002
        cause: admission.Cause,  # noqa: ARG002
        *,
        kind: rounds.FaultKind,  # noqa: ARG002
    ) -> rounds.Taken:
        return rounds.Taken.ALONE

    async def device_lost(self, target: ContainerRef, cause: admission.Cause) -> rounds.Taken:  # noqa: ARG002
        return rounds.Taken.ALONE


NO_GANGS: Final[Gangs] = _NoGangs()
"""Where each container is restarted by itself."""


class _Nobody:
    def tell(self, announcement: Announcement) -> None: ...


NOBODY: Final[Announcements] = _Nobody()
"""Where nobody wants to be told."""


@dataclass(frozen=True, slots=True)
class Outside:
    """Everything outside that restarts need."""

    runtime: Runtime
    events: Events
    pods: Pods
    devices: Devices
    owners: Owners
    reporter: Conditions
    processes: ProcFs
    actuators: Actuators
    announcements: Announcements = NOBODY


class Nics(Protocol):
    """The node's NICs, as far as pods are concerned. Names are those under which their health is kept."""

    def near(self, devices: Collection[str]) -> frozenset[str]:
        """Return the NICs beside these GPUs."""

    def held_as(self, plugin_id: str) -> str | None:
        """Return the NIC that a device plugin gives out by that id, None where that is not its PCI address."""


class _NoNics:
    def near(self, devices: Collection[str]) -> frozenset[str]:  # noqa: ARG002
        return frozenset()

    def held_as(self, plugin_id: str) -> str | None:  # noqa: ARG002
        return None


NO_NICS: Final[Nics] = _NoNics()
"""Where nobody looks at NICs."""
