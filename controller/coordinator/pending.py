"""The causes that a gang's worker has queued for a decision, and until when they are postponed. Pure."""

import itertools
import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from kubemend.common.coordination import FaultKind
from kubemend.controller.decisions.facts import needs_recreation
from kubemend.controller.model.faults import Cause, Fault
from kubemend.controller.model.members import Member, PodUid
from kubemend.controller.model.rounds import FaultReported
from kubemend.controller.restarts.objects import Restart

MOST_OF_A_POD: Final = 64
"""Faults of one pod that are kept, postponed or for a round under way: eight for each GPU of a large node. Agents may
report any number."""

_NOT_POSTPONED = -math.inf


@dataclass(slots=True, eq=False)
class PendingCause:
    """A cause that waits for its decision; ``restart`` is the object of a request.

    ``postponed_until`` is the Unix time of the next decision at the latest. Infinity: the decision waits for an event.
    """

    cause: Cause
    restart: Restart | None = None
    postponed_until: float = _NOT_POSTPONED


class PendingQueue:
    """The causes in the order in which they came. One that is postponed lets later ones pass it."""

    def __init__(self) -> None:
        self._waiting: dict[PendingCause, None] = {}
        self._of_pod: dict[PodUid, dict[PendingCause, None]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, case: PendingCause) -> bool:
        return case in self._waiting

    def add(self, case: PendingCause) -> None:
        """Queue a cause. A fault replaces one of the same pod whose hold has no end: agents may report any number.

        Nothing is lost: a fault that is held so begins no round, and the next round restarts its pod, too.
        """
        if isinstance(case.cause, Fault):
            of_pod = self._of_pod.get(case.cause.pod.uid, ())
            for former in [each for each in of_pod if each.postponed_until == math.inf]:
                self.remove(former)
            self._of_pod.setdefault(case.cause.pod.uid, {})[case] = None
        self._waiting[case] = None

    def remove(self, case: PendingCause) -> None:
        """Remove a cause that has been decided."""
        del self._waiting[case]
        if isinstance(case.cause, Fault):
            of_pod = self._of_pod[case.cause.pod.uid]
            del of_pod[case]
            if not of_pod:
                del self._of_pod[case.cause.pod.uid]

    def due(self, *, now: float, most: int) -> list[PendingCause]:
        """Return the first causes to decide about, at most so many; none if all are postponed."""
        return list(itertools.islice((case for case in self._waiting if case.postponed_until <= now), most))

    @property
    def postponed_until(self) -> float | None:
        """Return when the first hold ends; None if no hold ends at a set time."""
        earliest = min((case.postponed_until for case in self._waiting), default=math.inf)
        return None if math.isinf(earliest) else earliest

    def recheck(self, *, pod: PodUid | None = None) -> None:
        """End all holds, or those about this pod, because something has happened to it."""
        for case in self._waiting if pod is None else self._of_pod.get(pod, ()):
            case.postponed_until = _NOT_POSTPONED

    def postpone(self, case: PendingCause, *, until: float, now: float) -> None:
        """Hold a cause until then, or until an event if ``until`` is infinite.

        Of a pod's faults that are held only so many are kept, those first that need another device. Nothing is lost:
        the round that another one begins restarts the pod, too.
        """
        case.postponed_until = until
        if not isinstance(case.cause, Fault):
            return
        held = [each for each in self._of_pod[case.cause.pod.uid] if each.postponed_until > now]
        if len(held) > MOST_OF_A_POD:
            self.remove(next((each for each in held if not _needs_recreation(each)), held[0]))

    def withdraw(self, restart_id: str) -> None:
        """Drop the request of this object."""
        for case in [each for each in self._waiting if each.restart is not None and each.restart.id == restart_id]:
            self.remove(case)

    def take_faults(self) -> list[Fault]:
        """Remove and return all faults."""
        faults = [case for case in self._waiting if isinstance(case.cause, Fault)]
        for case in faults:
            self.remove(case)
        return [case.cause for case in faults if isinstance(case.cause, Fault)]

    def take_all(self) -> list[PendingCause]:
        """Remove and return all causes."""
        everything = list(self._waiting)
        self._waiting.clear()
        self._of_pod.clear()
        return everything


def _needs_recreation(case: PendingCause) -> bool:
    return isinstance(case.cause, Fault) and needs_recreation(case.cause)


def fault_event(fault: Fault) -> FaultReported:
    """Return a fault in the form that the round under way takes."""
    return FaultReported(
        pod=fault.pod.uid,
        code=fault.code,
        message=fault.message,
        needs_recreation=needs_recreation(fault),
        at=fault.at,
    )


def is_restarted(fault: Fault, containers: Collection[str]) -> bool:
    """Return whether a round that restarts these containers (none: those that restarts are for) is enough for a fault.

    A fault without a container concerns the pod, and one of a device that is not usable has the pod replaced.
    """
    return not containers or not fault.container or fault.container in containers or needs_recreation(fault)


def synthesize_fault(event: FaultReported, *, member: Member, round_id: str, now: float) -> Fault:
    """Return the fault that is decided on after a round, though no agent reports it again.

    The round found it itself (the agent has released its member), or began with it.
    """
    return Fault(
        id=f"{round_id}/again",
        pod=member.pod,
        gang=member.gang,
        kind=FaultKind.OTHER,
        code=event.code,
        message=event.message,
        at=now if event.at is None else event.at,
        action_class="Replace" if event.needs_recreation else "RestartApp",
    )
