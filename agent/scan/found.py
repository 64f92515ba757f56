"""What the looks of a scan bring, as values."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from agent.model.devices import GpuUuid, Inventory
from agent.model.findings import Finding
from agent.model.nics import Nic
from agent.scan.report import Unseen
from agent.sources.nvml.protocol import DeviceAnswer


@dataclass(frozen=True, slots=True)
class GpusFound:
    """``answers`` has how each GPU answered by itself; one that is missing there did not."""

    findings: tuple[Finding, ...] = ()
    inventory: Inventory = field(default_factory=Inventory)
    answers: Mapping[GpuUuid, DeviceAnswer] = field(default_factory=lambda: MappingProxyType({}))
    unseen: tuple[Unseen, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LogFound:
    """What the kernel log of this boot says."""

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
    """Everything. ``started``: when each process began that a finding or the driver names, in seconds since boot.

    A process that has ended is missing there.
    """

    gpus: GpusFound = field(default_factory=GpusFound)
    log: LogFound = field(default_factory=LogFound)
    nics: NicsFound = field(default_factory=NicsFound)
    started: Mapping[int, float] = field(default_factory=lambda: MappingProxyType({}))
