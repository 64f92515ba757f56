"""Describe how a restart ended, and how long its phases took."""

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from kubemend.agent.model.workloads import ContainerId


class Result(enum.Enum):
    """How a restart ended.

    ``RESTARTED``: the program runs again in the same container. ``STEPPED_DOWN``: its launcher has failed to restart
    it, and another strategy takes over. ``SWAPPED``: the successor runs; ``ADOPTED``: kubelet's container runs;
    ``RERUN``: the whole pod runs again. After ``RESET`` and ``TRIGGERED`` kubelet starts everything, after
    ``LEFT_TO_KUBELET`` the remaining containers. ``NOT_ALIKE``: the successor would differ from the old container, and
    was removed before anything was stopped. ``ALREADY_REPLACED``: kubelet had replaced the target of a whole pod's
    restart before anything was stopped; ``TRIGGER_ENDED``: the container to kill had ended by itself before, with
    another exit code. ``COMPLETED``: the old container had ended for good, with exit code 0, before
    it was stopped. ``WITHDRAWN``: the cause no longer held before the first step. ``DEVICE_NOT_USABLE``: the old
    containers were stopped, and a GPU has failed its proof, or has a graver fault than was known at the decision, so
    nothing was started.
    """

    RESTARTED = "Restarted"
    STEPPED_DOWN = "SteppedDown"
    SWAPPED = "Swapped"
    ADOPTED = "Adopted"
    RERUN = "Rerun"
    RESET = "Reset"
    TRIGGERED = "Triggered"
    LEFT_TO_KUBELET = "LeftToKubelet"
    SUCCESSOR_EXITED = "SuccessorExited"
    UNDONE = "Undone"
    WITHDRAWN = "Withdrawn"
    COMPLETED = "Completed"
    NOT_ALIKE = "NotAlike"
    ALREADY_REPLACED = "AlreadyReplaced"
    TRIGGER_ENDED = "TriggerEnded"
    STUCK = "Stuck"
    DEVICE_NOT_USABLE = "DeviceNotUsable"
    FAILED = "Failed"
    UNFINISHED = "Unfinished"

    @property
    def restarted(self) -> bool:
        """Return whether the old containers have been replaced, or are about to be: then the restart is verified."""
        return self in _RESTARTED

    @property
    def is_decided_again(self) -> bool:
        """Return whether this is no end: nothing was restarted, and another strategy or plan may do it."""
        return self in (Result.STEPPED_DOWN, Result.NOT_ALIKE, Result.ALREADY_REPLACED, Result.TRIGGER_ENDED)

    @property
    def changed_nothing(self) -> bool:
        """Return whether it ended before any container was stopped, so that it counts no restart."""
        return self in (Result.NOT_ALIKE, Result.ALREADY_REPLACED, Result.TRIGGER_ENDED, Result.WITHDRAWN)


_RESTARTED = (
    Result.RESTARTED,
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
    Result.DEVICE_NOT_USABLE,
    Result.FAILED,
    Result.STEPPED_DOWN,
    Result.SUCCESSOR_EXITED,
    Result.NOT_ALIKE,
    Result.ALREADY_REPLACED,
    Result.TRIGGER_ENDED,
    Result.UNDONE,
    Result.WITHDRAWN,
    Result.LEFT_TO_KUBELET,
    Result.TRIGGERED,
    Result.RESET,
    Result.RERUN,
    Result.ADOPTED,
    Result.SWAPPED,
    Result.RESTARTED,
    Result.COMPLETED,
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a restart.

    ``phases`` maps a phase (stop, create, start, confirm, …) to seconds; ``current`` maps names to containers.
    ``detail`` is why it ended so, ``notes`` are other messages for people.
    """

    result: Result
    current: Mapping[str, ContainerId] = field(default_factory=lambda: MappingProxyType({}))
    phases: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    detail: str = ""
    notes: tuple[str, ...] = ()

    @property
    def seconds(self) -> float:
        """Return the sum of all phases."""
        return sum(self.phases.values())


def together(outcomes: Iterable[Outcome]) -> Outcome:
    """Combine the outcomes (at least one) of concurrent restarts: the worst result, the longest phases.

    One that was not alike is a failure if another container was restarted: then something was stopped. Containers that
    have completed count only if all have.
    """
    outcomes = list(outcomes)
    outcomes = [outcome for outcome in outcomes if outcome.result is not Result.COMPLETED] or outcomes
    worst = min((outcome.result for outcome in outcomes), key=_WORST_FIRST.index)
    if worst is Result.NOT_ALIKE and any(outcome.result.restarted for outcome in outcomes):
        worst = Result.FAILED
    current = {name: container for outcome in outcomes for name, container in outcome.current.items()}
    phases: dict[str, float] = {}
    for outcome in outcomes:
        for phase, seconds in outcome.phases.items():
            phases[phase] = max(phases.get(phase, 0.0), seconds)
    return Outcome(
        result=worst,
        current=MappingProxyType(current),
        phases=MappingProxyType(phases),
        detail="; ".join(dict.fromkeys(outcome.detail for outcome in outcomes if outcome.detail)),
        notes=tuple(note for outcome in outcomes for note in outcome.notes),
    )
