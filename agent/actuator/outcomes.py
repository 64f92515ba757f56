"""How a restart ended, and where its milliseconds went."""

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from agent.model.workloads import ContainerId


class Result(enum.Enum):
    """How it ended.

    ``SWAPPED`` is our successor, ``ADOPTED`` kubelet's own, ``RERUN`` the whole pod. After ``RESET`` and ``TRIGGERED``
    kubelet starts everything, after ``LEFT_TO_KUBELET`` the rest of it.
    """

    SWAPPED = "Swapped"
    ADOPTED = "Adopted"
    RERUN = "Rerun"
    RESET = "Reset"
    TRIGGERED = "Triggered"
    LEFT_TO_KUBELET = "LeftToKubelet"
    SUCCESSOR_EXITED = "SuccessorExited"
    UNDONE = "Undone"
    STUCK = "Stuck"
    FAILED = "Failed"
    UNFINISHED = "Unfinished"

    @property
    def restarted(self) -> bool:
        """Whether what ran has been replaced, or is about to be: then it is verified."""
        return self in _RESTARTED


_RESTARTED = (
    Result.SWAPPED,
    Result.ADOPTED,
    Result.RERUN,
    Result.RESET,
    Result.TRIGGERED,
    Result.LEFT_TO_KUBELET,
)
_WORST_FIRST = (
    Result.UNFINISHED,
    Result.STUCK,
    Result.FAILED,
    Result.SUCCESSOR_EXITED,
    Result.UNDONE,
    Result.LEFT_TO_KUBELET,
    Result.TRIGGERED,
    Result.RESET,
    Result.RERUN,
    Result.ADOPTED,
    Result.SWAPPED,
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """``phases`` maps a phase (stop, create, start, confirm, …) to seconds; ``survivors`` names to containers.

    ``detail`` says why it ended so, ``notes`` what else people should know.
    """

    result: Result
    survivors: Mapping[str, ContainerId] = field(default_factory=lambda: MappingProxyType({}))
    phases: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    detail: str = ""
    notes: tuple[str, ...] = ()

    @property
    def seconds(self) -> float:
        """All phases together."""
        return sum(self.phases.values())


def together(outcomes: Iterable[Outcome]) -> Outcome:
    """Return what restarts that went side by side (at least one) amount to: the worst result, the longest phases."""
    outcomes = list(outcomes)
    survivors = {name: container for outcome in outcomes for name, container in outcome.survivors.items()}
    phases: dict[str, float] = {}
    for outcome in outcomes:
        for phase, seconds in outcome.phases.items():
            phases[phase] = max(phases.get(phase, 0.0), seconds)
    return Outcome(
        result=min((outcome.result for outcome in outcomes), key=_WORST_FIRST.index),
        survivors=MappingProxyType(survivors),
        phases=MappingProxyType(phases),
        detail="; ".join(dict.fromkeys(outcome.detail for outcome in outcomes if outcome.detail)),
    )
