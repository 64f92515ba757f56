"""Fold findings into one verdict per device. Pure: state and a finding in, the next state out.

A cause suppresses its effects: a fault that the catalog knows as an effect, within ``HOLD`` seconds of its cause, does
not become an active fault.

Invariant: a device's severity decreases only on evidence about the fault that raised it (``_after_evidence``): the
process ended, the driver reported it, the device was reset, the node rebooted. It never decreases by time, and never
because of a milder later fault (other tools let an Xid 45 overwrite the 48 that caused it).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from kubemend.agent.health.catalog.catalog import EMPTY, Catalog, Fault, FaultKey
from kubemend.agent.health.kmsg import record_key
from kubemend.agent.health.state import evidence
from kubemend.agent.model.actions import ActionClass
from kubemend.agent.model.findings import Finding, FindingKind, Source
from kubemend.agent.model.verdicts import Health, Verdict

HOLD = 5.0
"""Seconds between a cause and its effect, in either order: drivers print both within one, a busy console is slower."""


@dataclass(frozen=True, slots=True)
class ActiveFault:
    """One fault that holds until its evidence arrives. Times are Unix seconds."""

    kind: FindingKind
    code: str
    action: ActionClass
    first_seen: float
    last_seen: float
    text: str = ""
    count: int = 1

    @property
    def key(self) -> FaultKey:
        """The name in the catalog."""
        return FaultKey(self.kind, self.code)

    @property
    def reason(self) -> str:
        """Reason in CamelCase, as in Kubernetes conditions: ``Xid79``."""
        return f"{self.kind.value}{self.code}"

    @property
    def title(self) -> str:
        """Title for people: ``Xid 79``."""
        return f"{self.kind.value} {self.code}".strip()


@dataclass(frozen=True, slots=True)
class HealthState:
    """The active faults of every device, keyed by device (GPU UUID, else PCI address), on one boot of the node.

    ``newest_key`` is the key of the newest finding from the kernel log that has been folded; empty without one.
    """

    boot_id: str = ""
    devices: Mapping[str, tuple[ActiveFault, ...]] = field(default_factory=lambda: MappingProxyType({}))
    newest_key: str = ""

    def active_faults(self, device: str) -> tuple[ActiveFault, ...]:
        """Return the active faults of a device."""
        return self.devices.get(device, ())

    def with_latches(self, device: str, active_faults: tuple[ActiveFault, ...]) -> "HealthState":
        """Return the state with exactly these active faults for one device."""
        devices = {key: value for key, value in self.devices.items() if key != device}
        if active_faults:
            devices[device] = active_faults
        return replace(self, devices=MappingProxyType(devices))


def fold(
    state: HealthState, finding: Finding, *, device: str, catalog: Catalog = EMPTY, now: float = math.inf
) -> HealthState:
    """Return the state after one finding about one device. The catalog relates causes and effects.

    ``now`` is Unix time: a later timestamp comes from a clock that has been set back since.
    """
    before = state.active_faults(device)
    recovered = _reports_recovery(finding, before, now=now)
    after = (_after_evidence(latch, finding, recovered=recovered, now=now) for latch in before)
    held = tuple(latch for latch in after if latch is not None)
    held = tuple(latch for latch in held if not _ended_by_return(latch, before, finding))
    cancelled = catalog.cancels(FaultKey(finding.kind, finding.code))
    held = tuple(latch for latch in held if latch.key not in cancelled)
    if _raises(finding) and not any(_is_effect(finding, of=latch, catalog=catalog) for latch in held):
        held = tuple(latch for latch in held if not _explains(finding, latch, catalog=catalog))
        held = _raised(held, finding, now=now)
    return _with_key(state.with_latches(device, held), finding)


def _with_key(state: HealthState, finding: Finding) -> HealthState:
    """Return the state with the key of a finding from the kernel log, unless it has folded a later one."""
    has_one = finding.source is Source.KERNEL_LOG and finding.key != ""
    is_newer = has_one and not record_key.reaches(state.newest_key, finding.key)
    return replace(state, newest_key=finding.key) if is_newer else state


def _is_effect(finding: Finding, *, of: ActiveFault, catalog: Catalog) -> bool:
    """Return whether an active fault is the cause of the finding.

    Faults with an end of their own are independent facts.
    """
    soon = abs(finding.observed_at - of.last_seen) <= HOLD
    return finding.kind in _EVENTS and soon and catalog.is_side_effect(of, finding)


def _explains(finding: Finding, latch: ActiveFault, *, catalog: Catalog) -> bool:
    """Return whether the finding is the cause of an active fault that came a moment earlier."""
    soon = abs(finding.observed_at - latch.first_seen) <= HOLD
    return latch.kind in _EVENTS and soon and catalog.is_side_effect(finding, latch)


def renamed(state: HealthState, names: Mapping[str, str]) -> HealthState:
    """Return the state with devices under their new names, with the faults of both names merged.

    A kernel line names a device by its PCI address; only the driver, which may start later, maps it to the UUID.
    """
    for old, new in names.items():
        if old in state.devices and old != new:
            together = state.active_faults(new)
            for latch in state.active_faults(old):
                same = next((held for held in together if (held.kind, held.code) == (latch.kind, latch.code)), None)
                merged = latch if same is None else _merged(same, latch)
                together = (*(held for held in together if held is not same), merged)
            state = state.with_latches(old, ()).with_latches(new, together)
    return state


def _merged(one: ActiveFault, other: ActiveFault) -> ActiveFault:
    latest = max(one, other, key=lambda latch: latch.last_seen)
    return replace(
        latest,
        action=_worse(one.action, other.action),
        first_seen=min(one.first_seen, other.first_seen),
        count=one.count + other.count,
    )


def after_reboot(state: HealthState, *, boot_id: str, places: Mapping[str, str]) -> HealthState:
    """Return the state on the given boot: a reboot is evidence against every fault but broken hardware.

    A GPU that was lost may not come back, and is then listed no more. It is missed at its place until one answers
    there; ``places`` has the PCI addresses of the previous boot's GPUs by UUID.
    """
    if state.boot_id in ("", boot_id):
        return replace(state, boot_id=boot_id)
    after = HealthState(boot_id=boot_id)
    for device, active_faults in state.devices.items():
        broken = tuple(latch for latch in active_faults if latch.action is ActionClass.REPLACE)
        after = after.with_latches(device, (*after.active_faults(device), *broken))
        lost = next((latch for latch in active_faults if latch.kind is FindingKind.DEVICE_LOST), None)
        if lost is not None and lost not in broken and device in places:
            missed = replace(lost, action=ActionClass.REPLACE)
            after = after.with_latches(places[device], (*after.active_faults(places[device]), missed))
    return after


def verdict(state: HealthState, device: str, *, answers: bool | None) -> Verdict:
    """Return the verdict of one device.

    ``answers`` is whether NVML shows the device now; None and False mean unknown, which is not healthy.
    """
    active_faults = state.active_faults(device)
    if not active_faults:
        if answers:
            return Verdict(device, Health.HEALTHY, ActionClass.NONE, "Healthy", "answers, no fault known")
        absent = "it does not answer the driver, or is not initialized yet"
        why = "the driver could not be queried" if answers is None else absent
        return Verdict(device, Health.UNKNOWN, ActionClass.NONE, "NotProven", why)
    worst = max(active_faults, key=lambda latch: (latch.action.severity, -latch.first_seen))
    return Verdict(
        device=device,
        health=_HEALTH_BY_ACTION[worst.action],
        action=worst.action,
        reason=worst.reason,
        message=_message(worst, others=len(active_faults) - 1),
        since=worst.first_seen,
    )


SUSPICIONS = frozenset({FindingKind.PROCESS_STUCK, FindingKind.RESTARTS_INEFFECTIVE})
"""Faults derived from restarts, where the action that the device needs is still unknown."""

STANDING = frozenset(
    {
        FindingKind.RECOVERY_ACTION,
        FindingKind.NVML_ERROR,
        FindingKind.ECC_UNCORRECTED,
        FindingKind.ECC_SRAM_THRESHOLD,
        FindingKind.ECC_CORRECTED_RATE,
        FindingKind.ROW_REMAP_PENDING,
        FindingKind.ROW_REMAP_FAILED,
        FindingKind.PAGE_RETIREMENT_PENDING,
        FindingKind.NVLINK_DOWN,
        FindingKind.NVLINK_ERRORS,
        FindingKind.FABRIC_FAILED,
        FindingKind.FABRIC_DEGRADED,
        FindingKind.PCIE_NARROW,
        FindingKind.PCIE_SLOW,
        FindingKind.PCIE_ERRORS,
        FindingKind.THROTTLED,
        FindingKind.HOT,
        FindingKind.SLOW_UNDER_LOAD,
        FindingKind.LINK_DOWN,
        FindingKind.LINK_FLAPPING,
        FindingKind.LINK_SLOW,
        FindingKind.RDMA_PORT_DOWN,
        FindingKind.RDMA_ERRORS,
        FindingKind.REPORTED_UNHEALTHY,
    }
)
"""Faults that a source observes continuously.

