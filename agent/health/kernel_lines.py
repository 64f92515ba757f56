"""From the kernel's words to a finding. Pure; it remembers only which UUID the driver gave to which address."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from agent.health import evidence
from agent.health.catalog import Catalog, FaultKey
from agent.health.grammar import gpu_uuid, off_bus, sxid, xid
from agent.model.actions import ActionClass
from agent.model.devices import DeviceLocator, GpuUuid, PciAddress
from agent.model.findings import Finding, FindingKind, Source

_MOST_GPUS = 1024
"""More addresses than this are not GPUs of one node; the memory of them stays bounded."""

WORDS = ("NVRM", "SXid", "fallen off", "PCI ID:", "installed in")
"""No grammar takes a line without one of these; the last three are in the split lines of ``off_bus``."""

_RAW_WORDS = tuple(word.encode() for word in WORDS)
_UNPRINTABLE = dict.fromkeys((*range(0x20), *range(0x7F, 0xA0)), " ")


@dataclass(frozen=True, slots=True)
class Seen:
    """When and as what a line was read; see ``Finding`` for the units."""

    observed_at: float
    boot_seconds: float | None = None
    key: str = ""
    evidence: tuple[tuple[str, str], ...] = ()


def may_matter(raw: bytes) -> bool:
    """Cheap test for the hot path: False only for lines that no grammar here would take."""
    return any(word in raw for word in _RAW_WORDS)


class LineReader:
    """Reads the kernel's words line by line. Most lines give nothing; none raises."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._joiner = off_bus.Joiner()
        self._uuids: dict[PciAddress, GpuUuid] = {}

    def read(self, text: str, *, seen: Seen) -> Finding | None:
        """Return the finding that a line is, or None for a line that means nothing."""
        if (xid_line := xid.parse(text)) is not None:
            return self._xid(xid_line, seen=seen)
        if (sxid_line := sxid.parse(text)) is not None:
            return self._sxid(sxid_line, seen=seen)
        if (named := gpu_uuid.parse(text)) is not None:
            self._remember(*named)
            return None
        text = self._joiner.join(text)
        if (lost := off_bus.parse(text)) is not None:
            return self._off_bus(lost, text=text, seen=seen)
        return None

    def _remember(self, pci: PciAddress, uuid: GpuUuid) -> None:
        if pci in self._uuids or len(self._uuids) < _MOST_GPUS:
            self._uuids[pci] = uuid

    def _xid(self, line: xid.XidLine, *, seen: Seen) -> Finding:
        fault = FaultKey(FindingKind.XID, line.code)
        if line.recovery_action is not None:
            action = self._catalog.action(FaultKey(FindingKind.RECOVERY_ACTION, line.recovery_action))
        elif line.caused_by is not None:
            action = ActionClass.NONE  # the driver names the cause, which has its own line
        else:
            action = self._catalog.action(fault, severity=line.severity)
        device = DeviceLocator(pci=line.pci, gpu_instance=line.gpu_instance, compute_instance=line.compute_instance)
        return Finding(
            source=Source.KERNEL_LOG,
            kind=fault.kind,
            code=fault.code,
            device=device,
            action=action,
            observed_at=seen.observed_at,
            text=_printable(line.text),
            pid=line.pid,
            process_name=_printable(line.name) if line.name is not None else None,
            boot_seconds=seen.boot_seconds,
            key=seen.key,
            evidence=_evidence(
                seen,
                (evidence.CAUSED_BY_XID, line.caused_by),
                (evidence.RECOVERY_ACTION, line.recovery_action),
                (evidence.SEVERITY, line.severity),
                (evidence.GPU_UUID, self._uuids.get(line.pci)),
            ),
        )

    def _sxid(self, line: sxid.SxidLine, *, seen: Seen) -> Finding:
        return Finding(
            source=Source.KERNEL_LOG,
            kind=FindingKind.SXID,
            code=line.code,
            device=DeviceLocator(pci=line.pci),
            action=self._catalog.action(FaultKey(FindingKind.SXID, line.code), severity=line.severity),
            observed_at=seen.observed_at,
            text=_printable(line.text),
            boot_seconds=seen.boot_seconds,
            key=seen.key,
            evidence=_evidence(
                seen,
                (evidence.SEVERITY, line.severity),
                (evidence.LINK, str(line.link) if line.link is not None else None),
                (evidence.NVSWITCH, line.switch),
            ),
        )

    def _off_bus(self, pci: PciAddress, *, text: str, seen: Seen) -> Finding:
        return Finding(
            source=Source.KERNEL_LOG,
            kind=FindingKind.OFF_BUS,
            code="",
            device=DeviceLocator(pci=pci),
            action=self._catalog.action(FaultKey(FindingKind.OFF_BUS)),
            observed_at=seen.observed_at,
            text=_printable(text),
            boot_seconds=seen.boot_seconds,
            key=seen.key,
            evidence=_evidence(seen, (evidence.GPU_UUID, self._uuids.get(pci))),
        )


def _evidence(seen: Seen, *facts: tuple[str, str | None]) -> Mapping[str, str]:
    known = {name: value for name, value in facts if value is not None}
    return MappingProxyType(known | dict(seen.evidence))


def _printable(text: str) -> str:
    """Findings go to terminals and conditions: control characters become blanks, blanks become one."""
    return " ".join(text.translate(_UNPRINTABLE).split())
