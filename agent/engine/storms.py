"""Storms: one fault printed a thousand times is one fault. NVSentinel met 672 fatal events in 3 h from one job."""

from collections.abc import Callable
from time import monotonic
from typing import Final

from agent.model.actions import ActionClass
from agent.model.findings import Finding, FindingKind

CALM: Final = 1.0
"""Seconds within which the same fault of the same process on the same device is not acted on again."""

_MOST_FAULTS = 4096

_Fault = tuple[str, FindingKind, str, int | None, ActionClass]


class Storms:
    """Remembers what is being acted on; ``clock`` is in seconds, and never set."""

    def __init__(self, *, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._acted: dict[_Fault, float] = {}

    def is_one_of_many(self, finding: Finding, *, device: str) -> bool:
        """Whether the same was acted on less than ``CALM`` seconds ago; if not, it is from now on."""
        now = self._clock()
        fault = (device, finding.kind, finding.code, finding.pid, finding.action)
        if now - self._acted.get(fault, float("-inf")) < CALM:
            return True
        if len(self._acted) >= _MOST_FAULTS:
            self._acted = {fault: at for fault, at in self._acted.items() if now - at < CALM}
        self._acted[fault] = now
        return False

    def over(self, device: str) -> None:
        """What was acted on has ended on a device: what comes now has to be acted on by itself."""
        self._acted = {fault: at for fault, at in self._acted.items() if fault[0] != device}
