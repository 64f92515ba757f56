"""A finding: one fact that a source saw about a device or a container, with its time and its evidence."""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from agent.model.actions import ActionClass
from agent.model.devices import DeviceLocator


class Source(enum.Enum):
    """Who saw it."""

    KERNEL_LOG = "kernel-log"
    NVML = "nvml"
    NETLINK = "netlink"
    CRI = "cri"
    HEARTBEAT = "heartbeat"
    RESTART = "restart"  # what became of a restart of ours


class FindingKind(enum.Enum):
    """What sort of fact it is; with ``Finding.code`` it keys the catalog."""

    XID = "Xid"
    SXID = "SXid"
    OFF_BUS = "FallenOffBus"
    RECOVERY_ACTION = "RecoveryAction"
    DEVICE_LOST = "DeviceLost"
    DEVICE_BACK = "DeviceBack"
    APP_GONE = "AppGone"
    """The process that an app-class fault concerned has ended: the evidence that such a fault is over."""
    PROCESS_STUCK = "ProcessStuck"
    RESTARTS_IN_VAIN = "RestartsInVain"
    SUSPICION_OVER = "SuspicionOver"
    """The evidence against a suspicion; ``Finding.code`` says of which kind it was."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One fact about a device.

    ``action`` is what the catalog asks for; the driver's own word may raise or lower it (``agent.health.fold``).
    ``observed_at`` is Unix time in seconds. ``boot_seconds`` is the kernel's own clock (seconds since boot) where
    the source has one: it orders causes and effects, and tells a process from a later one with the same pid.
    ``key`` is unique per boot (a log sequence number, an event serial): the same finding never counts twice.
    """

    source: Source
    kind: FindingKind
    code: str
    device: DeviceLocator
    action: ActionClass
    observed_at: float
    text: str = ""
    pid: int | None = None
    process_name: str | None = None
    boot_seconds: float | None = None
    key: str = ""
    evidence: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def title(self) -> str:
        """A short name for people, such as ``Xid 79``."""
        return f"{self.kind.value} {self.code}".strip()
