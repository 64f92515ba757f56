"""PCIe errors in the kernel log, as findings of the GPUs and network adapters that they hit. Pure but for ``below``."""

from collections.abc import Callable

from agent.health import evidence, line_findings
from agent.health.catalog import Catalog, FaultKey
from agent.health.grammar import pcie
from agent.health.line_findings import Seen
from agent.model.devices import DeviceLocator, PciAddress
from agent.model.findings import Finding, FindingKind

Below = Callable[[PciAddress], tuple[PciAddress, ...]]
"""Which GPUs and network adapters are at an address or below it: none for a disk, all of them for a root port. The
address itself where nobody can tell."""

_KINDS = {
    pcie.Severity.CORRECTABLE: FindingKind.AER_CORRECTABLE,
    pcie.Severity.NON_FATAL: FindingKind.AER_NON_FATAL,
    pcie.Severity.FATAL: FindingKind.AER_FATAL,
}
_MENDED = (FindingKind.AER_NON_FATAL, FindingKind.AER_FATAL)


class PcieLines:
    """Reads the lines of AER and DPC. It remembers the last announcement: the details after it are the same error."""

    def __init__(self, catalog: Catalog, *, below: Below) -> None:
        self._catalog = catalog
        self._below = below
        self._announced: tuple[pcie.Severity, frozenset[PciAddress]] | None = None

    def read(self, text: str, *, seen: Seen) -> tuple[Finding, ...]:
        """Return the findings in a line: one for each device that it is about, or two where it takes back."""
        line = pcie.parse(text)
        if line is None:
            return ()
        devices = self._below(line.device)
        if line.severity is None:
            return tuple(
                line_findings.over(kind, device=DeviceLocator(pci=device), text=text, seen=seen)
                for device in devices
                for kind in _MENDED
            )
        if self._told_before(line, devices):
            return ()
        return tuple(self._error(line.severity, line=line, device=device, text=text, seen=seen) for device in devices)

    def _told_before(self, line: pcie.PcieLine, devices: tuple[PciAddress, ...]) -> bool:
        announced, self._announced = self._announced, None
        if line.said is pcie.Said.ANNOUNCED and line.severity is not None:
            self._announced = line.severity, frozenset(devices)
            return False
        return announced is not None and announced[0] is line.severity and announced[1].issuperset(devices)

    def _error(
        self, severity: pcie.Severity, *, line: pcie.PcieLine, device: PciAddress, text: str, seen: Seen
    ) -> Finding:
        kind = _KINDS[severity]
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
