"""Drop duplicate findings: NVSentinel saw 672 fatal events in 3 h from one job."""

from collections.abc import Callable
from time import monotonic
from typing import Final

from kubemend.agent.model.actions import ActionClass
from kubemend.agent.model.findings import Finding, FindingKind

CALM: Final = 1.0
"""Seconds within which the same fault of the same process on the same device counts as a duplicate."""

_MOST_FAULTS = 4096

_Fault = tuple[str, FindingKind, str, int | None, ActionClass]


class FindingDeduplicator:
    """Remember the faults that are being handled. ``clock`` is monotonic, in seconds."""

    def __init__(self, *, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._acted: dict[_Fault, float] = {}

    def is_duplicate(self, finding: Finding, *, device: str) -> bool:
        """Return whether the same fault was handled less than ``CALM`` seconds ago; if not, record it now."""
        now = self._clock()
        fault = (device, finding.kind, finding.code, finding.pid, finding.action)
        if now - self._acted.get(fault, float("-inf")) < CALM:
            return True
        if len(self._acted) >= _MOST_FAULTS:
            self._acted = {fault: at for fault, at in self._acted.items() if now - at < CALM}
        self._acted[fault] = now
        return False

    def over(self, device: str) -> None:
        """Forget a device's faults after their end, so that the next one is handled again."""
        self._acted = {fault: at for fault, at in self._acted.items() if fault[0] != device}
