"""Parse PCIe errors in the kernel log into findings of the GPUs and network adapters they hit.

Pure except ``below``.
"""

from collections.abc import Callable

from kubemend.agent.health.catalog.catalog import Catalog, FaultKey
from kubemend.agent.health.kmsg import line_findings
from kubemend.agent.health.kmsg.grammar import pcie
from kubemend.agent.health.kmsg.line_findings import Seen
from kubemend.agent.health.state import evidence
from kubemend.agent.model.devices import DeviceLocator, PciAddress
from kubemend.agent.model.findings import Finding, FindingKind

Below = Callable[[PciAddress], tuple[PciAddress, ...]]
"""Returns the GPUs and network adapters at an address or below it: none for a disk, all of them for a root port.

Returns the address itself where the tree is unknown.
"""

_KINDS = {
    pcie.Severity.CORRECTABLE: FindingKind.AER_CORRECTABLE,
    pcie.Severity.NON_FATAL: FindingKind.AER_NON_FATAL,
    pcie.Severity.FATAL: FindingKind.AER_FATAL,
}
_HINTED = (FindingKind.AER_NON_FATAL, FindingKind.AER_FATAL)


class PcieLines:
    """Parses the lines of AER and DPC. It keeps the last announcement: the details after it are the same error."""

    def __init__(self, catalog: Catalog, *, below: Below) -> None:
        self._catalog = catalog
        self._below = below
        self._announced: tuple[pcie.Severity, frozenset[PciAddress]] | None = None

    def read(self, text: str, *, seen: Seen) -> tuple[Finding, ...]:
        """Return the findings in a line: one per device concerned, or two per device for the end of an error."""
        line = pcie.parse(text)
        if line is None:
            return ()
        devices = self._below(line.device)
        if line.severity is None:
            return tuple(
                line_findings.over(kind, device=DeviceLocator(pci=device), text=text, seen=seen)
                for device in devices
                for kind in _HINTED
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
