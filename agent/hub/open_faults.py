"""Keep the members' faults that must be reported to the hub, again after each Hello, until they are settled."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final

import structlog

from kubemend.agent.model.actions import ActionClass
from kubemend.agent.model.workloads import ContainerRef, PodUid
from kubemend.common.coordination import FaultAnswer, FaultKind
from kubemend.common.gangs import GangKey

log = structlog.get_logger(__name__)

LONGEST: Final = 600.0
"""Seconds for which a fault is reported, from its detection: as long as an undecided restart is kept."""
MOST: Final = 256
"""Limit of open faults; beyond it the oldest of the namespace that has most of them is dropped."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault of one member (coordination/v1 ``Fault``). ``happened_at`` is Unix time; ``id`` is never reused."""

    id: str
    target: ContainerRef
    gang: GangKey
    kind: FaultKind
    code: str
    message: str
    happened_at: float
    exit_code: int = 0
    action: ActionClass = ActionClass.NONE
    device: str = ""


@dataclass(frozen=True, slots=True)
class FaultReport:
    """A fault to report now: its age in seconds, and whether its member is restarted ``alone`` already."""

    fault: Fault
    age: float
    alone: bool = False


@dataclass(slots=True, eq=False)
class _Open:
    fault: Fault
    age: float  # seconds, when it was opened
    opened: float  # loop time
    answer: "asyncio.Future[FaultAnswer]"
    is_reported: bool = False
    taken: FaultAnswer | None = None
    ordered: bool = False
    alone: bool = False


class OpenFaults:
    """The open faults. They may be added before the hub client runs.

    ``added`` is set when there is a fault to report. The outbox, which reports the faults, clears it.
    """

    def __init__(self, *, now: Callable[[], float] = time.time) -> None:
        self._now = now
        self._open: dict[str, _Open] = {}
        self._ordered: dict[PodUid, float] = {}  # loop time of each pod's last order, or of the release after it
        self._held: set[PodUid] = set()  # ordered, and not freed since
        self.added = asyncio.Event()

    def add(self, fault: Fault) -> "asyncio.Future[FaultAnswer]":
        """Add a fault to report; return the future of the hub's answer. One that is open already is the same."""
        known = self._open.get(fault.id)
        if known is not None:
            return known.answer
        loop = asyncio.get_running_loop()
        opened = _Open(fault, max(0.0, self._now() - fault.happened_at), loop.time(), loop.create_future())
        self._open[fault.id] = opened
        while len(self._open) > MOST:
            dropped = self._open.pop(self._to_drop())
            log.warning("hub.fault_dropped", fault=dropped.fault.id, container=str(dropped.fault.target))
        self.added.set()
        return opened.answer

    def _to_drop(self) -> str:
        """Return the oldest fault of the namespace that has most: another gang must hear of its own."""
        crowded = Counter(each.fault.target.pod.namespace for each in self._open.values()).most_common(1)[0][0]
        return next(fault_id for fault_id, each in self._open.items() if each.fault.target.pod.namespace == crowded)

    def leave_alone(self, fault_id: str) -> None:
        """Mark that the answer is no longer awaited because the member is restarted alone.

        Its gang is informed nevertheless, because it may wait for a rank that does not know of the restart.
        """
        if (each := self._open.get(fault_id)) is not None:
            each.alone = True

    def report_again(self) -> None:
        """Report all open faults again, after a Hello."""
        for each in self._open.values():
            each.is_reported = False

    def next(self) -> FaultReport | None:
        """Return the next fault to report, and mark it as reported; None if there is none.

        Faults that have been open for too long are dropped.
        """
        time_now = asyncio.get_running_loop().time()
        for each in [*self._open.values()]:
            known_for = time_now - each.opened
            if known_for > LONGEST:
                del self._open[each.fault.id]
            elif not each.is_reported:
                each.is_reported = True
                return FaultReport(each.fault, each.age + known_for, alone=each.alone)
        return None

    def answered(self, fault_id: str, taken: FaultAnswer) -> Fault | None:
        """Process an answer; return the fault, or None if the answer is not awaited.

        A fault that a round has taken stays open until an order for its pod arrives: if the hub dies in between, its
        successor must learn of the fault. One that is found after that order or the release, but occurred before it, is
        settled: the round has stopped its container, and the next hub would restart the gang for it once more.
        """
        each = self._open.get(fault_id)
        if each is None or each.taken is not None:
            return None
        each.taken = taken
        if not each.answer.done():
            each.answer.set_result(taken)
        if taken is not FaultAnswer.ROUND or each.ordered or self._is_of_old_container(each):
            del self._open[fault_id]
        return each.fault

    def is_open(self, fault_id: str) -> bool:
        """Return whether a fault must still be reported, at the latest after the next Hello."""
        return fault_id in self._open

    def ordered(self, pods: Collection[PodUid]) -> list[str]:
        """Record that a round has begun for these pods, so the hub knows their faults; return those now settled."""
        settled = []
        now = asyncio.get_running_loop().time()
        ordered = {**self._ordered, **dict.fromkeys(pods, now)}
        self._ordered = {pod: at for pod, at in ordered.items() if now - at <= LONGEST}
        self._held = (self._held | {*pods}) & self._ordered.keys()
        for each in [*self._open.values()]:
            if each.fault.target.pod.uid in pods:
                each.ordered = True
                if each.taken is not None:
                    del self._open[each.fault.id]
                    settled.append(each.fault.id)
        return settled

    def freed(self, pods: Collection[PodUid], *, by_release: bool) -> list[str]:
        """Record that the hub releases these pods or cancels their round; return the faults that are settled by that.

        These are the faults that came after the round's last order, and get no other one: the round has taken them.
        Nothing new of a pod runs before its release, so any earlier fault is of what the round has stopped. Those that
        are found after a cancellation are decided on as if there had been no round. A repeated message says nothing
        about what runs since the first one.
        """
        freed = self._held.intersection(pods)
        self._held -= freed
        if by_release:
            self._ordered |= dict.fromkeys(freed, asyncio.get_running_loop().time())
        settled = [
            each.fault.id
            for each in self._open.values()
            if each.taken is not None and each.fault.target.pod.uid in freed and each.fault.action.leaves_device_usable
        ]
        for fault_id in settled:
            del self._open[fault_id]
        return settled

    def _is_of_old_container(self, each: _Open) -> bool:
        """Return whether a fault occurred before its pod's last order or release, and needs no more."""
        ordered = self._ordered.get(each.fault.target.pod.uid)
        return ordered is not None and each.opened - each.age < ordered and each.fault.action.leaves_device_usable

    def gone(self, pod: PodUid) -> None:
        """Drop the faults of a deleted pod that nothing waits for."""
        for each in [*self._open.values()]:
            is_waited_for = each.taken is None and each.fault.kind is not FaultKind.EXIT and not each.alone
            if each.fault.target.pod.uid == pod and not is_waited_for:
                del self._open[each.fault.id]
