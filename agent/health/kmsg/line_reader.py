"""Parse kernel log text into findings. Pure except ``below``; the only state comes from earlier lines of the log.

Each class reads one family of lines; those about GPUs are in ``gpu_lines``.
"""

import re
from collections.abc import Callable
from dataclasses import replace

from kubemend.agent.health import cgroup_paths
from kubemend.agent.health.catalog.catalog import Catalog, FaultKey
from kubemend.agent.health.kmsg import line_findings, provenance
from kubemend.agent.health.kmsg.gpu_lines import GpuLines
from kubemend.agent.health.kmsg.grammar import mlx5, oom, pcie, stuck
from kubemend.agent.health.kmsg.line_findings import LineContext
from kubemend.agent.health.state import evidence
from kubemend.agent.model.devices import DeviceLocator, PciAddress
from kubemend.agent.model.findings import Finding, FindingKind

_MOST_CAGES = 1024
"""A node has fewer cages than this; the limit bounds the stored cages."""

_NIC_KINDS = {
    mlx5.Meaning.FATAL: FindingKind.NIC_FATAL,
    mlx5.Meaning.TIMEOUT: FindingKind.NIC_TIMEOUT,
    mlx5.Meaning.HOT: FindingKind.NIC_HOT,
    mlx5.Meaning.UNPLUGGED: FindingKind.NIC_CABLE,
    mlx5.Meaning.CABLE_ERROR: FindingKind.NIC_CABLE,
}
_NIC_OVER = {
    mlx5.Meaning.PLUGGED: (FindingKind.NIC_CABLE,),
    mlx5.Meaning.RECOVERED: (FindingKind.NIC_FATAL, FindingKind.NIC_TIMEOUT),
}


class NicLines:
    """Parses driver messages about network adapters."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._plugged: set[tuple[PciAddress, str | None]] = set()

    def read(self, text: str, *, seen: LineContext) -> tuple[Finding, ...]:
        """Return the findings in a line."""
        line = mlx5.parse(text)
        if line is None:
            return ()
        device = DeviceLocator(pci=line.pci)
        cage = line.pci, line.module
        if line.meaning is mlx5.Meaning.PLUGGED and len(self._plugged) < _MOST_CAGES:
            self._plugged.add(cage)
        if line.meaning is mlx5.Meaning.UNPLUGGED and cage not in self._plugged:
            return ()  # at its start the driver prints this for every cage without a cable
        if (kinds := _NIC_OVER.get(line.meaning)) is not None:
            return tuple(line_findings.over(kind, device=device, text=line.text, seen=seen) for kind in kinds)
        kind = _NIC_KINDS[line.meaning]
        return (
            line_findings.make(
                kind,
                device=device,
                action=self._catalog.action(FaultKey(kind)),
                text=line.text,
                seen=seen,
                facts=((evidence.INTERFACE, line.interface), (evidence.MODULE, line.module)),
            ),
        )


Below = Callable[[PciAddress], tuple[PciAddress, ...]]
"""Returns the GPUs and network adapters at an address or below it: none for a disk, all of them for a root port.

