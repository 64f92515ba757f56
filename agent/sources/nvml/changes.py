"""Compute what changed between two polls of NVML. Pure: last view and snapshot in, next view and changes out.

A GPU is lost only when NVML reports it, or when every index has been identified and none of them is this GPU. An index
that could not be read may be that GPU, and then no change is emitted.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from kubemend.agent.health.gpu.readings import Vital
from kubemend.agent.health.gpu.speed_rules import BOARD_FAULTS
from kubemend.agent.model.devices import DeviceId, DeviceLocator, Gpu, PciAddress
from kubemend.agent.model.findings import FindingKind
from kubemend.agent.sources.nvml.protocol import Condition, DeviceEvent, DeviceEventKind, Slot, Snapshot, XidEvent

NO_ACTION = 0  # NVML_GPU_RECOVERY_ACTION_NONE
GPU_RESET = 1  # NVML_GPU_RECOVERY_ACTION_GPU_RESET


_RANK = {Condition.ANSWERS: 0, Condition.UNREADABLE: 1, Condition.RESET_REQUIRED: 2, Condition.LOST: 3}

NO_INDEX = -1
"""NVML index of a GPU that only a previous agent has seen."""


@dataclass(frozen=True, slots=True)
class GpuState:
    """A GPU that NVML has shown on this boot, in its last known state.

    ``listed``: NVML lists it now. ``answers``: it answered the last poll, even if only that it needs a reset.
    ``answered`` is False until this agent has had an answer from it. ``recovery_action`` is the driver's recommendation
    (NVML field 230; GPU reset where every call answers RESET_REQUIRED), None while it is unknown, or the GPU is lost.
    ``reset_required``: every call answered RESET_REQUIRED when it was last read. ``reports_action``: the driver has the
    field of the recommendation.
    """

    gpu: Gpu
    listed: bool = False
    answers: bool = False
    answered: bool = False
    lost: bool = False
    recovery_action: int | None = None
    reset_required: bool = False
    reports_action: bool = False
    remap_pending: bool | None = None
    remap_failed: bool | None = None

    @property
    def names(self) -> tuple[str, str]:
        """The names used for it elsewhere: UUID and PCI address."""
        return self.gpu.uuid, str(self.gpu.pci)

    @property
    def where(self) -> DeviceLocator:
        """Its place in findings."""
        return DeviceLocator(uuid=self.gpu.uuid, pci=self.gpu.pci)


@dataclass(frozen=True, slots=True)
class View:
    """The combined result of the polls so far.

    ``complete`` is False when some index could not be identified. ``unidentified_lost`` counts lost GPUs that were
    never seen healthy. ``unidentified_faults`` are the board errors (nvmlReturn_t) of GPUs that could not be
    identified. ``unreadable`` lists the GPUs that could not be read, with the reason. ``ambiguous`` are UUIDs that
    several GPUs have: which of them a value is of cannot be determined. ``without_events``: as in ``Snapshot``.
    """

    gpus: Mapping[DeviceId, GpuState] = field(default_factory=lambda: MappingProxyType({}))
    complete: bool = False
    unidentified_lost: int = 0
    unidentified_faults: frozenset[int] = frozenset()
    unreadable: tuple[str, ...] = ()
    ambiguous: frozenset[DeviceId] = frozenset()
    without_events: tuple[DeviceId, ...] = ()

    @property
    def wants_reinit(self) -> bool:
        """Whether a GPU is missing that only another nvmlInit can show again."""
        return self.unidentified_lost > 0 or any(state.lost for state in self.gpus.values())


@dataclass(frozen=True, slots=True)
class Change:
    """One change, in the terms of a finding."""

    kind: FindingKind
    code: str
    device: DeviceLocator
    text: str
    evidence: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))


def of_earlier_agents(
    known: Mapping[DeviceId, PciAddress], *, reset_required: Collection[DeviceId] = frozenset()
) -> View:
    """Return the view before the first poll, with the GPUs that NVML showed to previous agents on this boot.

    ``reset_required``: those that answered RESET_REQUIRED when they were last read.
    """
    gpus = {uuid: Gpu(uuid=uuid, pci=pci, index=NO_INDEX) for uuid, pci in known.items()}
    return View(gpus={uuid: GpuState(gpu=gpu, reset_required=uuid in reset_required) for uuid, gpu in gpus.items()})


def fold(view: View, snapshot: Snapshot) -> tuple[View, tuple[Change, ...]]:
    """Return the view after this snapshot, and the changes."""
    named = sorted(snapshot.slots, key=lambda slot: _RANK[slot.condition])
    slots = {slot.gpu.uuid: slot for slot in named if slot.gpu is not None}  # of GPUs with one UUID the worst
    nameless = [slot for slot in snapshot.slots if slot.gpu is None]
    provable = all(slot.condition is Condition.LOST for slot in nameless)
    before = _without_replaced(view.gpus, slots.values())
    gpus = {uuid: _next_state(before.get(uuid), slots.get(uuid), provable=provable) for uuid in {**before, **slots}}
    missing = sum(uuid not in slots for uuid in before)
    unidentified_lost = max(0, len(nameless) - missing) if provable else view.unidentified_lost
    after = View(
        gpus=gpus,
        complete=not nameless,
        unidentified_lost=unidentified_lost,
        unidentified_faults=_unidentified_faults(nameless) or (view.unidentified_faults if nameless else frozenset()),
        unreadable=tuple(_unreadable(snapshot)),
        ambiguous=_ambiguous(snapshot),
        without_events=snapshot.without_events,
    )
    changes = [change for uuid, state in gpus.items() for change in _changes(before.get(uuid), state, slots.get(uuid))]
    unidentified = (*_unidentified_changes(view, after), *_unidentified_fault_changes(view, after))
    return after, (*changes, *unidentified)


def after_gap(view: View, *, only: PciAddress | None = None) -> View:
    """Return the view after a time in which NVML was not polled: that the driver requires nothing is unknown.

    The next poll reports it again. The kernel log may have reported a requirement in the gap; NVML alone shows its end.
    ``only``: of this GPU alone.
    """
    gpus = {
        uuid: replace(state, recovery_action=None)
        if state.reports_action and state.recovery_action == NO_ACTION and only in (None, state.gpu.pci)
        else state
        for uuid, state in view.gpus.items()
    }
    return replace(view, gpus=gpus)


def is_lost(view: View, device: str) -> bool:
    """Return whether the GPU of that name (UUID or PCI address) is lost."""
    return any(state.lost and device in state.names for state in view.gpus.values())


def without_missing(view: View, device: str) -> View:
    """Return the view without a missing GPU (by UUID or PCI address) that need not come back.

    A GPU that NVML still lists as lost is not missing. While NVML lists an unidentified GPU, that may be this one, and
    the view is unchanged.
    """
    if not view.complete:
        return view
    kept = {
        uuid: state for uuid, state in view.gpus.items() if state.listed or not state.lost or device not in state.names
    }
    return replace(view, gpus=kept)


def of_xid(event: XidEvent) -> Change:
    """Return an Xid event as a change: on a MIG instance where NVML gives one."""
    where = DeviceLocator(
        uuid=event.uuid,
        pci=event.pci,
        gpu_instance=event.gpu_instance,
        compute_instance=event.compute_instance,
    )
    return Change(kind=FindingKind.XID, code=str(event.code), device=where, text=f"NVML reported Xid {event.code}")


def of_event(event: DeviceEvent) -> Change:
    """Return another event as a change."""
    kind, text = _EVENTS[event.kind]
    return Change(kind=kind, code="", device=DeviceLocator(uuid=event.uuid, pci=event.pci), text=text)


_EVENTS = {
    DeviceEventKind.GPU_UNAVAILABLE: (FindingKind.GPU_UNAVAILABLE, "the driver took the GPU out of use"),
    DeviceEventKind.MEMORY_POISONED: (FindingKind.MEMORY_POISONED, "poisoned memory was used"),
}


def _without_replaced(known: Mapping[DeviceId, GpuState], present: Iterable[Slot]) -> dict[DeviceId, GpuState]:
    """Drop GPUs whose place on the bus another one has taken: they will not come back there."""
    owners = {slot.gpu.pci: slot.gpu.uuid for slot in present if slot.gpu is not None}
    return {uuid: state for uuid, state in known.items() if owners.get(state.gpu.pci, uuid) == uuid}


def _next_state(before: GpuState | None, slot: Slot | None, *, provable: bool) -> GpuState:
    if slot is None or slot.gpu is None:
        assert before is not None
        lost = before.lost or provable
        action = None if lost else before.recovery_action
        return replace(before, listed=False, answers=False, lost=lost, recovery_action=action)
    state = before if before is not None else GpuState(gpu=slot.gpu)
    lost = _lost(state, slot)
    return GpuState(
        gpu=slot.gpu,
        listed=True,
        answers=slot.condition in (Condition.ANSWERS, Condition.RESET_REQUIRED),
        answered=state.answered or slot.condition is Condition.ANSWERS,
        lost=lost,
        recovery_action=None if lost else _recovery_action(state, slot),
        reset_required=slot.condition is Condition.RESET_REQUIRED or (state.reset_required and not _answers(slot)),
        reports_action=state.reports_action or _reads_action(slot),
        remap_pending=_flag(slot, Vital.REMAP_PENDING, before=state.remap_pending),
        remap_failed=_flag(slot, Vital.REMAP_FAILED, before=state.remap_failed),
    )


def _reads_action(slot: Slot) -> bool:
    return slot.vitals is not None and slot.vitals.get(Vital.RECOVERY_ACTION) is not None


def _flag(slot: Slot, vital: Vital, *, before: bool | None) -> bool | None:
    value = slot.vitals.get(vital) if slot.vitals is not None else None
    return before if value is None else bool(value)


def _lost(before: GpuState, slot: Slot) -> bool:
    """Return whether the GPU is lost.

    A lost GPU is back only when it answers; reset-required and unreadable change nothing.
    """
    if slot.condition is Condition.LOST:
        return True
    return before.lost and not _answers(slot)


def _answers(slot: Slot) -> bool:
    return slot.condition is Condition.ANSWERS


def _recovery_action(before: GpuState, slot: Slot) -> int | None:
    """Return the driver's recommendation. Drivers before R570 report none: there an answer proves the reset."""
    if slot.recovery_action is not None:
        return slot.recovery_action
    if slot.condition is Condition.RESET_REQUIRED:
        return before.recovery_action or GPU_RESET
    return NO_ACTION if before.reset_required and _answers(slot) else before.recovery_action


