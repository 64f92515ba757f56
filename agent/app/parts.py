"""The state of every part of the agent, for /readyz, metrics and the log."""

from collections.abc import Callable, Mapping

import structlog

from agent.engine.metrics import Metrics
from agent.model.parts import PartState, PartStatus

log = structlog.get_logger(__name__)


class Parts:
    """Knows how each part does. A part counts from the moment it is named."""

    def __init__(self, *, metrics: Metrics) -> None:
        self._metrics = metrics
        self._status: dict[str, PartStatus] = {}

    def reporter(self, name: str, *, also: Callable[[PartStatus], None] | None = None) -> Callable[[PartStatus], None]:
        """Name a part, and return the function by which it reports. ``also`` is called with each change."""
        self._status[name] = PartStatus(PartState.STARTING)
        self._metrics.part_ready.labels(name).set(0)

        def report(status: PartStatus) -> None:
            self._take(name, status)
            if also is not None:
                also(status)

        return report

    def all(self) -> Mapping[str, PartStatus]:
        """Return every part's status."""
        return dict(self._status)

    def ready(self) -> bool:
        """Whether all parts work, or are not needed on this node."""
        return all(status.state in (PartState.READY, PartState.IDLE) for status in self._status.values())

    def _take(self, name: str, status: PartStatus) -> None:
        if status == self._status[name]:
            return
        self._status[name] = status
        self._metrics.part_ready.labels(name).set(status.state is PartState.READY)
        say = log.warning if status.state is PartState.DEGRADED else log.info
        say("part", part=name, state=status.state.value, message=status.message, mend=status.mend)
