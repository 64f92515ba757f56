"""Report the state of each component of a process, with a hint for people."""

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import structlog

from kubemend.common import contained

log = structlog.get_logger(__name__)


class ComponentState(enum.Enum):
    """Name the states of a component.

    ``IDLE``: not needed here (no driver loaded on a CPU node); this is not a fault.
    """

    STARTING = "starting"
    READY = "ready"
    IDLE = "idle"
    DEGRADED = "degraded"

    @property
    def is_well(self) -> bool:
        """Return whether the component works, or is not needed here."""
        return self in (ComponentState.READY, ComponentState.IDLE)


_FROM_WORST: Final = (ComponentState.DEGRADED, ComponentState.STARTING, ComponentState.READY, ComponentState.IDLE)


@dataclass(frozen=True, slots=True)
class ComponentStatus:
    """Report the state of one component. ``message`` names the problem and its place in one line, ``hint`` the fix."""

    state: ComponentState
    message: str = ""
    hint: str = ""


class ComponentRegistry:
    """Hold the status of each component, starting when it is registered."""

    def __init__(self, *, show: Callable[[str, ComponentState], None]) -> None:
        """``show`` receives each component's new state, for a metric."""
        self._show = show
        self._status: dict[str, ComponentStatus] = {}
        self._dispensable: set[str] = set()
        self._subscribers: dict[str, list[Callable[[ComponentStatus], None]]] = {}

    def reporter(self, name: str, *, needed: bool = True) -> Callable[[ComponentStatus], None]:
        """Register a component and return its report function.

        A component that is not ``needed`` does not affect readiness.
        """
        if not needed:
            self._dispensable.add(name)
        self._status[name] = ComponentStatus(ComponentState.STARTING)
        self._show(name, ComponentState.STARTING)

        def report(status: ComponentStatus) -> None:
            self._take(name, status)
            for subscriber in self._subscribers.get(name, ()):
                with contained.within(contained.Part.LISTENER, f"status of {name}"):
                    subscriber(status)

        return report

    def subscribe(self, name: str, subscriber: Callable[[ComponentStatus], None]) -> None:
        """Call ``subscriber`` with every report of a component, from now on. Its errors do not end the component."""
        self._subscribers.setdefault(name, []).append(subscriber)

    def all(self) -> Mapping[str, ComponentStatus]:
        """Return the status of every component."""
        return dict(self._status)

    def ready(self) -> bool:
        """Return whether every needed component is ready or idle."""
        return all(status.state.is_well or name in self._dispensable for name, status in self._status.items())

    def _take(self, name: str, status: ComponentStatus) -> None:
        if status == self._status[name]:
            return
        self._status[name] = status
        self._show(name, status.state)
        emit = log.warning if status.state is ComponentState.DEGRADED else log.info
        emit("component", part=name, state=status.state.value, message=status.message, hint=status.hint)


class JointComponent:
    """Combine the reports of several sources into one component, and pass the worst status to ``report``."""

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
