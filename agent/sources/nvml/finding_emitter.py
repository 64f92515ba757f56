"""Convert messages of the NVML worker into findings: one per change, with its action class and a unique key."""

import itertools
import time
from collections.abc import Callable

import structlog

from kubemend.agent.health.gpu import fold as vitals_fold
from kubemend.agent.health.gpu.gpu_inventory_state import KnownGpus
from kubemend.agent.health.gpu.limits import Limits
from kubemend.agent.health.gpu.record import Record
from kubemend.agent.model.actions import ActionClass
from kubemend.agent.model.devices import DeviceId, DeviceLocator, PciAddress
from kubemend.agent.model.findings import Finding, FindingKind, Source
from kubemend.agent.sources.nvml import changes, protocol

log = structlog.get_logger(__name__)

OnInventory = Callable[[KnownGpus], None]


class FindingEmitter:
    """Keeps the view of all polls, and emits its changes.

    ``known_before`` is what previous agents of this boot have seen. ``on_inventory`` receives all known GPUs whenever
    they change.
    """

    def __init__(
        self,
        *,
        emit: Callable[[Finding], None],
        classify: Callable[[FindingKind, str], ActionClass],
        known_before: KnownGpus,
        on_inventory: OnInventory,
        limits: Limits,
    ) -> None:
        self._emit = emit
        self._classify = classify
        self._on_inventory = on_inventory
        self._limits = limits
        self._known = known_before
        self._dismissed: set[str] = set()
        self._vitals = {
            uuid: vitals_fold.GpuVitals(record=Record(links_seen_up=links, links_remembered=True))
            for uuid, links in known_before.links.items()
        }
        self._polled_at = float("-inf")  # Unix time
        self._serials = itertools.count(1)
        self._key_prefix = f"nvml:{time.time_ns():x}"  # unique among all agents of one boot
        self.view = changes.of_earlier_agents(known_before.gpus, reset_required=known_before.reset_required)

    def snapshot(self, snapshot: protocol.Snapshot, *, after_gap: bool) -> None:
        """Process one poll; ``after_gap``: NVML has not been polled in the time before it."""
        before = changes.after_gap(self.view) if after_gap else self.view
        self.view, changed = changes.fold(before, snapshot)
        self._polled_at = snapshot.taken_at
        self._drop_dismissed()
        for change in changed:
            self._emit_change(change, observed_at=snapshot.taken_at)
        for slot in snapshot.slots:
            self._take_vitals(slot, snapshot)
        self._remember()

    def xid(self, event: protocol.XidEvent) -> None:
        """Process an Xid."""
        self._emit_change(changes.of_xid(event), observed_at=event.observed_at)

    def event(self, event: protocol.DeviceEvent, *, clock: float) -> None:
        """Process another event; ``clock`` is the node's monotonic clock now."""
        change = changes.of_event(event)
        vitals = self._vitals.get(event.uuid, vitals_fold.GpuVitals())
        self._vitals[event.uuid] = vitals_fold.begun(vitals, change.kind, now=clock)
        self._emit_change(change, observed_at=event.observed_at)

    def required_by_log(self, pci: PciAddress, *, at: float) -> None:
        """Process that the kernel log has reported a requirement of the driver for this GPU, at that Unix time.

        The log may be read late. If NVML has been polled since, it has reported before that nothing is required; the
        next poll does so again.
        """
        if at < self._polled_at:
            self.view = changes.after_gap(self.view, only=pci)

    def unobserved(self, device: str) -> frozenset[FindingKind]:
        """Return the kinds of faults that NVML neither shows nor rules out on a GPU that answers."""
        state = self._state(device)
        if state is None or not state.answers:
            return frozenset()
        unreported = not state.reports_action and state.recovery_action == changes.NO_ACTION
        requirement = frozenset({FindingKind.RECOVERY_ACTION} if unreported else ())
        return self._vitals.get(state.gpu.uuid, vitals_fold.GpuVitals()).unobserved | requirement

    def silent(self) -> frozenset[DeviceId]:
        """Return the GPUs whose current state is unknown: no answer, or the fabric manager has not initialized them."""
        mute = (uuid for uuid, state in self.view.gpus.items() if not state.answers)
        joining = (uuid for uuid, vitals in self._vitals.items() if vitals.joins_fabric(self._limits))
        return self.view.ambiguous.union(mute, joining)

    def forget(self, device: str) -> None:
        """Stop missing a GPU (by UUID or PCI address) that an operator has declared gone.

        Its faults that are not observed are over, until NVML shows them again.

        That the driver requires nothing is reported again: of the faults that only their source ends, the operator may
        mean a requirement that the kernel log alone has reported.
        """
        state = self._state(device)
        for kind in sorted(self.unobserved(device), key=lambda each: each.value):
            assert state is not None
            self._emit_change(changes.over(kind, where=state.where), observed_at=time.time())
        if state is not None and (vitals := self._vitals.get(state.gpu.uuid)) is not None:
            self._vitals[state.gpu.uuid] = vitals_fold.cleared(vitals)
        self.view = changes.after_gap(self.view)
        self._dismissed.add(device)
        self._drop_dismissed()
        self._remember()

    def _state(self, device: str) -> changes.GpuState | None:
        return next((state for state in self.view.gpus.values() if device in state.names), None)

    def reset_counters(self) -> None:
        """Reset the stored counters: after a GPU reset, or with a new driver, counters start from other values."""
        self._vitals = {uuid: vitals_fold.renewed(vitals) for uuid, vitals in self._vitals.items()}

    def _drop_dismissed(self) -> None:
        """Drop GPUs that need not come back: immediately, or when a new nvmlInit has shown that they are missing."""
        for device in self._dismissed:
            self.view = changes.without_missing(self.view, device)
        self._dismissed = {device for device in self._dismissed if changes.is_lost(self.view, device)}

    def _remember(self) -> None:
        gpus = {uuid: state.gpu.pci for uuid, state in self.view.gpus.items()}
        self._vitals = {uuid: vitals for uuid, vitals in self._vitals.items() if uuid in gpus}
        links = {uuid: links for uuid, vitals in self._vitals.items() if (links := vitals.record.links_seen_up)}
        required = frozenset(uuid for uuid, state in self.view.gpus.items() if state.reset_required)
        known = KnownGpus(gpus, links, required)
        if known != self._known:
            self._known = known
            self._on_inventory(known)

    def _take_vitals(self, slot: protocol.Slot, snapshot: protocol.Snapshot) -> None:
        if slot.gpu is None or slot.vitals is None:
            return
        where = DeviceLocator(uuid=slot.gpu.uuid, pci=slot.gpu.pci)
        before = self._vitals.get(slot.gpu.uuid, vitals_fold.GpuVitals())
        self._vitals[slot.gpu.uuid], notices = vitals_fold.fold(
            before, slot.vitals, now=snapshot.clock, limits=self._limits
        )
        for notice in notices:
            change = changes.Change(kind=notice.kind, code=notice.code, device=where, text=notice.text)
            self._emit_change(change, observed_at=snapshot.taken_at)

    def _emit_change(self, change: changes.Change, *, observed_at: float) -> None:
        finding = Finding(
            source=Source.NVML,
            kind=change.kind,
            code=change.code,
            device=change.device,
            action=self._classify(change.kind, change.code),
            observed_at=observed_at,
            text=change.text,
            key=f"{self._key_prefix}:{next(self._serials)}",
            evidence=change.evidence,
        )
        log.debug(
            "nvml.finding", kind=finding.kind.value, code=finding.code, device=str(finding.device), key=finding.key
        )
        self._emit(finding)
