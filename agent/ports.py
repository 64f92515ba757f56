"""Define what the agent needs from the outside as narrow protocols; ``agent.app`` supplies the implementations."""

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Final, Protocol, Self

from kubemend.agent.actuator import context
from kubemend.agent.actuator.cache_cleanup import CacheCleaner
from kubemend.agent.actuator.device_proof import Prover
from kubemend.agent.actuator.device_release import ReleaseGates
from kubemend.agent.actuator.hold import hold_set
from kubemend.agent.actuator.process import ProcessActuator
from kubemend.agent.actuator.rerun import RerunActuator
from kubemend.agent.actuator.reset import ResetActuator
from kubemend.agent.actuator.rules import RulesActuator
from kubemend.agent.actuator.shm_cleanup import ShmCleaner
from kubemend.agent.actuator.swap import SwapActuator
from kubemend.agent.clients.cri.convert import ContainerStatus
from kubemend.agent.clients.cri.events import ContainerEvent
from kubemend.agent.model.announcements import EventMessage
from kubemend.agent.model.conditions import Condition
from kubemend.agent.model.devices import GpuUuid, Inventory
from kubemend.agent.model.workloads import (
    Allocations,
    ContainerId,
    ContainerRef,
    ContainerSummary,
    PodRef,
    PodUid,
    PodView,
    SandboxId,
    SandboxView,
)
from kubemend.agent.restart import admission
from kubemend.agent.sources.processes import ProcFs
from kubemend.common.coordination import FaultAnswer, FaultKind
from kubemend.common.pb.runtime.v1 import api_pb2


class Runtime(context.Runtime, Protocol):
    """Access the container runtime (``agent.clients.cri.client.CriClient``). Every call raises CriError."""

    async def list_sandboxes(self, *, pod_uid: PodUid | None = None) -> tuple[SandboxView, ...]: ...
    async def info_of(self, view: ContainerSummary) -> ContainerStatus:
        """Return the full status of a container that has just been listed."""

    async def resources(self, info: ContainerStatus) -> api_pb2.LinuxContainerResources | None:
        """Return a container's current resources; None if the runtime does not report them."""

    async def sandbox_config(self, sandbox_id: SandboxId) -> Mapping[str, Any] | None: ...


class Events(Protocol):
    """Observe the container events of one pod, or of all pods (``agent.sources.containers.ContainerWatch``)."""

    def subscribe(
        self, pod_uid: PodUid | None = None
    ) -> AbstractAsyncContextManager["asyncio.Queue[ContainerEvent]"]: ...
    async def until_listed(self) -> None: ...
    def containers(self) -> tuple[ContainerSummary, ...]:
        """Return the known containers. Before the first listing the result is empty, although containers may run."""
        ...


class Pods(Protocol):
    """Read the node's pods as the API server reports them (``agent.sources.pods.PodWatch``).

    ``synced`` is True after the first listing; before it, a missing pod means nothing.
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
        """Get a pod from the API server itself; return None if the request fails or the pod no longer exists."""
        ...


class Devices(Protocol):
    """Query the GPU driver (``agent.sources.nvml``)."""

    @property
    def inventory(self) -> Inventory: ...
    async def answering(self, uuids: Iterable[GpuUuid], *, timeout: float) -> frozenset[GpuUuid] | None:
        """Return the devices that answer now; None if the driver could not be queried within the timeout."""

    async def recovery_action(self, uuid: GpuUuid, *, timeout: float) -> int | None:
        """Return the recovery action that the driver recommends (NVML field 230); None if it reports none."""


class Holders(Protocol):
    """List which containers hold which devices (``agent.clients.podresources``)."""

    async def current(self, *, max_age: float) -> Allocations: ...


class Owners(Protocol):
    """Find out how pods' owners react to restarts (``agent.sources.owners``)."""

    async def facts(self, pod: PodView, *, at_once: bool = False) -> admission.OwnerFacts | None:
        """Return the facts about the pod's owner; None if they are unknown.

        ``at_once``: do not wait; return None also if the facts are not known yet.
        """


class Conditions(Protocol):
    """Write conditions to the API server, with retries (``agent.reporters.pod_conditions``)."""

    def set(self, pod: PodRef, condition: Condition) -> None: ...


