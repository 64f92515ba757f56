"""What begins and ends on NICs, put into findings."""

import itertools
import time
from collections.abc import Callable

import structlog

from agent.health.nics import NicChange
from agent.model.actions import ActionClass
from agent.model.devices import DeviceLocator
from agent.model.findings import Finding, FindingKind, Source

log = structlog.get_logger(__name__)

_FROM_NETLINK = (FindingKind.LINK_DOWN, FindingKind.LINK_FLAPPING)


class Teller:
    """Hands findings to ``emit``; ``classify`` gives the action class of a kind."""

    def __init__(self, *, emit: Callable[[Finding], None], classify: Callable[[FindingKind, str], ActionClass]) -> None:
        self._emit = emit
        self._classify = classify
        self._serials = itertools.count(1)
        self._key_prefix = f"network:{time.time_ns():x}"  # no two agents of one boot share it

    def tell(self, change: NicChange) -> None:
        """Tell of a change."""
        over = change.text is None
        say = log.debug if over else log.info  # at its start the source tells of much that it is over, and never was
        say("network.over" if over else "network.fault", nic=str(change.pci), kind=change.kind.value, text=change.text)
        self._emit(
            Finding(
                source=Source.NETLINK if change.kind in _FROM_NETLINK else Source.SYSFS,
                kind=FindingKind.FAULT_OVER if over else change.kind,
                code=change.kind.value if over else "",
                device=DeviceLocator(pci=change.pci),
                action=ActionClass.NONE if over else self._classify(change.kind, ""),
                observed_at=time.time(),
                text=change.text or "",
                boot_seconds=time.monotonic(),
                key=f"{self._key_prefix}:{next(self._serials)}",
            )
        )
