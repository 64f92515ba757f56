"""How the source as a whole does: as badly as the worst of what it is made of."""

from collections.abc import Callable
from pathlib import Path

import structlog

from common.parts import PartState, PartStatus

log = structlog.get_logger(__name__)

SYSFS = "sysfs"

_NETLINK_MEND = "run the agent as root in the host's network namespace (hostNetwork: true)"
_SYSFS_MEND = "mount the host's sysfs, or name the right path with --sysfs"

_IDLE = PartStatus(PartState.IDLE, "this node has no NICs")
_READY = PartStatus(PartState.READY)


class Statuses:
    """Reports the part's condition whenever it changes."""

    def __init__(self, *, report: Callable[[PartStatus], None], needed: frozenset[str]) -> None:
        """``needed`` names all that must work on a node that has NICs."""
        self._report = report
        self._needed = needed
        self._well: set[str] = set()
        self._troubles: dict[str, PartStatus] = {}
        self._said: PartStatus | None = None

    def well(self, what: str, *, idle: bool) -> None:
        """Something works. ``idle``: the node has no NICs, so that nothing else matters."""
        self._troubles.pop(what, None)
        self._well.add(what)
        if self._troubles:
            self._say(next(iter(self._troubles.values())))
        elif idle and SYSFS in self._well:
            self._say(_IDLE)
        elif self._well >= self._needed:
            self._say(_READY)

    def netlink_away(self, what: str, error: Exception) -> None:
        """Nothing is heard of ``what``."""
        self._trouble(what, f"netlink tells nothing of {what}: {reason(error)}", mend=_NETLINK_MEND)

    def sysfs_away(self, path: Path, error: OSError) -> None:
        """A path in sysfs cannot be read."""
        self._trouble(SYSFS, f"{path} cannot be read: {reason(error)}; NICs are not seen there", mend=_SYSFS_MEND)

    def _trouble(self, what: str, message: str, *, mend: str) -> None:
        self._well.discard(what)
        self._troubles[what] = PartStatus(PartState.DEGRADED, message=message, mend=mend)
        self._say(self._troubles[what])

    def _say(self, status: PartStatus) -> None:
        if status == self._said:
            return
        self._said = status
        self._report(status)


def reason(error: Exception) -> str:
    """Return in a few words why something failed."""
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error)
