"""The faults that agents have reported, and the hub's answers to them."""

from collections import Counter, OrderedDict
from dataclasses import dataclass
from typing import Final

from kubemend.common.coordination import FaultAnswer
from kubemend.controller.hub.ports import Session
from kubemend.controller.model.faults import FaultKey
from kubemend.controller.model.members import PodUid

OPEN_OF_A_POD: Final = 64
"""Faults of a pod that may wait for their answers at a time. Its agent reports any number."""

ANSWERED_KEPT: Final = 10_000
"""Answered faults, for agents that report them again."""


@dataclass(frozen=True, slots=True)
class FaultAnswerMessage:
    """The hub's answer to a fault, as its agent receives it (``FaultAnswer`` of the protocol)."""

    what: FaultAnswer
    round: str = ""
    reason: str = ""
    detail: str = ""


@dataclass(slots=True)
class ReportedFault:
    """A fault, the session that last reported it, and the latest answer."""

    session: Session
    kind: str
    answer: FaultAnswerMessage | None = None


class FaultBook:
    """Keep every fault until it is answered, and the latest answered ones.

    A fault without an answer is never dropped: its agent would restart the member alone. All members of a gang may fail
    at once, and each is answered within the time of a decision, which a write to the API may delay.
    """

    def __init__(self) -> None:
        self._open: dict[FaultKey, ReportedFault] = {}
        self._open_of: Counter[PodUid] = Counter()
        self._answered: OrderedDict[FaultKey, ReportedFault] = OrderedDict()

    def find(self, key: FaultKey) -> ReportedFault | None:
        """Return a fault; None if it was not reported, or was answered long ago."""
        return self._open.get(key) or self._answered.get(key)

    def add(self, key: FaultKey, *, session: Session, kind: str) -> bool:
        """Record a new fault; return False if too many of its pod are open for it to be decided about, too."""
        self._open[key] = ReportedFault(session, kind)
        self._open_of[key.pod] += 1
        return self._open_of[key.pod] <= OPEN_OF_A_POD

    def answer(self, key: FaultKey, message: FaultAnswerMessage) -> ReportedFault | None:
        """Record an answer; None if there is nothing to send: it is the same again, or the fault is not known."""
        entry = self.find(key)
        if entry is None or entry.answer == message:
            return None
        if self._open.pop(key, None) is not None:
            self._open_of[key.pod] -= 1
            if not self._open_of[key.pod]:
                del self._open_of[key.pod]
            self._answered[key] = entry
            if len(self._answered) > ANSWERED_KEPT:
                self._answered.popitem(last=False)
        entry.answer = message
        return entry
