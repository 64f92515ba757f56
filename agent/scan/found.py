"""Results of a scan, as values."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from kubemend.agent.model.devices import DeviceId, DeviceInventory
from kubemend.agent.model.findings import Finding
from kubemend.agent.model.nics import Nic
from kubemend.agent.scan.report import Unseen
from kubemend.agent.sources.nvml.protocol import DeviceAnswer


@dataclass(frozen=True, slots=True)
class GpusFound:
    """``answers`` has each GPU's answer to a query of its own; a GPU that is missing there did not answer."""

    findings: tuple[Finding, ...] = ()
    inventory: DeviceInventory = field(default_factory=DeviceInventory)
    answers: Mapping[DeviceId, DeviceAnswer] = field(default_factory=lambda: MappingProxyType({}))
    unseen: tuple[Unseen, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LogFound:
    """Findings from the kernel log of this boot."""

    findings: tuple[Finding, ...] = ()
    unseen: tuple[Unseen, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NicsFound:
    """``silent`` names the links of a NIC that are enabled and not up."""

    nics: tuple[Nic, ...] = ()
    silent: Mapping[Nic, tuple[str, ...]] = field(default_factory=lambda: MappingProxyType({}))
    unseen: tuple[Unseen, ...] = ()


@dataclass(frozen=True, slots=True)
class Found:
    """All results. ``started``: start time, in seconds since boot, of each process named by a finding or the driver.

    A process that has ended is missing there.
    """

    gpus: GpusFound = field(default_factory=GpusFound)
    log: LogFound = field(default_factory=LogFound)
    nics: NicsFound = field(default_factory=NicsFound)
    started: Mapping[int, float] = field(default_factory=lambda: MappingProxyType({}))
