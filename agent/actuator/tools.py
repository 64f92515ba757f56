"""What restarts are carried out with: the calls, the events, the host's files, and what successors are made of."""

import asyncio
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from agent.actuator import dying, hooks
from agent.actuator.gates import Gates, open_gates
from agent.actuator.host_files import HostFiles
from agent.actuator.standby import Standby
from agent.actuator.sweep import Broom, Sweep
from agent.cri.answers import ContainerInfo
from agent.cri.events import ContainerEvent
from agent.model.workloads import ContainerId, ContainerView, Hook, PodUid, SandboxId
from agent.restart import clone, host_files, shm
from common.pb.runtime.v1 import api_pb2

TIME_LIMIT = 150.0
"""Seconds that one carrying out has, beside its grace, unless it goes on: kill, wait for the devices, and the rest."""
LONGEST = 600.0
"""Seconds that it takes at most, beside its grace, while it goes on."""


class Runtime(hooks.Execs, Protocol):
    """The calls of ``agent.cri.client.CriClient`` that a restart makes; each raises CriError and has a deadline."""

    async def list_containers(
        self, *, pod_uid: PodUid | None = None, sandbox_id: SandboxId | None = None, name: str | None = None
    ) -> tuple[ContainerView, ...]: ...

    async def container_info(self, container_id: ContainerId) -> ContainerInfo: ...

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


class PodEvents(Protocol):
    """Something that tells when a pod's containers change (``agent.sources.containers.ContainerWatch``)."""

    def subscribe(self, pod_uid: PodUid) -> AbstractAsyncContextManager[asyncio.Queue[ContainerEvent]]:
        """Yield a queue that receives an item at every change of the pod's containers."""


class Standbys(Protocol):
    """What puts successors on standby (``agent.actuator.standby.Standbys``)."""

    async def prepare(self, successor: ContainerId, *, old_pid: int | None) -> Standby:
        """Freeze the old container, and be ready for the start of its successor. Raises HoldError."""

    def freeze(self, pid: int | None) -> None:
        """Keep the old container from running on. Raises HoldError."""

    def thaw(self, pid: int | None) -> None: ...


@dataclass(frozen=True, slots=True)
class Tools:
    """What restarts are carried out with. ``time_limit`` bounds one carrying out, in seconds beside its grace; while it
    goes on it may take as long again, and ``longest`` at most. ``processes`` tell whether what was killed still ends;
    without them a second kill without effect proves that it does not.

    ``standbys`` is None on a node that cannot hold containers. ``gates`` are those before the start of successors,
    ``broom`` cleans before it.
    """

    runtime: Runtime
    events: PodEvents
    files: HostFiles
    time_limit: float = TIME_LIMIT
    longest: float = LONGEST
    processes: dying.Processes | None = None
    rhythm: dying.Rhythm = field(default_factory=dying.Rhythm)
    standbys: Standbys | None = None
    gates: Gates = field(default_factory=open_gates)
    broom: Broom = field(default_factory=Broom)


@dataclass(frozen=True, slots=True)
class LastWish:
    """A container's preStop hook. ``pod_ip`` is where an HTTP hook goes by default."""

    hook: Hook
    pod_ip: str | None = None


@dataclass(frozen=True, slots=True)
class Material:
    """What is needed to make one successor, and to end its predecessor as the pod asks.

    ``shared_memory`` is what the container has for /dev/shm, ``sweep`` what is cleaned before it starts.
    """

    successor: clone.Successor
    sandbox_config: api_pb2.PodSandboxConfig
    post_start: Hook | None = None
    last_wish: LastWish | None = None
    pod_ip: str | None = None
    shared_memory: shm.Place | shm.NotOurs = shm.NotOurs("it was not looked for")  # noqa: RUF009 - frozen
    sweep: Sweep | None = None

    @property
    def log_file(self) -> Path:
        """The successor's log on the host."""
        return Path(host_files.log_file(self.sandbox_config.log_directory, self.successor.log_path))