It emits their beginning and their end, once each; only that ends them, also after a reset: a source that has reported
a fault is silent while it holds. ``RECOVERY_ACTION`` is reported again once its device is back.
"""

_BEGUN_AGAIN = frozenset(
    {
        FindingKind.LINK_DOWN,
        FindingKind.LINK_FLAPPING,
        FindingKind.LINK_SLOW,
        FindingKind.RDMA_PORT_DOWN,
        FindingKind.RDMA_ERRORS,
        FindingKind.REPORTED_UNHEALTHY,
    }
)

KEPT_BY_CLEAR = STANDING - _BEGUN_AGAIN
"""Faults that an operator cannot clear while their source observes the device.

The source of the others begins again with a clear (``agent.sources.network.source``, ``agent.sources.plugin_reports``),
and reports what holds.
"""

GONE = "Gone"
"""The code of ``CLEARED`` where the device's source no longer lists it, as after an exchange: all of its faults end."""

_EVENTS = frozenset(
    {FindingKind.XID, FindingKind.SXID, FindingKind.OFF_BUS, FindingKind.AER_NON_FATAL, FindingKind.AER_FATAL}
)

EVIDENCE = frozenset({FindingKind.DEVICE_BACK, FindingKind.APP_GONE, FindingKind.FAULT_OVER, FindingKind.CLEARED})

