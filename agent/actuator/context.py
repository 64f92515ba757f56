"""Define what restarts are carried out with: the services, and the work before the start of successors."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, Self

from kubemend.agent import ports
from kubemend.agent.actuator import dying
from kubemend.agent.actuator.cache_cleanup import CacheCleaner, CacheCleanup
from kubemend.agent.actuator.device_release import ReleaseGates, open_gates
from kubemend.agent.actuator.hold.standby import Standby
from kubemend.agent.actuator.hooks import RunningHooks
from kubemend.agent.actuator.host_files import HostFiles
from kubemend.agent.actuator.layer_keeping import LayerKeeper, LayerKeeping
from kubemend.agent.actuator.shm_cleanup import ShmCleaner, ShmCleanup
from kubemend.agent.model.workloads import ContainerId, ContainerRef, PodRef, PodUid, SandboxId
from kubemend.agent.restart import overlap, shm
from kubemend.agent.restart.successor_spec import SuccessorSpec

TIME_LIMIT = 150.0
"""Seconds for one restart, beyond its grace period, unless it progresses: kill, wait for the devices, and the rest."""
LONGEST = 600.0
"""Maximum seconds for one restart, beyond its grace period, while it progresses."""


class Standbys(Protocol):
    """Puts successors on standby (``agent.actuator.hold.standby.Standbys``)."""

    async def kill(self, standby: Standby, *, timeout: float) -> bool:
        """Kill the old container; return whether all of its processes have ended within ``timeout`` seconds."""

    async def check_old(self, pid: int | None, *, of: ContainerId) -> Path:
        """Return the runtime's directory in /proc. Raises HoldError if no successor can be held next to the old one."""

    async def prepare(
        self, successor: ContainerId, *, old_pid: int | None, old: ContainerId, checked: Path | None = None
    ) -> Standby:
        """Freeze the old container and prepare the start of its successor. Raises HoldError.

        ``checked`` is what ``check_old`` has just returned; then the old one is frozen already.
        """

    async def overlap(self, standby: Standby) -> overlap.Obstacle | None:
        """Have a held successor run up to its first opening of the GPU driver; return why it stays held instead."""

    def freeze(self, pid: int | None, *, of: ContainerId) -> None:
        """Freeze the old container, if the process is in it. Raises HoldError."""

    async def is_frozen(self, pid: int | None, *, of: ContainerId) -> bool:
        """Return whether a container is frozen: only a kill can end it then."""

    def thaw(self, pid: int | None, *, of: ContainerId) -> None:
        """Thaw a container. Raises HoldError."""


async def _not_stopping(*_: object) -> str:
    return ""


@dataclass(frozen=True, slots=True)
class ActuatorContext:
    """Services that carry out restarts.

    ``time_limit`` bounds one restart, in seconds beyond its grace period. While the restart progresses the limit is
    extended, to ``longest`` at most. ``processes`` shows whether killed processes are still ending; without it a second
    kill without effect counts as proof that they are not.

    ``standbys`` is None on a node that cannot hold containers, ``launchers`` where the agent speaks with none.
    ``gates`` delay the start of successors, ``shm_cleaner`` and ``caches`` clean before it, ``layers`` keeps
    files. ``ending`` returns why a pod (its
    sandbox is an argument, too) is terminating; empty if there is no sign of that. ``stopping`` returns the same of a
    container that has been asked to stop, after querying the API server: empty only if another process than the
    runtime's has asked, and the pod lives on. ``kubelet_creates`` returns whether
    kubelet creates another container at once in place of one that has ended, by the pod's policy. ``running_hooks`` are
    the postStart hooks of all restarts.
    """

    runtime: ports.RestartCalls
    events: ports.PodEvents
    files: HostFiles
    time_limit: float = TIME_LIMIT
    longest: float = LONGEST
    processes: ports.ContainerProcesses | None = None
    poll_intervals: dying.PollIntervals = field(default_factory=dying.PollIntervals)
    standbys: Standbys | None = None
    launchers: ports.Launchers | None = None
    gates: ReleaseGates = field(default_factory=open_gates)
    shm_cleaner: ShmCleaner = field(default_factory=ShmCleaner)
    caches: CacheCleaner = field(default_factory=CacheCleaner)
    layers: LayerKeeper = field(default_factory=LayerKeeper)
    ending: Callable[[PodUid, SandboxId], str] = lambda *_: ""
    stopping: Callable[[ContainerId, PodRef, SandboxId], Awaitable[str]] = _not_stopping
    kubelet_creates: Callable[[ContainerRef], bool] = lambda _: False
    running_hooks: RunningHooks = field(default_factory=RunningHooks)


@dataclass(frozen=True, slots=True)
class StartPreparation:
    """The work of one restart before its starts, and what became of it. All tries of the restart share it.

    ``emptyings`` and ``kept`` are by container name.
    """

    shm_cleanup: ShmCleanup | None = None
    emptyings: Mapping[str, CacheCleanup] = field(default_factory=dict)
    kept: Mapping[str, LayerKeeping] = field(default_factory=dict)

    @classmethod
    def of(
        cls, tools: ActuatorContext, specs: Mapping[str, SuccessorSpec], *, shm_cleanup: shm.Request | None = None
    ) -> Self:
        """Prepare the cleanups and kept paths that the plan requests; ``specs`` are by container name."""
        return cls(
            ShmCleanup(tools.shm_cleaner, shm_cleanup) if shm_cleanup is not None else None,
            {name: CacheCleanup(tools.caches, spec.emptying) for name, spec in specs.items() if spec.emptying},
            {name: LayerKeeping(tools.layers, spec.keeping) for name, spec in specs.items() if spec.keeping},
        )

    def cleans(self, container: str) -> bool:
        """Return whether something is removed before a container's start."""
        return self.shm_cleanup is not None or container in self.emptyings

    async def clean(self, container: str, *, is_first: bool) -> None:
        """Remove it. ``is_first`` is False if a new container has run already, whose files they may be."""
        if self.shm_cleanup is not None:
            await self.shm_cleanup.before_start(container, is_first=is_first)
        if container in self.emptyings:
            await self.emptyings[container].before_start()

    def replaced_by(self, current: Mapping[str, ContainerId]) -> dict[str, str]:
        """Note which containers run, by name; return what each note of before is now."""
        changed = {}
        for name, keeping in self.kept.items():
            before = keeping.note
            keeping.replaced_by(current.get(name))
            changed[before] = keeping.note
        return changed

    @property
    def notes(self) -> list[str]:
        """Return notes for people: which files were cleaned or kept, and which were not."""
        notes = [self.shm_cleanup.note] if self.shm_cleanup is not None else []
        notes += [emptying.note for emptying in self.emptyings.values() if emptying.note]
        return notes + [keeping.note for keeping in self.kept.values()]


NO_PREPARATION = StartPreparation()
"""For a restart that neither cleans nor keeps anything."""
