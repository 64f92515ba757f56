"""Define what the agent's layers need from the outside as protocols; ``agent.app`` supplies the implementations.

Each call is declared once. A protocol with few calls is for a component that needs no more of the same thing.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Final, Protocol

from kubemend.agent.clients.cri.convert import Admit, ContainerStatus, admit_all
from kubemend.agent.clients.cri.events import ContainerEvent
from kubemend.agent.model import rounds
from kubemend.agent.model.conditions import Condition
from kubemend.agent.model.devices import DeviceId, DeviceInventory, Load
from kubemend.agent.model.event_messages import EventMessage
from kubemend.agent.model.hangs import Thread
from kubemend.agent.model.processes import ProcessFacts, ProcessOrigin
from kubemend.agent.model.workloads import (
    Allocations,
    ContainerId,
    ContainerRef,
    ContainerSummary,
    PodChange,
    PodRef,
    PodUid,
    PodView,
    SandboxId,
    SandboxView,
)
from kubemend.agent.restart import admission, intents, process
from kubemend.common.coordination import FaultAnswer, FaultKind
from kubemend.common.pb.runtime.v1 import api_pb2


class ContainerStatuses(Protocol):
    """Read containers' full status."""

    async def container_status(self, container_id: ContainerId) -> ContainerStatus:
        """Return the full status of one container. Raises CriError."""


class RequestedEnds(Protocol):
    """Return which containers' end this agent has requested."""

    def has_ended(self, container_id: ContainerId) -> bool:
        """Return whether this agent has requested the container's end."""


class ContainerEnds(ContainerStatuses, RequestedEnds, Protocol):
    """Read how containers have ended."""


class Sandboxes(Protocol):
    """Read pod sandboxes. Every call raises CriError."""

    async def list_sandboxes(self, *, pod_uid: PodUid | None = None) -> tuple[SandboxView, ...]: ...


class SandboxEnds(Sandboxes, RequestedEnds, Protocol):
    """Read how pod sandboxes have ended."""


class CachedStatuses(Protocol):
    """Read what does not change while a container runs: the answers are cached. Every call raises CriError."""

    async def cached_status(self, view: ContainerSummary, *, admit: Admit = admit_all) -> ContainerStatus:
        """Return the full status of a container that has just been listed. Raises also what ``admit`` raises."""

    async def sandbox_config(self, sandbox_id: SandboxId) -> api_pb2.PodSandboxConfig: ...
    def remembered(self, container_id: ContainerId) -> ContainerStatus | None:
        """Return the cached status of a container, also after its end; None if it is not cached."""

    def remembered_sandbox(self, sandbox_id: SandboxId) -> api_pb2.PodSandboxConfig | None:
        """Return the cached config of a sandbox; None if it is not cached."""


class StatusCache(CachedStatuses, Protocol):
    """A cache of statuses that follows the ends of containers."""

    def stopped(self, container_id: ContainerId) -> None: ...
    def forget(self, container_id: ContainerId) -> None: ...


class ExecResult(Protocol):
    """The result of CRI's ExecSync."""

    @property
    def exit_code(self) -> int: ...
    @property
    def stderr(self) -> bytes: ...


class Execs(Protocol):
    """Run commands in containers."""

    async def exec_sync(self, container_id: ContainerId, command: tuple[str, ...], *, timeout: float) -> ExecResult:
        """Run a command in the container."""


class RestartCalls(ContainerEnds, Execs, Protocol):
    """The calls that a restart makes. Each has a deadline and raises CriError."""

    async def list_containers(
        self, *, pod_uid: PodUid | None = None, sandbox_id: SandboxId | None = None, name: str | None = None
    ) -> tuple[ContainerSummary, ...]: ...

    async def create_container(
        self,
        *,
        sandbox_id: SandboxId,
        config: api_pb2.ContainerConfig,
        sandbox_config: api_pb2.PodSandboxConfig,
    ) -> ContainerId: ...

    async def start_container(self, container_id: ContainerId) -> None: ...

    async def stop_container(self, container_id: ContainerId, *, grace: float) -> None: ...

    async def remove_container(self, container_id: ContainerId) -> None: ...

    def forget_end(self, container_id: ContainerId) -> None:
        """Note that a container runs on although its end was requested. It ends by itself later. Never fails."""


