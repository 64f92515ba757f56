"""Define what becomes available when the container runtime has been found and the journal has been replayed."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from kubemend.agent import ports
from kubemend.agent.model.workloads import ContainerRef
from kubemend.agent.restarts.scheduler import RestartScheduler
from kubemend.agent.sources.program_starts import ProgramStarts


async def _no_doubt(_: ContainerRef) -> str:
    return ""


@dataclass(frozen=True, slots=True)
class RuntimeAccess:
    """Hold the scheduler of restarts, the runtime's events and the runtime itself.

    ``doubt`` returns why the end of a ``Never`` container is not its own, because it was stopped or its pod is ending;
    empty if it is, or the container runs. ``programs`` are the starts of programs by launchers.
    """

    restarts: RestartScheduler
    events: ports.Events
    runtime: ports.Runtime
    doubt: Callable[[ContainerRef], Awaitable[str]] = _no_doubt
    programs: ProgramStarts = field(default_factory=ProgramStarts)