_HEALTH_BY_ACTION = {
    ActionClass.OBSERVE: Health.DEGRADED,
    ActionClass.RESTART_APP: Health.DEGRADED,
    ActionClass.ASK_DRIVER: Health.UNKNOWN,
    ActionClass.RESET_DEVICE: Health.UNHEALTHY,
    ActionClass.REBOOT_NODE: Health.UNHEALTHY,
    ActionClass.REPLACE: Health.UNHEALTHY,
}

_REMEDY = {
    ActionClass.RESTART_APP: "the container must be restarted",
    ActionClass.ASK_DRIVER: "only the driver knows the action it needs",
    ActionClass.RESET_DEVICE: "the device needs a reset",
    ActionClass.REBOOT_NODE: "the node needs a reboot",
    ActionClass.REPLACE: "the hardware needs inspection or replacement",
}


def _message(latch: ActiveFault, *, others: int) -> str:
    more = f" (and {others} more)" if others else ""
    if latch.action is ActionClass.OBSERVE:
        return f"{latch.text or latch.title}{more}"
    return f"{latch.title}: {_REMEDY[latch.action]}{more}"


def is_recommendation(fault: Fault) -> bool:
    """Return whether a fault is the driver's own recommendation for the device (NVML field 230, or Xid 154)."""
    return fault.kind is FindingKind.RECOVERY_ACTION or (fault.kind is FindingKind.XID and fault.code == "154")


def concerns_a_program(fault: Fault) -> bool:
    """Return whether a program on the device may have failed, if the driver finds the device usable after the fault.

    A recommendation says nothing about a program, and neither does an error of the PCIe link: the driver reports those
    of programs by an Xid.
    """
    return not is_recommendation(fault) and fault.kind is not FindingKind.AER_FATAL


def is_driver_verdict(finding: Finding) -> bool:
    """Return whether the finding is the driver's own recommendation, and names the action."""
    return finding.kind is FindingKind.RECOVERY_ACTION or (
        is_recommendation(finding) and finding.action is not ActionClass.ASK_DRIVER
    )


def _raises(finding: Finding) -> bool:
    return finding.action is not ActionClass.NONE and finding.kind not in EVIDENCE


def _raised(held: tuple[ActiveFault, ...], finding: Finding, *, now: float) -> tuple[ActiveFault, ...]:
    kind, code = finding.kind, finding.code
    if is_driver_verdict(finding):
        # One active fault for the driver's recommendation, from any source: a later one replaces an earlier one.
        if any(x.kind is FindingKind.RECOVERY_ACTION and _is_older(finding, x, now=now) for x in held):
            return held
        kind, held = FindingKind.RECOVERY_ACTION, tuple(x for x in held if x.kind is not FindingKind.RECOVERY_ACTION)
        code = finding.evidence.get(evidence.RECOVERY_ACTION, code)  # an Xid 154 has it in its text
    earlier = next((latch for latch in held if (latch.kind, latch.code) == (kind, code)), None)
    is_late = earlier is not None and _is_older(finding, earlier, now=now)
    latch = ActiveFault(
        kind=kind,
        code=code,
        action=_worse(finding.action, earlier.action) if earlier is not None else finding.action,
        first_seen=min(finding.observed_at, earlier.first_seen) if earlier is not None else finding.observed_at,
        last_seen=earlier.last_seen if earlier is not None and is_late else finding.observed_at,
        text=finding.text,
        count=earlier.count + 1 if earlier is not None else 1,
    )
    return (*(other for other in held if other is not earlier), latch)


