"""What a scan has found, and its report, as values; the report's exit code."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from kubemend.agent.model.devices import DeviceId, DeviceInventory
from kubemend.agent.model.findings import Finding
from kubemend.agent.model.nics import Nic
from kubemend.agent.model.verdicts import Health, Verdict
from kubemend.agent.sources.nvml.protocol import DeviceAnswer

EXIT_CODES: Final[Mapping[Health, int]] = MappingProxyType(
    {Health.HEALTHY: 0, Health.DEGRADED: 1, Health.UNHEALTHY: 2, Health.UNKNOWN: 3}
)
"""As for monitoring plugins: OK, WARNING, CRITICAL, UNKNOWN."""

_RANK = {Health.HEALTHY: 0, Health.UNKNOWN: 1, Health.DEGRADED: 2, Health.UNHEALTHY: 3}
"""Known faults rank above unknown states (``agent.health.state.node_summary``)."""


@dataclass(frozen=True, slots=True)
class Row:
    """One device: its verdict, and its names for people. Unknown fields are empty."""

    label: str
    name: str
    pci: str
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Unseen:
    """A component that could not be checked completely: the problem in one line, and the hint."""

    part: str
    what: str
    hint: str


@dataclass(frozen=True, slots=True)
class Report:
    """All devices, the components that could not be checked, and notes that are not problems."""

    rows: tuple[Row, ...] = ()
    unseen: tuple[Unseen, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def health(self) -> Health:
        """The worst verdict.

        A component that could not be checked is at best unknown; no device at all is not a fault.
        """
        verdicts = [row.verdict.health for row in self.rows]
        return max([*verdicts, *[Health.UNKNOWN] * len(self.unseen)], key=_RANK.__getitem__, default=Health.HEALTHY)

    @property
    def exit_code(self) -> int:
        """The exit code of ``kubemend scan`` (``EXIT_CODES``)."""
        return EXIT_CODES[self.health]


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

    A process that has ended is missing there. ``knows_pids``: the pids in the kernel log are those of ``/proc``.
    """

    gpus: GpusFound = field(default_factory=GpusFound)
    log: LogFound = field(default_factory=LogFound)
    nics: NicsFound = field(default_factory=NicsFound)
    started: Mapping[int, float] = field(default_factory=lambda: MappingProxyType({}))
    knows_pids: bool = True