Returns the address itself where the tree is unknown.
"""

_AER_KINDS = {
    pcie.Severity.CORRECTABLE: FindingKind.AER_CORRECTABLE,
    pcie.Severity.NON_FATAL: FindingKind.AER_NON_FATAL,
    pcie.Severity.FATAL: FindingKind.AER_FATAL,
}
_AER_HINTED = (FindingKind.AER_NON_FATAL, FindingKind.AER_FATAL)


class PcieLines:
    """Parses the lines of AER and DPC. It keeps the last announcement: the details after it are the same error."""

    def __init__(self, catalog: Catalog, *, below: Below) -> None:
        self._catalog = catalog
        self._below = below
        self._announced: tuple[pcie.Severity, frozenset[PciAddress]] | None = None

    def read(self, text: str, *, seen: LineContext) -> tuple[Finding, ...]:
        """Return the findings in a line: one per device concerned, or two per device for the end of an error."""
        line = pcie.parse(text)
        if line is None:
            return ()
        devices = self._below(line.device)
        if line.severity is None:
            return tuple(
                line_findings.over(kind, device=DeviceLocator(pci=device), text=text, seen=seen)
                for device in devices
                for kind in _AER_HINTED
            )
        if self._is_duplicate(line, devices):
            return ()
        return tuple(self._error(line.severity, line=line, device=device, text=text, seen=seen) for device in devices)

    def _is_duplicate(self, line: pcie.PcieLine, devices: tuple[PciAddress, ...]) -> bool:
        announced, self._announced = self._announced, None
        if line.meaning is pcie.Meaning.ANNOUNCED and line.severity is not None:
            self._announced = line.severity, frozenset(devices)
            return False
        return announced is not None and announced[0] is line.severity and announced[1].issuperset(devices)

    def _error(
        self, severity: pcie.Severity, *, line: pcie.PcieLine, device: PciAddress, text: str, seen: LineContext
    ) -> Finding:
        kind = _AER_KINDS[severity]
        reporter = line.reported_by or (line.device if line.device != device else None)
        return line_findings.make(
            kind,
            device=DeviceLocator(pci=device),
            action=self._catalog.action(FaultKey(kind)),
            text=text,
            seen=seen,
            facts=(
                (evidence.SEVERITY, severity.value),
                (evidence.REPORTED_BY, str(reporter) if reporter is not None else None),
            ),
        )


class ProcessLines:
    """Parses lines about processes. It keeps the last killed process: two lines report the same death."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._summarised: int | None = None

    def read(self, text: str, *, seen: LineContext) -> tuple[Finding, ...]:
        """Return the findings in a line: one at most."""
        if (killed := oom.parse(text)) is not None:
            return self._killed(killed, text=text, seen=seen)
        if (line := stuck.parse(text)) is not None:
            kind = FindingKind.SOFT_LOCKUP if line.soft_lockup else FindingKind.HUNG_TASK
            return (
                line_findings.make(
                    kind,
                    action=self._catalog.action(FaultKey(kind)),
                    text=text,
                    seen=seen,
                    pid=line.pid,
                    process_name=line.name,
                    facts=((evidence.SECONDS, str(line.seconds)),),
                ),
            )
        return ()

    def _killed(self, line: oom.OomLine, *, text: str, seen: LineContext) -> tuple[Finding, ...]:
        previous, self._summarised = self._summarised, line.pid if line.cgroup is not None else None
        if line.cgroup is None and previous == line.pid:
            return ()
        cgroup = line.cgroup or ""
        kind = FindingKind.OOM_KILL
        return (
            line_findings.make(
                kind,
                action=self._catalog.action(FaultKey(kind)),
                text=text,
                seen=seen,
                pid=line.pid,
                process_name=line.name,
                facts=(
                    (evidence.CONTAINER_ID, cgroup_paths.container_id(cgroup)),
                    (evidence.POD_UID, cgroup_paths.pod_uid(cgroup)),
                    (evidence.OOM_SCOPE, "node" if line.of_node else "cgroup"),
                ),
            ),
        )


_NVIDIA = ("NVRM", "SXid", "fallen off", "PCI ID:", "installed in")
"""The last three occur in the split lines of ``grammar.off_bus``."""

_PCIE = ("AER: ", "PCIe Bus Error", "aer_uncor", "DPC")
_NIC = ("mlx5_core", "NETDEV WATCHDOG: CPU")
_PROCESS = ("oom-kill:", "ut of memory", "soft lockup", "blocked ")

MARKERS = (*_NVIDIA, *_PCIE, *_NIC, *_PROCESS)
"""Every grammar requires one of these."""

_IN_TEXT = re.compile("|".join(map(re.escape, MARKERS)))
_IN_RAW = re.compile("|".join(map(re.escape, MARKERS)).encode())


def may_matter(raw: bytes) -> bool:
    """Cheap test for the hot path: False only for lines that no grammar matches."""
    return _IN_RAW.search(raw) is not None


def text_may_matter(text: str) -> bool:
    """``may_matter`` for a line as text."""
    return _IN_TEXT.search(text) is not None


def itself(address: PciAddress) -> tuple[PciAddress, ...]:
    """``Below`` without knowledge of the PCI tree: a line concerns the address that it names."""
    return (address,)


class LineReader:
    """Parses kernel text line by line. Most lines give no finding; none raises."""

    def __init__(self, catalog: Catalog, *, below: Below = itself) -> None:
        """Create the reader. ``below`` maps the port that reports a PCIe error to the devices that it hit."""
        self._readers: tuple[Callable[..., tuple[Finding, ...]], ...] = (
            GpuLines(catalog).read,
            PcieLines(catalog, below=below).read,
            NicLines(catalog).read,
            ProcessLines(catalog).read,
        )

    def read(self, text: str, *, seen: LineContext) -> tuple[Finding, ...]:
        """Return the findings in a line, usually none. Each has a unique key."""
        if provenance.is_of_packet(text):
            return ()
        for read in self._readers:
            if findings := read(text, seen=seen):
                first, *others = findings
                return (first, *(replace(each, key=f"{each.key}#{n}") for n, each in enumerate(others, 2)))
        return ()