def _changes(before: GpuState | None, after: GpuState, slot: Slot | None) -> Iterator[Change]:
    where = after.where
    name = f"GPU {after.gpu.index}" if after.gpu.index != NO_INDEX else f"GPU at {after.gpu.pci}"
    error = slot.error if slot is not None else "NVML no longer lists it"
    was_lost = before is not None and before.lost
    if after.lost and not was_lost:
        yield Change(kind=FindingKind.DEVICE_LOST, code="", device=where, text=f"{name}: {error}")
    if was_lost and not after.lost:
        yield Change(kind=FindingKind.DEVICE_BACK, code="", device=where, text=f"{name} answers again")
    if after.answered and not after.lost and not (before is not None and before.answered):
        yield over(FindingKind.DEVICE_LOST, where=where)  # a previous agent may have raised it
    yield from _recovery_changes(before, after, where=where, name=name)


def _recovery_changes(before: GpuState | None, after: GpuState, *, where: DeviceLocator, name: str) -> Iterator[Change]:
    previous = before.recovery_action if before is not None else None
    if after.recovery_action is None or after.recovery_action == previous:
        return
    if previous is None and after.recovery_action == NO_ACTION:
        # A previous agent may have raised it. Without the driver's word only the answer after a reset shows its end.
        if after.reports_action or (before is not None and before.reset_required):
            yield over(FindingKind.RECOVERY_ACTION, where=where)
        return
    yield Change(
        kind=FindingKind.RECOVERY_ACTION,
        code=str(after.recovery_action),
        device=where,
        text=f"{name}: driver's recovery action is {after.recovery_action}",
        evidence=_remap_evidence(after),
    )