class Runtime(RestartCalls, Sandboxes, CachedStatuses, Protocol):
    """Access the container runtime (``agent.clients.cri.client.CriClient``). Every call raises CriError."""

    async def container_status(self, container_id: ContainerId, *, admit: Admit = admit_all) -> ContainerStatus:
        """Return the full status of one container. Raises also what ``admit`` raises."""

    async def resources(self, info: ContainerStatus) -> api_pb2.LinuxContainerResources | None:
        """Return a container's current resources; None if the runtime does not report them."""


class PodEvents(Protocol):
    """Observe the container events of one pod."""

    def subscribe(self, pod_uid: PodUid) -> AbstractAsyncContextManager["asyncio.Queue[ContainerEvent]"]:
        """Yield a queue that receives an item at every change of the pod's containers."""


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

    ``synced`` is True after the first listing; before it, a missing pod means nothing. They contain kubelet's status of
    their containers.
    """

    @property
    def synced(self) -> bool: ...
    async def until_synced(self) -> None: ...
    def pods(self) -> Mapping[PodUid, PodView]: ...
    def by_name(self, namespace: str, name: str) -> PodView | None: ...
    def subscribe(self, listener: Callable[[PodChange], None]) -> Callable[[], None]:
        """Call ``listener`` with each change from now on; return a function that ends this."""
        ...

    async def wait_for(
        self, uid: PodUid, predicate: Callable[[PodView], bool], *, timeout: float
    ) -> PodView | None: ...
    async def ask(self, pod: PodRef, *, timeout: float) -> PodView | None:
        """Get a pod from the API server itself; return None if the request fails or the pod no longer exists."""
        ...


class LauncherStates(Protocol):
    """Follow launchers in containers (``agent.clients.launcher.client.LauncherClient``). No call fails."""

    async def follow(
        self, container: ContainerStatus, *, known: process.Launcher | None, hold: float
    ) -> process.Launcher | process.LauncherUnavailable: ...


class LauncherDecisions(Protocol):
    """Answer launchers whose program has failed (``agent.clients.launcher.client.LauncherClient``). No call fails."""

    async def decide(
        self, container: ContainerStatus, program: int, *, ends: bool
    ) -> process.Launcher | process.LauncherUnavailable: ...


class Launchers(Protocol):
    """Restart programs by launchers (``agent.clients.launcher.client.LauncherClient``). No call fails."""

    async def status(self, container: ContainerStatus) -> process.Launcher | process.LauncherUnavailable: ...
    async def stop(
        self, container: ContainerStatus, intent: intents.ProcessIntent
    ) -> process.Launcher | process.LauncherUnavailable: ...
    async def release(
        self, container: ContainerStatus, intent: intents.ProcessIntent
    ) -> process.Launcher | process.LauncherUnavailable: ...
    async def discard(
        self, container: ContainerStatus, intent: intents.ProcessIntent
    ) -> process.Launcher | process.LauncherUnavailable: ...
    async def remains(
        self, container: ContainerStatus, launcher: process.Launcher
    ) -> tuple[int, ...] | process.LauncherUnavailable: ...


class ProcessThreads(Protocol):
    """Read the threads of the host's processes."""

    def threads(self, pids: Iterable[int]) -> tuple[Thread, ...]:
        """Return the state of the threads of these processes, except ended ones. Raises OSError."""


class ContainerProcesses(ProcessThreads, Protocol):
    """Read the processes of containers (``agent.sources.processes.ProcFs``)."""

    def container_pids(self, pid: int, *, of: ContainerId) -> frozenset[int]:
        """Return the processes of a container that a process belongs to; none if it is in another. Raises OSError."""


class ProcessEnds(Protocol):
    """Read processes' facts, and wait for their end."""

    def facts(self, pid: int) -> ProcessFacts | None:
        """Return the facts about a process; None if it does not exist. Raises OSError if /proc is unreadable."""

    async def ended(self, pid: int, *, started: float = 0.0) -> None: ...


class DeviceProcesses(ProcessEnds, ProcessThreads, Protocol):
    """Read the processes on devices (``agent.sources.processes.ProcFs``)."""

    def is_stuck(self, pid: int) -> bool: ...


class Processes(ProcessEnds, Protocol):
    """Read the host's processes (``agent.sources.processes.ProcFs``)."""

    def is_alive(self, process: ProcessFacts) -> bool: ...
    def origin(self, pid: int) -> ProcessOrigin | None: ...
    def cpuset(self, pid: int) -> str | None: ...
    def root_kind(self, pid: int) -> str | None: ...


