"""The readings of one GPU in one poll: plain numbers by name. Values that could not be read are omitted."""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType


class Vital(enum.StrEnum):
    """The values that are read. Counters count since the driver was loaded or the GPU was reset ("volatile").

    Strings, because each poll looks up hundreds: the hash of another ``Enum`` is computed in Python.
    """

    RECOVERY_ACTION = "recovery-action"  # NVML_GPU_RECOVERY_ACTION_*
    MIG_MODE = "mig-mode"  # 1: on
    REMAP_PENDING = "remap-pending"  # 1: yes
    REMAP_FAILED = "remap-failed"  # 1: yes
    CLOCKS_EVENT_REASONS = "clocks-event-reasons"  # bits of nvmlClocksEventReason*
    TEMPERATURE = "temperature"  # °C, as all temperatures
    TEMPERATURE_MARGIN = "temperature-margin"  # to the nearest slowdown threshold
    MEMORY_TEMPERATURE = "memory-temperature"
    UTILIZATION = "utilization"  # percent of the last sample period in which a kernel ran
    SM_CLOCK = "sm-clock"  # MHz
    PSTATE = "pstate"  # 0 is the fastest
    POWER = "power"  # mW, current draw

    SLOWDOWN_TEMPERATURE = "slowdown-temperature"
    SLOWDOWN_MARGIN = "slowdown-margin"  # the margin at which hardware slows the GPU down (NVML field 194)
    MEMORY_MAX_TEMPERATURE = "memory-max-temperature"
    SM_CLOCK_MAX = "sm-clock-max"  # MHz
    POWER_LIMIT = "power-limit"  # mW, the one in force

    RETIREMENT_PENDING = "retirement-pending"  # 1: yes
    ECC_CORRECTED = "ecc-corrected"  # counter
    ECC_UNCORRECTED = "ecc-uncorrected"  # counter
    ECC_UNCORRECTED_DRAM = "ecc-uncorrected-dram"  # counter
    ECC_UNCORRECTED_SRAM = "ecc-uncorrected-sram"  # counter
    SRAM_THRESHOLD = "sram-threshold"  # 1: exceeded
    FABRIC_STATE = "fabric-state"  # NVML_GPU_FABRIC_STATE_*
    FABRIC_STATUS = "fabric-status"  # nvmlReturn_t of the registration
    FABRIC_HEALTH = "fabric-health"  # NVML_GPU_FABRIC_HEALTH_MASK_*: fields of 2 and 4 bits
    PCIE_GENERATION = "pcie-generation"
    PCIE_GENERATION_MAX = "pcie-generation-max"  # of this GPU in this slot
    PCIE_WIDTH = "pcie-width"  # lanes
    PCIE_WIDTH_MAX = "pcie-width-max"  # of this GPU in this slot
    PCIE_REPLAYS = "pcie-replays"  # counter
    PCIE_CORRECTABLE = "pcie-correctable"  # counter, as the others below
    PCIE_NAKS_RECEIVED = "pcie-naks-received"
    PCIE_RECEIVER = "pcie-receiver"
    PCIE_BAD_TLP = "pcie-bad-tlp"
    PCIE_NAKS_SENT = "pcie-naks-sent"
    PCIE_BAD_DLLP = "pcie-bad-dllp"
    PCIE_NON_FATAL = "pcie-non-fatal"
    PCIE_FATAL = "pcie-fatal"
    PCIE_UNSUPPORTED_REQUEST = "pcie-unsupported-request"
    PCIE_LCRC = "pcie-lcrc"
    PCIE_LANE = "pcie-lane"

    NVLINK_ACTIVE = "nvlink-active"  # 1: yes; this and the next are per link
    NVLINK_REPLAYS = "nvlink-replays"  # counter
    NVLINK_RECOVERIES = "nvlink-recoveries"  # counter
    NVLINK_RECEIVE_ERRORS = "nvlink-receive-errors"  # counter
    NVLINK_RECOVERY_EVENTS = "nvlink-recovery-events"  # counter


Key = tuple[Vital, int]
"""A vital, and the number of its NVLink (0 for values of the whole GPU)."""


@dataclass(frozen=True, slots=True)
class Vitals:
    """The values that one poll read of one GPU.

    ``values`` holds the values read, ``errors`` the nvmlReturn_t of reads that failed other than with "not supported".
    A vital in neither was not queried in this poll, or this GPU or driver does not have it. ``full`` is True when the
    poll queried all vitals, not only those read every time.
    """

    values: Mapping[Key, int] = field(default_factory=lambda: MappingProxyType({}))
    errors: Mapping[Key, int] = field(default_factory=lambda: MappingProxyType({}))
    full: bool = False

    def get(self, vital: Vital, link: int = 0) -> int | None:
        """Return a value, or None where it is unknown."""
        return self.values.get((vital, link))

    def by_link(self, vital: Vital) -> dict[int, int]:
        """Return the known values of a vital that each NVLink has, by link number."""
        return {link: value for (each, link), value in self.values.items() if each is vital}
