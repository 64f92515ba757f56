"""Parse lines about network adapters into findings. Pure; the only state is which cages had a cable."""

from kubemend.agent.health.catalog.catalog import Catalog, FaultKey
from kubemend.agent.health.kmsg import line_findings
from kubemend.agent.health.kmsg.grammar import mlx5
from kubemend.agent.health.kmsg.line_findings import Seen
from kubemend.agent.health.state import evidence
from kubemend.agent.model.devices import DeviceLocator, PciAddress
from kubemend.agent.model.findings import Finding, FindingKind

_MOST_CAGES = 1024
"""A node has fewer cages than this; the limit bounds the stored cages."""

_KINDS = {
    mlx5.Meaning.FATAL: FindingKind.NIC_FATAL,
    mlx5.Meaning.TIMEOUT: FindingKind.NIC_TIMEOUT,
    mlx5.Meaning.HOT: FindingKind.NIC_HOT,
    mlx5.Meaning.UNPLUGGED: FindingKind.NIC_CABLE,
    mlx5.Meaning.CABLE_ERROR: FindingKind.NIC_CABLE,
}
_OVER = {
    mlx5.Meaning.PLUGGED: (FindingKind.NIC_CABLE,),
    mlx5.Meaning.RECOVERED: (FindingKind.NIC_FATAL, FindingKind.NIC_TIMEOUT),
}


class NicLines:
    """Parses driver messages about network adapters."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._plugged: set[tuple[PciAddress, str | None]] = set()

    def read(self, text: str, *, seen: Seen) -> tuple[Finding, ...]:
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
        if (kinds := _OVER.get(line.meaning)) is not None:
            return tuple(line_findings.over(kind, device=device, text=line.text, seen=seen) for kind in kinds)
        kind = _KINDS[line.meaning]
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