def _worse(one: ActionClass, other: ActionClass) -> ActionClass:
    return max(one, other, key=lambda action: action.severity)


def _reports_recovery(finding: Finding, before: tuple[ActiveFault, ...], *, now: float) -> bool:
    """Return whether the driver required an action of the device, and requires none any more.

    A None alone proves no reset: the driver may have reported it all the time, as it may after an Xid 119. An Xid 154
    reports a change.
    """
    requires_none = is_driver_verdict(finding) and finding.action is ActionClass.NONE
    is_over = finding.kind is FindingKind.FAULT_OVER and finding.code == FindingKind.RECOVERY_ACTION.value
    if not requires_none and not is_over:
        return False
    required = (latch for latch in before if latch.kind is FindingKind.RECOVERY_ACTION)
    return finding.kind is FindingKind.XID or any(not _is_older(finding, latch, now=now) for latch in required)


def _is_older(finding: Finding, latch: ActiveFault, *, now: float) -> bool:
    """Return whether a finding is older than a fault, as far as the clock has not been set back since."""
    return finding.observed_at < latch.last_seen <= now


def _after_evidence(latch: ActiveFault, finding: Finding, *, recovered: bool, now: float) -> ActiveFault | None:
    """Return an active fault after a finding that may be evidence against it; None if that ends the fault.

    ``recovered``: the finding shows that the driver required an action, and no longer does.

    Evidence older than the fault does not count, because sources overtake each other. But an end is emitted only once,
    so a clock that was set back must not make it look old. A fault in ``STANDING`` has one source, whose last report is
    the newest; only the recovery action is reported by the kernel log as well.
    """
    has_one_source = latch.kind in STANDING and latch.kind is not FindingKind.RECOVERY_ACTION
    of_its_source = finding.kind is FindingKind.FAULT_OVER and has_one_source
    if _is_older(finding, latch, now=now) and not of_its_source:
        return latch
    if recovered and _ends_by_reset(latch):
        return None
    if finding.kind is FindingKind.APP_GONE:
        return None if latch.action is ActionClass.RESTART_APP else latch
    if finding.kind is FindingKind.DEVICE_BACK:
        lost = latch.kind is FindingKind.DEVICE_LOST
        return None if lost or _ends_by_reset(latch) or latch.kind in SUSPICIONS else latch
    if finding.kind is FindingKind.CLEARED:
        return latch if latch.kind in KEPT_BY_CLEAR and finding.code != GONE else None
    if finding.kind is FindingKind.FAULT_OVER:
        return None if latch.kind.value == finding.code else latch
    if is_driver_verdict(finding) and finding.action is ActionClass.NONE:
        return _after_driver_requires_nothing(latch)
    return latch


def _ended_by_return(latch: ActiveFault, before: tuple[ActiveFault, ...], finding: Finding) -> bool:
    """Return whether a fault of a NIC ends because the NIC is back, with its driver, after it was lost.

    The driver has initialized it again. A fault that was seen after the loss may be of the time after the return.
    """
    if finding.kind is not FindingKind.FAULT_OVER or finding.code != FindingKind.NIC_LOST.value:
        return False
    is_reset = latch.action in (ActionClass.RESET_DEVICE, ActionClass.ASK_DRIVER) and latch.kind not in STANDING
    return is_reset and any(latch.last_seen <= each.last_seen for each in before if each.kind is FindingKind.NIC_LOST)


def _after_driver_requires_nothing(latch: ActiveFault) -> ActiveFault | None:
    """Apply the driver's None: it only permits starting a new process on the device now."""
    if not concerns_a_program(latch):
        return None
    return replace(latch, action=ActionClass.RESTART_APP) if latch.action is ActionClass.ASK_DRIVER else latch


def _ends_by_reset(latch: ActiveFault) -> bool:
    """Return whether a reset of the device ends the fault, and its source would report it again if it did not."""
    reported_again = latch.kind not in STANDING or latch.kind is FindingKind.RECOVERY_ACTION
    return latch.action is ActionClass.RESET_DEVICE and reported_again