class Devices(Protocol):
    """Query the GPU driver (``agent.sources.nvml``)."""

    @property
    def inventory(self) -> DeviceInventory: ...
    async def answering(self, uuids: Iterable[DeviceId], *, timeout: float) -> frozenset[DeviceId] | None:
        """Return the devices that answer now; None if the driver could not be queried within the timeout."""

    async def recovery_action(self, uuid: DeviceId, *, timeout: float) -> int | None:
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


class EventRecorder(Protocol):
    """Record Kubernetes Events (``agent.reporters.events``)."""

    def record(self, event_message: EventMessage) -> None: ...


class Gangs(Protocol):
    """Ask the component that restarts gangs together (``agent.hub``)."""

    async def report_fault(self, target: ContainerRef, cause: admission.Cause, *, kind: FaultKind) -> FaultAnswer:
        """Report a fault to the hub and return its answer; ALONE if there is none before the timeout."""

    async def device_lost(self, target: ContainerRef, cause: admission.Cause) -> FaultAnswer:
        """Report the permanent loss of a container's device and return the answer, however long it takes.

        Return ALONE at once for a container that is in no gang.
        """


class _NoGangs:
    async def report_fault(
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


class RoundMembers(Protocol):
    """Query gang rounds on this node (``agent.rounds.participant.RoundParticipant``)."""

    def expects_end(self, container: ContainerId) -> bool: ...
    def busy(self, pod: PodUid) -> bool: ...


class Rounds(RoundMembers, Protocol):
    """Manage the round members on this node (``agent.rounds.participant.RoundParticipant``)."""

    async def handle_order(self, order: rounds.Order, *, pod: PodRef) -> None: ...
    def release(self, round_id: str, pods: Collection[PodUid], /) -> None: ...
    def abort(self, round_id: str, pods: Collection[PodUid], /, *, reason: str) -> None: ...
    def guarding(self, failed: ContainerSummary, /) -> AbstractAsyncContextManager[asyncio.Event]: ...
    def step_results(self) -> tuple[rounds.StepResult, ...]: ...


class StoredIds(Protocol):
    """Persist a set of containers (``agent.app.persisted_state.StoredIds``). Never raises."""

    async def load(self) -> frozenset[ContainerId]: ...
    async def save(self, ids: frozenset[ContainerId], /) -> None: ...


class Epochs(Protocol):
    """Persist the highest epoch that this node accepted (``clients.journal.store.Store``). Raises JournalError."""

    async def obeyed_epoch(self) -> int: ...
    async def obey(self, epoch: int, *, highest: int | None = None) -> None: ...


class Loads(Protocol):
    """Read the GPUs' utilization (``agent.sources.nvml.driver.Driver``)."""

    def loads(self) -> Mapping[DeviceId, Load]: ...


class Heartbeats(Protocol):
    """Watches heartbeat files (``agent.sources.heartbeats.HeartbeatSource``)."""

    def restarted(self, container: ContainerId) -> None:
        """A container's program has been restarted in it: its next heartbeat is its first."""


class _NoHeartbeats:
    def restarted(self, container: ContainerId) -> None: ...


NO_HEARTBEATS: Final[Heartbeats] = _NoHeartbeats()
"""No heartbeat file is watched."""


class _NoRecorder:
    def record(self, event_message: EventMessage) -> None: ...


NO_RECORDER: Final[EventRecorder] = _NoRecorder()
"""No-op recorder."""


class Nics(Protocol):
    """Look up the node's NICs for pods. The names are those of the verdict store."""

    def nics_for_gpus(self, devices: Collection[str]) -> frozenset[str]:
        """Return the NICs that are paired with these GPUs."""

    def nic_for_plugin_id(self, plugin_id: str) -> str | None:
        """Return the NIC for a device plugin's id; None if the id is not the NIC's PCI address."""


class _NoNics:
    def nics_for_gpus(self, devices: Collection[str]) -> frozenset[str]:  # noqa: ARG002
        return frozenset()

    def nic_for_plugin_id(self, plugin_id: str) -> str | None:  # noqa: ARG002
        return None


NO_NICS: Final[Nics] = _NoNics()
"""No NICs are observed."""
