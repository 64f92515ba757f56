"""Report the progress of a restart to its requester. Reporting never blocks and never fails."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from kubemend.agent.model.outcomes import Outcome
from kubemend.agent.restart import admission, steps, verification
from kubemend.agent.restart.intents import Strategy

DRIVER_FREEING: Final = "DriverFreeing"
"""What a member of a gang does that waits for its devices."""

_DOING: Final = {
    steps.StepKind.STOP: "ProcessExiting",
    steps.StepKind.REMOVE: "ProcessExiting",
    steps.StepKind.RESERVE: "Creating",
    steps.StepKind.CREATE: "Creating",
    steps.StepKind.START: "Starting",
}


@dataclass(frozen=True, slots=True)
class Queued:
    """Other restarts go first: one of the same pod, or the maximum number at once on a node."""


@dataclass(frozen=True, slots=True)
class Joined:
    """The container is being restarted already, for this cause; the following events are of that restart."""

    cause: admission.Cause


@dataclass(frozen=True, slots=True)
class Decided:
    """The restart was decided on. A HOLD is reported again when its reason changes."""

    decision: admission.Decision


@dataclass(frozen=True, slots=True)
class Begun:
    """The restart is in the journal under this id: from now on it is completed, even if this agent dies.

    ``at`` is Unix time in seconds.
    """

    at: float
    restart: str
    strategy: Strategy
    containers: Sequence[str]
    restart_count: int


@dataclass(frozen=True, slots=True)
class StepTaken:
    """One call to the runtime, or one wait for it. ``attempt`` is None if it produced no container."""

    step: steps.Step
    container: str
    attempt: int | None
    seconds: float
    error: str = ""


@dataclass(frozen=True, slots=True)
class Freeing:
    """The driver frees the device memory of a killed container; ``left`` is how much it still has, in bytes."""

    container: str
    left: int


@dataclass(frozen=True, slots=True)
class Reported:
    """How the restart ended; repeated with the checks when ``settled``: kubelet and the devices have answered."""

    outcome: Outcome
    checks: Sequence[verification.Check]
    settled: bool

    @property
    def verified(self) -> bool:
        """Return whether every check has passed; an unknown one counts as not passed."""
        passed = all(check.state is verification.CheckState.PASSED for check in self.checks)
        return self.settled and self.outcome.result.restarted and passed


Event = Queued | Joined | Decided | Begun | StepTaken | Freeing | Reported


class Progress(Protocol):
    """A follower of a restart."""

    def notify(self, event: Event) -> None:
        """Accept an event without blocking."""


class _NoFollower:
    def notify(self, event: Event) -> None:
        """Ignore the event."""


NO_FOLLOWER: Progress = _NoFollower()


def doing(step: steps.Step) -> str:
    """Return what a member of a gang does while a step is taken, for the members that wait for it."""
    reason: str = step.reason.value
    return DRIVER_FREEING if step.reason is steps.StepReason.OLD_ON_DEVICE else _DOING.get(step.kind, reason)
