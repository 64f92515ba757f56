"""Parse the NVIDIA driver's lines about GPUs and NVSwitches into findings.

Pure; the only state comes from the log itself: the UUID that the driver gave for each address, and the lines of a
message that a log tool has split.
"""

from kubemend.agent.health.catalog.catalog import Catalog, FaultKey
from kubemend.agent.health.kmsg import line_findings
from kubemend.agent.health.kmsg.grammar import gpu_place, gpu_uuid, nvlink5, nvrm_assert, off_bus, sxid, xid
from kubemend.agent.health.kmsg.line_findings import LineContext
from kubemend.agent.health.state import evidence
from kubemend.agent.model.actions import ActionClass
from kubemend.agent.model.devices import DeviceId, DeviceLocator, PciAddress
from kubemend.agent.model.findings import Finding, FindingKind

_MOST_GPUS = 1024
"""A node has fewer GPUs than this; the limit bounds the stored addresses."""

_PLACED = frozenset({"13", "31"})
"""Xids that name the location on the chip."""


class GpuLines:
    """Parses the lines of the NVIDIA driver."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._joiner = off_bus.Joiner()
        self._uuids: dict[PciAddress, DeviceId] = {}

    def read(self, text: str, *, seen: LineContext) -> tuple[Finding, ...]:
        """Return the findings in a line: one at most."""
        if (xid_line := xid.parse(text)) is not None:
            return (self._xid(xid_line, seen=seen),)
        if (sxid_line := sxid.parse(text)) is not None:
            return (self._sxid(sxid_line, seen=seen),)
        if (named := gpu_uuid.parse(text)) is not None:
            self._remember(*named)
            return ()
        if (failed := nvrm_assert.parse(text)) is not None:
            return (self._assertion(failed, seen=seen),)
        text = self._joiner.join(text)
        if (lost := off_bus.parse(text)) is not None:
            return (self._off_bus(lost, text=text, seen=seen),)
        return ()

    def _remember(self, pci: PciAddress, uuid: DeviceId) -> None:
        if pci in self._uuids or len(self._uuids) < _MOST_GPUS:
            self._uuids[pci] = uuid

    def _xid(self, line: xid.XidLine, *, seen: LineContext) -> Finding:
        fault = FaultKey(FindingKind.XID, line.code)
        nvlink = nvlink5.parse(line.drivers_text)
        rule = self._catalog.subcode(fault, nvlink.registers) if nvlink is not None else None
        place = gpu_place.parse(line.drivers_text) if line.code in _PLACED else gpu_place.NOWHERE
        return line_findings.make(
            fault.kind,
            code=fault.code,
            device=DeviceLocator(pci=line.pci, gpu_instance=line.gpu_instance, compute_instance=line.compute_instance),
            action=self._action(fault, line=line, nvlink=nvlink),
            text=line.text,
            seen=seen,
            pid=line.pid,
            process_name=line.name,
            facts=(
                (evidence.CAUSED_BY_XID, line.caused_by),
                (evidence.RECOVERY_ACTION, line.recovery_action),
                (evidence.SEVERITY, line.severity),
                (evidence.GPU_UUID, self._uuids.get(line.pci)),
                (evidence.LINK, str(nvlink.link) if nvlink is not None else None),
                (evidence.SUBCODE, str(nvlink.registers.number) if nvlink is not None else None),
                (evidence.SUBCODE_NAME, rule.name if rule is not None else None),
                (evidence.GPC, place.gpc),
                (evidence.TPC, place.tpc),
                (evidence.SM, place.sm),
                (evidence.MMU_CLIENT, place.mmu_client),
            ),
        )

    def _action(self, fault: FaultKey, *, line: xid.XidLine, nvlink: nvlink5.Nvlink5 | None) -> ActionClass:
        if line.recovery_action is not None:
            return self._catalog.action(FaultKey(FindingKind.RECOVERY_ACTION, line.recovery_action))
        if line.caused_by is not None:
            return ActionClass.NONE  # the driver names the cause, which has its own line
        registers = nvlink.registers if nvlink is not None else None
        return self._catalog.action(fault, severity=line.severity, registers=registers)

    def _sxid(self, line: sxid.SxidLine, *, seen: LineContext) -> Finding:
        fault = FaultKey(FindingKind.SXID, line.code)
        return line_findings.make(
            fault.kind,
            code=fault.code,
            device=DeviceLocator(pci=line.pci),
            action=self._catalog.action(fault, severity=line.severity),
            text=line.text,
            seen=seen,
            facts=(
                (evidence.SEVERITY, line.severity),
                (evidence.LINK, str(line.link) if line.link is not None else None),
                (evidence.NVSWITCH, line.switch),
            ),
        )

    def _off_bus(self, pci: PciAddress, *, text: str, seen: LineContext) -> Finding:
        return line_findings.make(
            FindingKind.OFF_BUS,
            device=DeviceLocator(pci=pci),
            action=self._catalog.action(FaultKey(FindingKind.OFF_BUS)),
            text=text,
            seen=seen,
            facts=((evidence.GPU_UUID, self._uuids.get(pci)),),
        )

    def _assertion(self, failed: str, *, seen: LineContext) -> Finding:
        kind = FindingKind.NVRM_ASSERT
        return line_findings.make(kind, action=self._catalog.action(FaultKey(kind)), text=failed, seen=seen)
