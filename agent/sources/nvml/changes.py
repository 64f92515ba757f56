"""What changed between two polls of NVML. Pure: the last view and a snapshot in, the next view and the changes out.

The rule behind it: a GPU is lost only when NVML says so, or when every index has been identified and it is at none
of them. An index that merely could not be read may be that GPU, and then nothing is said.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from agent.model.devices import DeviceLocator, Gpu, GpuUuid
from agent.model.findings import FindingKind
from agent.sources.nvml.protocol import Condition, Slot, Snapshot, XidEvent

NO_ACTION = 0  # NVML_GPU_RECOVERY_ACTION_NONE
GPU_RESET = 1  # NVML_GPU_RECOVERY_ACTION_GPU_RESET


@dataclass(frozen=True, slots=True)
class GpuState:
    """A GPU that NVML has shown since the agent started, as it was last known.

    ``recovery_action`` is the driver's word (NVML field 230; GPU reset where every call answers RESET_REQUIRED).
    """

    gpu: Gpu
    lost: bool = False
    recovery_action: int = NO_ACTION
    remap_pending: bool | None = None
    remap_failed: bool | None = None


@dataclass(frozen=True, slots=True)
class View:
    """All that the polls have told so far.

    ``complete`` is False when some index could not be identified; ``strangers`` counts lost GPUs that nobody has
    seen well; ``unreadable`` says which GPUs could not be read, and why.
    """

    gpus: Mapping[GpuUuid, GpuState] = field(default_factory=lambda: MappingProxyType({}))
    complete: bool = False
    strangers: int = 0
    unreadable: tuple[str, ...] = ()

    @property
    def wants_reinit(self) -> bool:
        """Whether a GPU is missing that only another nvmlInit can show again."""
        return self.strangers > 0 or any(state.lost for state in self.gpus.values())


@dataclass(frozen=True, slots=True)
class Change:
    """One thing that became different, in the words of a finding."""

    kind: FindingKind
    code: str
    device: DeviceLocator
    text: str
    evidence: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))


def fold(view: View, snapshot: Snapshot) -> tuple[View, tuple[Change, ...]]:
    """Return the view after this snapshot, and what changed."""
    slots = {slot.gpu.uuid: slot for slot in snapshot.slots if slot.gpu is not None}
    nameless = [slot for slot in snapshot.slots if slot.gpu is None]
    provable = all(slot.condition is Condition.LOST for slot in nameless)
    before = _without_replaced(view.gpus, slots.values())
    gpus = {uuid: _next_state(before.get(uuid), slots.get(uuid), provable=provable) for uuid in {**before, **slots}}
    missing = sum(uuid not in slots for uuid in before)
    strangers = max(0, len(nameless) - missing) if provable else view.strangers
    after = View(gpus=gpus, complete=not nameless, strangers=strangers, unreadable=tuple(_unreadable(snapshot)))
    changes = [change for uuid, state in gpus.items() for change in _changes(before.get(uuid), state, slots.get(uuid))]
    return after, (*changes, *_stranger_changes(view.strangers, strangers))


def of_xid(event: XidEvent) -> Change:
    """Return an Xid event as a change: on a MIG instance where NVML could tell which."""
    where = DeviceLocator(
        uuid=event.uuid,
        pci=event.pci,
        gpu_instance=event.gpu_instance,
        compute_instance=event.compute_instance,
    )
    return Change(kind=FindingKind.XID, code=str(event.code), device=where, text=f"NVML reported Xid {event.code}")


def _without_replaced(known: Mapping[GpuUuid, GpuState], present: Iterable[Slot]) -> dict[GpuUuid, GpuState]:
    """Forget GPUs whose place on the bus another one has taken: they will not come back there."""
    owners = {slot.gpu.pci: slot.gpu.uuid for slot in present if slot.gpu is not None}
    return {uuid: state for uuid, state in known.items() if owners.get(state.gpu.pci, uuid) == uuid}


def _next_state(before: GpuState | None, slot: Slot | None, *, provable: bool) -> GpuState:
    if slot is None or slot.gpu is None:
        assert before is not None
        return replace(before, lost=before.lost or provable)
    state = before if before is not None else GpuState(gpu=slot.gpu)
    return GpuState(
        gpu=slot.gpu,
        lost=_lost(state, slot),
        recovery_action=_recovery_action(state, slot),
        remap_pending=state.remap_pending if slot.remap_pending is None else slot.remap_pending,
        remap_failed=state.remap_failed if slot.remap_failed is None else slot.remap_failed,
    )


def _lost(before: GpuState, slot: Slot) -> bool:
    """A lost GPU is back only when it answers; one that needs a reset or cannot be read stays what it was."""
    if slot.condition is Condition.LOST:
        return True
    return before.lost and slot.condition is not Condition.ANSWERS


def _recovery_action(before: GpuState, slot: Slot) -> int:
    if slot.recovery_action is not None:
        return slot.recovery_action
    if slot.condition is Condition.RESET_REQUIRED:
        return before.recovery_action or GPU_RESET
    return before.recovery_action


def _changes(before: GpuState | None, after: GpuState, slot: Slot | None) -> Iterator[Change]:
    where = DeviceLocator(uuid=after.gpu.uuid, pci=after.gpu.pci)
    error = slot.error if slot is not None else "NVML does not list it any more"
    was_lost = before is not None and before.lost
    if after.lost and not was_lost:
        yield Change(kind=FindingKind.DEVICE_LOST, code="", device=where, text=f"GPU {after.gpu.index}: {error}")
    if was_lost and not after.lost:
        yield Change(kind=FindingKind.DEVICE_BACK, code="", device=where, text=f"GPU {after.gpu.index} answers again")
    if after.recovery_action != (before.recovery_action if before is not None else NO_ACTION):
        yield Change(
            kind=FindingKind.RECOVERY_ACTION,
            code=str(after.recovery_action),
            device=where,
            text=f"GPU {after.gpu.index}: driver's recovery action is {after.recovery_action}",
            evidence=_remap_evidence(after),
        )


def _remap_evidence(state: GpuState) -> Mapping[str, str]:
    facts = {"row_remap_pending": state.remap_pending, "row_remap_failed": state.remap_failed}
    return MappingProxyType({name: str(fact).lower() for name, fact in facts.items() if fact is not None})


def _stranger_changes(before: int, after: int) -> Iterator[Change]:
    """A GPU that was off the bus before anybody saw it well has no name; that one is lost is still a fact."""
    if after > before:
        text = f"{after} GPU(s) listed by NVML were lost before they could be identified"
        yield Change(kind=FindingKind.DEVICE_LOST, code="", device=DeviceLocator(), text=text)
    if before > 0 and after == 0:
        text = "every GPU listed by NVML can be identified"
        yield Change(kind=FindingKind.DEVICE_BACK, code="", device=DeviceLocator(), text=text)


def _unreadable(snapshot: Snapshot) -> Iterator[str]:
    for slot in snapshot.slots:
        if slot.condition is Condition.UNREADABLE:
            name = slot.gpu.uuid if slot.gpu is not None else f"index {slot.index}"
            yield f"GPU {name}: {slot.error}"
