"""Define what becomes available when the container runtime has been found and the journal has been replayed."""

from dataclasses import dataclass

from kubemend.agent import ports
from kubemend.agent.restarts.scheduler import RestartScheduler


@dataclass(frozen=True, slots=True)
class RuntimeAccess:
    """Hold the scheduler of restarts, the runtime's events and the runtime itself."""

    restarts: RestartScheduler
    events: ports.Events
    runtime: ports.Runtime
