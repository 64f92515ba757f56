"""What is told of a restart while it goes on, to whoever asked for it. Telling never waits and never fails."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from agent.actuator.outcomes import Outcome
from agent.restart import admission, steps, verification
from agent.restart.intents import Strategy


@dataclass(frozen=True, slots=True)
class Queued:
    """Other restarts go first: one of the same pod, or as many as are done at once on a node."""


@dataclass(frozen=True, slots=True)
class Joined:
    """The container is being restarted already, for this cause; what follows tells of that restart."""

    cause: admission.Cause


@dataclass(frozen=True, slots=True)
class Decided:
    """It was decided on. A HOLD is told again when its reason changes."""

    decision: admission.Decision


@dataclass(frozen=True, slots=True)
class Begun:
    """It is in the journal under this id: from now on it is seen through, whatever becomes of this agent.

    ``at`` is Unix time in seconds.
    """

    at: float
    restart: str
    strategy: Strategy
    containers: Sequence[str]
    restart_count: int


@dataclass(frozen=True, slots=True)
class StepTaken:
    """One call to the runtime, or one wait for it. ``attempt`` is None where no container came of it."""

    step: steps.Step
    container: str
    attempt: int | None
    seconds: float
    error: str = ""


@dataclass(frozen=True, slots=True)
class Reported:
    """How it ended; once more with the checks when it is ``settled``: kubelet and the devices have answered."""

    outcome: Outcome
    checks: Sequence[verification.Check]
    settled: bool

    @property
    def verified(self) -> bool:
        """Whether every check has passed; what could not be told is not verified."""
        passed = all(check.state is verification.CheckState.PASSED for check in self.checks)
        return self.settled and self.outcome.result.restarted and passed


Event = Queued | Joined | Decided | Begun | StepTaken | Reported


class Progress(Protocol):
    """Someone who follows a restart."""

    def tell(self, event: Event) -> None:
        """Take an event in, at once."""


class _Nobody:
    def tell(self, event: Event) -> None:
        """Nobody follows."""


NOBODY: Progress = _Nobody()
