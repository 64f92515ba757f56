"""Convert changes of NICs into findings."""

import itertools
import time
from collections.abc import Callable

import structlog

from kubemend.agent.health.nic.rules import NicChange
from kubemend.agent.model.actions import ActionClass
from kubemend.agent.model.devices import DeviceLocator
from kubemend.agent.model.findings import Finding, FindingKind, Source

log = structlog.get_logger(__name__)

_FROM_NETLINK = (FindingKind.LINK_DOWN, FindingKind.LINK_FLAPPING)


class FindingEmitter:
    """Passes findings to ``emit``; ``classify`` returns the action class of a kind."""

    def __init__(self, *, emit: Callable[[Finding], None], classify: Callable[[FindingKind, str], ActionClass]) -> None:
        self._emit = emit
        self._classify = classify
        self._serials = itertools.count(1)
        self._key_prefix = f"network:{time.time_ns():x}"  # unique among all agents of one boot

    def emit(self, change: NicChange) -> None:
        """Log a change and emit its finding."""
        over = change.text is None
        write = (
            log.debug if over else log.info
        )  # debug: at its start the source emits FAULT_OVER for faults that never were
        write(
            "network.fault_cleared" if over else "network.fault",
            nic=str(change.pci),
            kind=change.kind.value,
            text=change.text,
        )
        self._emit(
            Finding(
                source=Source.NETLINK if change.kind in _FROM_NETLINK else Source.SYSFS,
                kind=FindingKind.FAULT_OVER if over else change.kind,
                code=change.kind.value if over else "",
                device=DeviceLocator(pci=change.pci),
                action=ActionClass.NONE if over else self._classify(change.kind, ""),
                observed_at=time.time(),
                text=change.text or "",
                boot_seconds=time.clock_gettime(time.CLOCK_BOOTTIME),
                key=f"{self._key_prefix}:{next(self._serials)}",
            )
        )
