"""What waits at a gang's desk for its decision, and until when. Pure."""

import math
from dataclasses import dataclass

from controller.decisions.facts import needs_recreation
from controller.model.faults import Cause, Fault, FaultKind
from controller.model.members import Member, PodUid
from controller.model.rounds import FaultTold
from controller.restarts.objects import Restart

_NOT_HELD = -math.inf


@dataclass(slots=True, eq=False)
class Case:
    """A cause that waits for its decision; ``restart`` is the object of a request.

    ``held_until`` is Unix time: when it is decided on at the latest. Infinite: when something happens.
    """

    cause: Cause
    restart: Restart | None = None
    held_until: float = _NOT_HELD


class Cases:
    """The cases in the order in which they came. One that is held lets the others go before it."""

    def __init__(self) -> None:
        self._waiting: list[Case] = []

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, case: Case) -> bool:
        return case in self._waiting

    def add(self, case: Case) -> None:
        """Have one wait."""
        self._waiting.append(case)

    def remove(self, case: Case) -> None:
        """It has been decided on."""
        self._waiting.remove(case)

    def next(self, *, now: float) -> Case | None:
        """Return the first to be decided on; None: all are held."""
        return next((case for case in self._waiting if case.held_until <= now), None)

    @property
    def held_until(self) -> float | None:
        """When the first hold ends; None: none of them ends by itself."""
        earliest = min((case.held_until for case in self._waiting), default=math.inf)
        return None if math.isinf(earliest) else earliest

    def look_again(self, *, pod: PodUid | None = None) -> None:
        """Hold none any more, or none about this pod: something has happened to it."""
        for case in self._waiting:
            if pod is None or (isinstance(case.cause, Fault) and case.cause.pod.uid == pod):
                case.held_until = _NOT_HELD

    def withdraw(self, restart_id: str) -> None:
        """Forget the request of this object."""
        self._waiting = [case for case in self._waiting if case.restart is None or case.restart.id != restart_id]

    def take_faults(self) -> list[Fault]:
        """Let all faults go, and return them."""
        faults = [case.cause for case in self._waiting if isinstance(case.cause, Fault)]
        self._waiting = [case for case in self._waiting if not isinstance(case.cause, Fault)]
        return faults

    def take_all(self) -> list[Case]:
        """Let all go, and return them."""
        everything, self._waiting = self._waiting, []
        return everything


def told(fault: Fault) -> FaultTold:
    """Return a fault as the round under way is told of it."""
    return FaultTold(
        pod=fault.pod.uid,
        code=fault.code,
        message=fault.message,
        needs_recreation=needs_recreation(fault),
        at=fault.at,
    )


def come_upon(told: FaultTold, *, member: Member, round_id: str, now: float) -> Fault:
    """Return the fault that a round has come upon itself, and no agent has told of: that one has let go by itself."""
    return Fault(
        id=f"{round_id}/again",
        pod=member.pod,
        gang=member.gang,
        kind=FaultKind.OTHER,
        code=told.code,
        message=told.message,
        at=now,
        action_class="RestartApp",
    )
