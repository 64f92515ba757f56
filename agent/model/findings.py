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
    SYSFS = "sysfs"
    CRI = "cri"
    HEARTBEAT = "heartbeat"
    RESTART = "restart"  # what became of a restart of ours
    KUBELET = "kubelet"  # a container's allocatedResourcesStatus
    OPERATOR = "operator"  # a person's word


class FindingKind(enum.Enum):
    """What sort of fact it is; with ``Finding.code`` it keys the catalog (what each means: ``catalog.yaml``).

    Kinds that say how something is, rather than what happened, hold until the source that raised them says
    ``FAULT_OVER``. At its start a source says so of all that it finds not to hold: an earlier agent may have raised it.
    """

    XID = "Xid"
    SXID = "SXid"
    OFF_BUS = "FallenOffBus"
    RECOVERY_ACTION = "RecoveryAction"
    DEVICE_LOST = "DeviceLost"
    DEVICE_BACK = "DeviceBack"
    APP_GONE = "AppGone"
    """The process that an app-class fault concerned has ended: the evidence that such a fault is over."""
    FAULT_OVER = "FaultOver"
    """The evidence that something no longer holds; ``Finding.code`` is the kind that is over (``LinkDown``)."""
    CLEARED = "Cleared"
    """An operator's word that all that is held against the device is dealt with."""
    PROCESS_STUCK = "ProcessStuck"
    RESTARTS_IN_VAIN = "RestartsInVain"
    FAULT_REPEATED = "FaultRepeated"

    # What NVML shows of a GPU
    GPU_UNAVAILABLE = "GpuUnavailable"
    MEMORY_POISONED = "MemoryPoisoned"
    NVML_ERROR = "NvmlError"  # codes are NVML's return codes
    ECC_UNCORRECTED = "EccUncorrected"
    ECC_SRAM_THRESHOLD = "EccSramThreshold"
    ECC_CORRECTED_RATE = "EccCorrectedRate"
    ROW_REMAP_PENDING = "RowRemapPending"
    ROW_REMAP_FAILED = "RowRemapFailed"
    PAGE_RETIREMENT_PENDING = "PageRetirementPending"
    NVLINK_DOWN = "NvLinkDown"
    NVLINK_ERRORS = "NvLinkErrors"
    FABRIC_FAILED = "FabricFailed"
    FABRIC_DEGRADED = "FabricDegraded"
    PCIE_NARROW = "PcieNarrow"
    PCIE_SLOW = "PcieSlow"
    PCIE_ERRORS = "PcieErrors"
    THROTTLED = "Throttled"
    HOT = "Hot"
    SLOW_UNDER_LOAD = "SlowUnderLoad"

    # What the kernel log says of other parts than the NVIDIA driver's own codes
    AER_CORRECTABLE = "AerCorrectable"
    AER_NON_FATAL = "AerNonFatal"
    AER_FATAL = "AerFatal"
    NVRM_ASSERT = "NvrmAssert"
    NIC_FATAL = "NicFatal"
    NIC_TIMEOUT = "NicTimeout"
    NIC_HOT = "NicHot"
    NIC_CABLE = "NicCable"
    OOM_KILL = "OomKill"
    SOFT_LOCKUP = "SoftLockup"
    HUNG_TASK = "HungTask"

    # What netlink and sysfs show of a NIC
    NIC_LOST = "NicLost"
    LINK_DOWN = "LinkDown"
    LINK_FLAPPING = "LinkFlapping"
    LINK_SLOW = "LinkSlow"
    RDMA_PORT_DOWN = "RdmaPortDown"
    RDMA_ERRORS = "RdmaErrors"

    REPORTED_UNHEALTHY = "ReportedUnhealthy"
    """The device's own plugin says so, in a container's allocatedResourcesStatus (KEP-4680)."""


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
