"""Parts of a process that can be missing or wait for something: how each does, and what a person can do about it."""

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import structlog

log = structlog.get_logger(__name__)


class PartState(enum.Enum):
    """``IDLE`` is a part that is not needed here (no driver loaded on a CPU node): not a fault."""

    STARTING = "starting"
    READY = "ready"
    IDLE = "idle"
    DEGRADED = "degraded"


@dataclass(frozen=True, slots=True)
class PartStatus:
    """How one part does. ``message`` says in one line what is missing and where, ``mend`` what to do."""

    state: PartState
    message: str = ""
    mend: str = ""


class Parts:
    """Knows how each part does. A part counts from the moment it is named."""

    def __init__(self, *, show: Callable[[str, PartState], None]) -> None:
        """``show`` is called with each part's new state, for a metric."""
        self._show = show
        self._status: dict[str, PartStatus] = {}
        self._dispensable: set[str] = set()

    def reporter(
        self, name: str, *, also: Callable[[PartStatus], None] | None = None, needed: bool = True
    ) -> Callable[[PartStatus], None]:
        """Name a part, and return the function by which it reports. ``also`` is called with each change.

        Without a part that is not ``needed`` the others are ready all the same.
        """
        if not needed:
            self._dispensable.add(name)
        self._status[name] = PartStatus(PartState.STARTING)
        self._show(name, PartState.STARTING)

        def report(status: PartStatus) -> None:
            self._take(name, status)
            if also is not None:
                also(status)

        return report

    def all(self) -> Mapping[str, PartStatus]:
        """Return every part's status."""
        return dict(self._status)

    def ready(self) -> bool:
        """Whether all parts work, or are not needed here."""
        return all(
            status.state in (PartState.READY, PartState.IDLE) or name in self._dispensable
            for name, status in self._status.items()
        )

    def _take(self, name: str, status: PartStatus) -> None:
        if status == self._status[name]:
            return
        self._status[name] = status
        self._show(name, status.state)
        say = log.warning if status.state is PartState.DEGRADED else log.info
        say("part", part=name, state=status.state.value, message=status.message, mend=status.mend)