def over(kind: FindingKind, *, where: DeviceLocator) -> Change:
    """Return that no fault of a kind holds on a device."""
    return Change(kind=FindingKind.FAULT_OVER, code=kind.value, device=where, text=f"{kind.value} does not hold")


def _remap_evidence(state: GpuState) -> Mapping[str, str]:
    facts = {"row_remap_pending": state.remap_pending, "row_remap_failed": state.remap_failed}
    return MappingProxyType({name: str(fact).lower() for name, fact in facts.items() if fact is not None})


def _unidentified_changes(before: View, after: View) -> Iterator[Change]:
    """Yield changes for GPUs without a name: off the bus before they were seen healthy. Their loss is still a fact."""
    if after.unidentified_lost > before.unidentified_lost:
        text = f"{after.unidentified_lost} GPU(s) listed by NVML were lost before they could be identified"
        yield Change(kind=FindingKind.DEVICE_LOST, code="", device=DeviceLocator(), text=text)
    if before.unidentified_lost > 0 and after.unidentified_lost == 0:
        text = "every GPU listed by NVML can be identified"
        yield Change(kind=FindingKind.DEVICE_BACK, code="", device=DeviceLocator(), text=text)
    elif after.complete and not before.complete:
        yield over(FindingKind.DEVICE_LOST, where=DeviceLocator())  # a previous agent may have raised it


def _unidentified_faults(nameless: Iterable[Slot]) -> frozenset[int]:
    codes = (code for slot in nameless if slot.vitals is not None for code in slot.vitals.errors.values())
    return frozenset(code for code in codes if code in BOARD_FAULTS)


def _unidentified_fault_changes(before: View, after: View) -> Iterator[Change]:
    for code in sorted(after.unidentified_faults - before.unidentified_faults):
        text = f"a GPU that NVML cannot identify answers with NVML error {code}"
        yield Change(kind=FindingKind.NVML_ERROR, code=str(code), device=DeviceLocator(), text=text)
    if (before.unidentified_faults or not before.complete) and after.complete:
        yield over(FindingKind.NVML_ERROR, where=DeviceLocator())


def _ambiguous(snapshot: Snapshot) -> frozenset[DeviceId]:
    counts = Counter(slot.gpu.uuid for slot in snapshot.slots if slot.gpu is not None)
    return frozenset(uuid for uuid, count in counts.items() if count > 1)


def _unreadable(snapshot: Snapshot) -> Iterator[str]:
    yield from (f"GPU {uuid}: several GPUs have this UUID" for uuid in sorted(_ambiguous(snapshot)))
    for slot in snapshot.slots:
        if slot.condition is Condition.UNREADABLE:
            name = slot.gpu.uuid if slot.gpu is not None else f"index {slot.index}"
            yield f"GPU {name}: {slot.error}"
