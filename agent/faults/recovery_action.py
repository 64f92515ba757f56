"""Query the driver about faults that the catalog leaves to it, until it requires no recovery action."""

import time
from collections.abc import Callable

import structlog

from kubemend.agent import ports
from kubemend.agent.devices.verdict_store import VerdictStore
from kubemend.agent.faults.app_faults import RecordedFinding
from kubemend.agent.health.state import evidence, fold
from kubemend.agent.model.actions import ActionClass
from kubemend.agent.model.devices import locator
from kubemend.agent.model.findings import Finding, FindingKind, Source
from kubemend.common import aio

log = structlog.get_logger(__name__)

_DRIVER_SECONDS = 2.0
_FIRST_WAIT, _LONGEST_WAIT = 1.0, 30.0  # seconds between two queries about one fault
_MOST_POLLS = 32
"""Processes of one fault for which the driver is polled, the newest: a program that fails again and again is one more
process each time, and the fault stays until the driver needs nothing.
"""

_Question = tuple[str, FindingKind, str, int | None, Source]


class RecoveryActionQuery:
    """Query the driver's recovery action. ``submit`` receives its answers as findings."""

    def __init__(
        self,
        *,
        verdict_store: VerdictStore,
        devices: ports.Devices,
        classify: Callable[[FindingKind, str], ActionClass],
        submit: Callable[[Finding], None],
        now: Callable[[], float] = time.time,
    ) -> None:
        self._verdict_store = verdict_store
        self._devices = devices
        self._classify = classify
        self._submit = submit
        self._now = now
        self._open: dict[_Question, None] = {}  # oldest first
        self._permitted: set[_Question] = set()
        """Open questions whose device the driver has found usable, at the turn of another one."""

    def unanswered(self, device: str) -> list[RecordedFinding]:
        """Return a previous agent's faults that the driver has not answered. They cause no restart."""
        return [
            RecordedFinding(finding=_previous_finding(active_fault, device=device), device=device, process=None)
            for active_fault in self._verdict_store.active_faults(device)
            if active_fault.action is ActionClass.ASK_DRIVER
        ]

    async def is_usable(self, recorded: RecordedFinding) -> bool:
        """Poll until the driver requires no recovery action; return False if the fault is no longer active.

        False also if another call polls for the same fault, if a previous agent saw its end, or if ``_MOST_POLLS``
        newer processes have had it. The driver may not be up yet, hang, or be content only after a reset; without the
        poll none of that would be noticed later.
        """
        finding, question = recorded.finding, _question(recorded)
        ended_before = self._verdict_store.was_folded(finding) and not self._is_held(recorded)
        if question in self._open or ended_before:
            return False
        self._begin(question)
        try:
            return await self._poll(recorded)
        finally:
            self._open.pop(question, None)
            self._permitted.discard(question)

    def _begin(self, question: _Question) -> None:
        """Open a question. If that is one too many of its fault, end the oldest.

        Reports without a process end with it: they mean the device's holder only if no other one names the process
        (``AppFaultHandler``).
        """
        self._open[question] = None
        of_fault = [each for each in self._open if each[:3] == question[:3]]
        if len(of_fault) > _MOST_POLLS:
            for ended in (of_fault[0], *(each for each in of_fault if each[3] is None)):
                self._open.pop(ended, None)

    async def _poll(self, recorded: RecordedFinding) -> bool:
        backoff = aio.Backoff(first=_FIRST_WAIT, limit=_LONGEST_WAIT)
        last_code: int | None = None
        while True:
            gpu = self._devices.inventory.locate(recorded.finding.device)
            code = await self._devices.recovery_action(gpu.uuid, timeout=_DRIVER_SECONDS) if gpu is not None else None
            if code is None:
                log.debug("driver.no_verdict", device=recorded.device, finding=recorded.finding.title)
            elif code != last_code:
                last_code, answer = code, self._finding(recorded, code=code)
                self._submit(answer)
                if answer.action is ActionClass.NONE:
                    self._permitted.update(each for each in self._open if each[0] == recorded.device)
                    return True
            await backoff.wait()
            if _question(recorded) in self._permitted:
                return True  # the fault may have ended since, with the process of that other question
            if _question(recorded) not in self._open or not self._is_held(recorded):
                return False

    def _finding(self, recorded: RecordedFinding, *, code: int) -> Finding:
        return Finding(
            source=Source.NVML,
            kind=FindingKind.RECOVERY_ACTION,
            code=str(code),
            device=recorded.finding.device,
            action=self._classify(FindingKind.RECOVERY_ACTION, str(code)),
            observed_at=self._now(),
            text=f"queried after {recorded.finding.title}",
        )

    def _is_held(self, recorded: RecordedFinding) -> bool:
        fault = recorded.finding.kind, recorded.finding.code
        return any(
            (active_fault.kind, active_fault.code) == fault
            for active_fault in self._verdict_store.active_faults(recorded.device)
        )


def _question(recorded: RecordedFinding) -> _Question:
    finding = recorded.finding
    return recorded.device, finding.kind, finding.code, finding.pid, finding.source


def _previous_finding(active_fault: fold.ActiveFault, *, device: str) -> Finding:
    return Finding(
        source=Source.NVML,
        kind=active_fault.kind,
        code=active_fault.code,
        device=locator(device),
        action=active_fault.action,
        observed_at=active_fault.last_seen,
        text=active_fault.text,
        evidence={evidence.LOOK_BACK: "true"},
    )