@dataclass(frozen=True, slots=True)
class Actuators:
    """Hold one actuator per strategy, the device release gates that all share, and the cleanups before a start."""

    process: ProcessActuator
    swap: SwapActuator
    rerun: RerunActuator
    reset: ResetActuator
    rules: RulesActuator
    gates: ReleaseGates
    broom: ShmCleaner
    caches: CacheCleaner

    @classmethod
    def of(cls, using: context.ActuatorContext, *, pods: Pods) -> Self:
        """Create all actuators."""
        return cls(
            process=ProcessActuator(using),
            swap=SwapActuator(using),
            rerun=RerunActuator(using, pods=pods),
            reset=ResetActuator(using, pods=pods),
            rules=RulesActuator(using),
            gates=using.gates,
            broom=using.broom,
            caches=using.caches,
        )


class Announcements(Protocol):
    """Record Kubernetes Events (``agent.reporters.events``)."""

    def record(self, announcement: EventMessage) -> None: ...


class Freezer(hold_set.Freezer, Protocol):
    """Resume freezes of an agent that died (``agent.actuator.hold.freezer``)."""

    async def take_over(self, *, keep: Mapping[str, float]) -> Mapping[str, Mapping[ContainerId, bool]]:
        """Find the containers that previous agents have frozen, and thaw those whose mark is not in ``keep``.

        Return all that were found, by mark, and whether each must still be held.
        """


class Gangs(Protocol):
    """Ask the component that restarts gangs together (``agent.hub``)."""

    async def take(self, target: ContainerRef, cause: admission.Cause, *, kind: FaultKind) -> FaultAnswer:
        """Report a fault to the hub and return its answer; ALONE if there is none before the timeout."""

    async def device_lost(self, target: ContainerRef, cause: admission.Cause) -> FaultAnswer:
        """Report the permanent loss of a container's device and return the answer, however long it takes.

        Return ALONE at once for a container that is in no gang.
        """


class _NoGangs:
    async def take(
        self,
        target: ContainerRef,  # noqa: ARG002
        cause: admission.Cause,  # noqa: ARG002
        *,
        kind: FaultKind,  # noqa: ARG002
    ) -> FaultAnswer:
        return FaultAnswer.ALONE

    async def device_lost(self, target: ContainerRef, cause: admission.Cause) -> FaultAnswer:  # noqa: ARG002
        return FaultAnswer.ALONE


NO_GANGS: Final[Gangs] = _NoGangs()
"""Restart each container by itself."""


class Heartbeats(Protocol):
    """Watches heartbeat files (``agent.sources.heartbeats.HeartbeatSource``)."""

    def restarted(self, container: ContainerId) -> None:
        """A container's program has been restarted in it: its next heartbeat is its first."""


class _NoHeartbeats:
    def restarted(self, container: ContainerId) -> None: ...


NO_HEARTBEATS: Final[Heartbeats] = _NoHeartbeats()
"""No heartbeat file is watched."""


class _NoRecorder:
    def record(self, announcement: EventMessage) -> None: ...


NO_RECORDER: Final[Announcements] = _NoRecorder()
"""No-op recorder."""


@dataclass(frozen=True, slots=True)
class Dependencies:
    """Hold every external dependency of restarts.

    ``launchers`` None: the agent speaks with none. ``prover`` None: no GPU is proved before a start.
    """

    runtime: Runtime
    events: Events
    pods: Pods
    devices: Devices
    owners: Owners
    reporter: Conditions
    processes: ProcFs
    actuators: Actuators
    announcements: Announcements = NO_RECORDER
    heartbeats: Heartbeats = NO_HEARTBEATS
    launchers: context.Launchers | None = None
    prover: Prover | None = None


class Nics(Protocol):
    """Look up the node's NICs for pods. The names are those of the verdict store."""

    def near(self, devices: Collection[str]) -> frozenset[str]:
        """Return the NICs that are paired with these GPUs."""

    def held_as(self, plugin_id: str) -> str | None:
        """Return the NIC for a device plugin's id; None if the id is not the NIC's PCI address."""


class _NoNics:
    def near(self, devices: Collection[str]) -> frozenset[str]:  # noqa: ARG002
        return frozenset()

    def held_as(self, plugin_id: str) -> str | None:  # noqa: ARG002
        return None


NO_NICS: Final[Nics] = _NoNics()
"""No NICs are observed."""
