"""How a restart ended, and where its milliseconds went."""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from agent.model.workloads import ContainerId


class Result(enum.Enum):
    """``SWAPPED`` is our successor, ``ADOPTED`` kubelet's own; both are a restarted container."""

    SWAPPED = "Swapped"
    ADOPTED = "Adopted"
    SUCCESSOR_EXITED = "SuccessorExited"
    UNDONE = "Undone"
    STUCK = "Stuck"
    FAILED = "Failed"
    UNFINISHED = "Unfinished"

    @property
    def restarted(self) -> bool:
        """Whether a new container runs in the old one's place."""
        return self in (Result.SWAPPED, Result.ADOPTED)


@dataclass(frozen=True, slots=True)
class Outcome:
    """``phases`` maps a phase (stop, create, start, confirm, …) to seconds; ``container`` is the survivor."""

    result: Result
    container: ContainerId | None = None
    phases: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    detail: str = ""

    @property
    def seconds(self) -> float:
        """All phases together."""
        return sum(self.phases.values())
