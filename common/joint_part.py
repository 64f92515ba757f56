"""One part that several sources report on: it does as well as the one that does worst."""

from collections.abc import Callable
from typing import Final

from common.parts import PartState, PartStatus

_FROM_WORST: Final = (PartState.DEGRADED, PartState.STARTING, PartState.READY, PartState.IDLE)


class JointPart:
    """Gives each source a function to report by; the whole is reported by ``report``."""

    def __init__(self, report: Callable[[PartStatus], None]) -> None:
        self._report = report
        self._states: list[PartStatus] = []

    def reporter(self) -> Callable[[PartStatus], None]:
        """Add a source, and return the function by which it reports. Until then it is starting."""
        number = len(self._states)
        self._states.append(PartStatus(PartState.STARTING))

        def report(status: PartStatus) -> None:
            self._states[number] = status
            self._report(min(self._states, key=lambda each: _FROM_WORST.index(each.state)))

        return report
