"""A finding: one fact about a device or a container that a source observed, with its time and evidence."""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from kubemend.agent.model.actions import ActionClass
from kubemend.agent.model.devices import DeviceLocator


class Source(enum.Enum):
    """The source that observed a finding."""

    KERNEL_LOG = "kernel-log"
    NVML = "nvml"
    NETLINK = "netlink"
    SYSFS = "sysfs"
    CRI = "cri"
    HEARTBEAT = "heartbeat"
    RESTART = "restart"  # the result of a restart by kubemend
    KUBELET = "kubelet"  # a container's allocatedResourcesStatus
    OPERATOR = "operator"  # an operator command
    PROOF = "proof"  # the proof of a GPU in a restart


class FindingKind(enum.StrEnum):
    """The kind of a fact; with ``Finding.code`` it keys the catalog (meanings: ``catalog.yaml``).

    Kinds that describe a state, not an occurrence, hold until their source emits ``FAULT_OVER``. When a source starts,
    it emits ``FAULT_OVER`` for every state that does not hold: a previous agent may have raised it.
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
    """The evidence that a fault no longer holds; ``Finding.code`` is the kind that is over (``LinkDown``)."""
    CLEARED = "Cleared"
    """An operator has cleared all faults of the device."""
    PROCESS_STUCK = "ProcessStuck"
    RESTARTS_INEFFECTIVE = "RestartsIneffective"
    FAULT_REPEATED = "FaultRepeated"

    # Failed proofs of a GPU (``agent.prove``)
    WRONG_RESULT = "WrongResult"
    WRONG_MEMORY = "WrongMemory"
    WRONG_COPY = "WrongCopy"
    SLOW_MEMORY = "SlowMemory"
    CUDA_ERROR = "CudaError"

    # GPU states and errors from NVML
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

    # Kernel log messages of other components, without a code of the NVIDIA driver
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

    # NIC states from netlink and sysfs
    NIC_LOST = "NicLost"
    LINK_DOWN = "LinkDown"
    LINK_FLAPPING = "LinkFlapping"
    LINK_SLOW = "LinkSlow"
    RDMA_PORT_DOWN = "RdmaPortDown"
    RDMA_ERRORS = "RdmaErrors"

    REPORTED_UNHEALTHY = "ReportedUnhealthy"
    """The device's own plugin reports it, in a container's allocatedResourcesStatus (KEP-4680)."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One fact about a device.

    ``action`` comes from the catalog; the driver's own recommendation may raise or lower it
    (``agent.health.state.fold``). ``observed_at`` is Unix time in seconds. ``boot_seconds`` is the kernel's own clock
    (seconds since boot) where the source has one: it orders causes and effects, and distinguishes a process from a
    later one with the same pid. ``key`` is unique per boot (a log sequence number, an event serial), so the same
    finding never counts twice.
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
        """Short name for people, such as ``Xid 79``."""
        return f"{self.kind.value} {self.code}".strip()
