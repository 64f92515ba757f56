"""Facts about a process of the node."""

from dataclasses import dataclass

from kubemend.agent.model.workloads import ContainerId


@dataclass(frozen=True, slots=True)
class ProcessFacts:
    """``container`` is None for a process outside all containers; ``started`` is in seconds since boot."""

    pid: int
    container: ContainerId | None
    started: float


@dataclass(frozen=True, slots=True)
class ProcessOrigin:
    """Where a process of a container comes from: its topmost ancestor there, or the process itself.

    ``is_its_own``: it is the container's first process, or another one that the container has left behind. For others
    only the runtime knows whether they are the first, or were added later (``kubectl exec``).
    """

    pid: int
    is_its_own: bool
