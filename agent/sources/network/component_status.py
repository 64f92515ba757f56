"""Status of the network source as a whole: that of its worst component."""

from collections.abc import Callable
from pathlib import Path

import structlog

from kubemend.common.components import ComponentState, ComponentStatus

log = structlog.get_logger(__name__)

SYSFS = "sysfs"

_NETLINK_HINT = (
    "run the agent as root in the host's network namespace (hostNetwork: true), and check --network-namespace"
)
_SYSFS_HINT = "mount the host's sysfs, or pass its path with --sysfs"

_IDLE = ComponentStatus(ComponentState.IDLE, "this node has no NICs")
_READY = ComponentStatus(ComponentState.READY)


class Statuses:
    """Reports the component's status whenever it changes."""

    def __init__(self, *, report: Callable[[ComponentStatus], None], needed: frozenset[str]) -> None:
        """``needed`` names all components that must work on a node that has NICs."""
        self._report = report
        self._needed = needed
        self._well: set[str] = set()
        self._problems: dict[str, ComponentStatus] = {}
        self._reported: ComponentStatus | None = None

    def well(self, what: str, *, idle: bool) -> None:
        """Record that a component works. ``idle``: the node has no NICs, so nothing else matters."""
        self._problems.pop(what, None)
        self._well.add(what)
        if self._problems:
            self._set_problem()
        elif idle and SYSFS in self._well:
            self._set_status(_IDLE)
        elif self._well >= self._needed:
            self._set_status(_READY)

    def netlink_away(self, what: str, error: Exception) -> None:
        """Record that netlink does not deliver ``what``."""
        self._trouble(what, f"netlink does not deliver {what}: {reason(error)}", hint=_NETLINK_HINT)

    def sysfs_away(self, path: Path, error: OSError) -> None:
        """Record that a path in sysfs cannot be read."""
        self._trouble(SYSFS, f"{path} cannot be read: {reason(error)}; NICs are not monitored", hint=_SYSFS_HINT)

    def _trouble(self, what: str, message: str, *, hint: str) -> None:
        self._well.discard(what)
        self._problems[what] = ComponentStatus(ComponentState.DEGRADED, message=message, hint=hint)
        self._set_problem()

    def _set_problem(self) -> None:
        """Report the first problem, each of which comes again at each try: every change is a line in the log."""
        self._set_status(next(iter(self._problems.values())))

    def _set_status(self, status: ComponentStatus) -> None:
        if status == self._reported:
            return
        self._reported = status
        self._report(status)


def reason(error: Exception) -> str:
    """Return the reason of a failure in short."""
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error)
