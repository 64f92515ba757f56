"""Combine the reports of several sources into one component: the worst state counts."""

from collections.abc import Callable
from typing import Final

from kubemend.common.components import ComponentState, ComponentStatus

_FROM_WORST: Final = (ComponentState.DEGRADED, ComponentState.STARTING, ComponentState.READY, ComponentState.IDLE)


class JointComponent:
    """Give each source a report function, and pass the worst status to ``report``."""

    def __init__(self, report: Callable[[ComponentStatus], None]) -> None:
        self._report = report
        self._states: list[ComponentStatus] = []

    def reporter(self) -> Callable[[ComponentStatus], None]:
        """Add a source and return its report function. The source is starting until its first report."""
        number = len(self._states)
        self._states.append(ComponentStatus(ComponentState.STARTING))

        def report(status: ComponentStatus) -> None:
            self._states[number] = status
            self._report(min(self._states, key=lambda each: _FROM_WORST.index(each.state)))

        return report
