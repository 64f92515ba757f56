"""Fold findings into one verdict per device. Pure: state and a finding in, the next state out.

A cause swallows its effects: what the catalog knows for an effect, and comes within ``HOLD`` seconds of its cause, is
not held against the device by itself.

Invariant: a device's severity goes down only on evidence that belongs to what raised it (``_after_evidence``): the
process ended, the driver said so, the device was reset, the node rebooted. Never by time, never because something
milder happened later (peers let an Xid 45 overwrite the 48 that caused it).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from agent.health.catalog import EMPTY, Catalog, FaultKey
from agent.model.actions import ActionClass
from agent.model.findings import Finding, FindingKind
from agent.model.verdicts import Health, Verdict

HOLD = 5.0
"""Seconds between a cause and its effect, in either order: drivers print both within one, a busy console is slower."""


@dataclass(frozen=True, slots=True)
class Latch:
    """One fault that holds until its evidence is in. Times are Unix seconds."""

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
        """CamelCase, as Kubernetes conditions want it: ``Xid79``."""
        return f"{self.kind.value}{self.code}"

    @property
    def title(self) -> str:
        """For people: ``Xid 79``."""
        return f"{self.kind.value} {self.code}".strip()


@dataclass(frozen=True, slots=True)
class HealthState:
    """Every device's latches, keyed by device (GPU UUID, else PCI address), on one boot of the node."""

    boot_id: str = ""
    devices: Mapping[str, tuple[Latch, ...]] = field(default_factory=lambda: MappingProxyType({}))

    def latches(self, device: str) -> tuple[Latch, ...]:
        """Return what holds against a device."""
        return self.devices.get(device, ())

    def with_latches(self, device: str, latches: tuple[Latch, ...]) -> "HealthState":
        """Return the state with exactly these latches for one device."""
        devices = {key: value for key, value in self.devices.items() if key != device}
        if latches:
            devices[device] = latches
        return replace(self, devices=MappingProxyType(devices))


def fold(
    state: HealthState, finding: Finding, *, device: str, catalog: Catalog = EMPTY, now: float = math.inf
) -> HealthState:
    """Return the state after one finding about one device. The catalog tells what brings about what.

    ``now`` is Unix time: what was seen after it was stamped by a clock that has been set back since.
    """
    held = tuple(
        kept for latch in state.latches(device) if (kept := _after_evidence(latch, finding, now=now)) is not None
    )
    cancelled = catalog.cancels(FaultKey(finding.kind, finding.code))
    held = tuple(latch for latch in held if latch.key not in cancelled)
    if _raises(finding) and not any(_is_effect(finding, of=latch, catalog=catalog) for latch in held):
        held = _raised(tuple(latch for latch in held if not _explains(finding, latch, catalog=catalog)), finding)
    return state.with_latches(device, held)


def _is_effect(finding: Finding, *, of: Latch, catalog: Catalog) -> bool:
    """Whether a latch is the cause of what is found. What a source would say to be over is a fact of its own."""
    soon = abs(finding.observed_at - of.last_seen) <= HOLD
    return finding.kind in _EVENTS and soon and catalog.swallows(of, finding)


def _explains(finding: Finding, latch: Latch, *, catalog: Catalog) -> bool:
    """Whether what is found is the cause of a latch that came a moment earlier."""
    soon = abs(finding.observed_at - latch.first_seen) <= HOLD
    return latch.kind in _EVENTS and soon and catalog.swallows(finding, latch)


def renamed(state: HealthState, names: Mapping[str, str]) -> HealthState:
    """Return the state with devices under their new names, what both names hold put together.

    A kernel line names a device by its PCI address; only the driver, which may come up later, tells whose that is.
    """
    for old, new in names.items():
        if old in state.devices and old != new:
            together = state.latches(new)
            for latch in state.latches(old):
                same = next((held for held in together if (held.kind, held.code) == (latch.kind, latch.code)), None)
                merged = latch if same is None else _merged(same, latch)
                together = (*(held for held in together if held is not same), merged)
            state = state.with_latches(old, ()).with_latches(new, together)
    return state


def _merged(one: Latch, other: Latch) -> Latch:
    latest = max(one, other, key=lambda latch: latch.last_seen)
    return replace(
        latest,
        action=_worse(one.action, other.action),
        first_seen=min(one.first_seen, other.first_seen),
        count=one.count + other.count,
    )


def after_reboot(state: HealthState, *, boot_id: str) -> HealthState:
    """Return the state on the given boot: a reboot is the evidence for everything but broken hardware."""
    if state.boot_id in ("", boot_id):
        return replace(state, boot_id=boot_id)
    kept = {
        device: broken
        for device, latches in state.devices.items()
        if (broken := tuple(latch for latch in latches if latch.action is ActionClass.REPLACE))
    }
    return HealthState(boot_id=boot_id, devices=MappingProxyType(kept))


def verdict(state: HealthState, device: str, *, answers: bool | None) -> Verdict:
    """Return the verdict of one device.

    ``answers`` says whether NVML shows the device now; None and False are "could not tell", which is not health.
    """
    latches = state.latches(device)
    if not latches:
        if answers:
            return Verdict(device, Health.HEALTHY, ActionClass.NONE, "Healthy", "answers, no fault known")
        return Verdict(device, Health.UNKNOWN, ActionClass.NONE, "NotProven", "the driver could not be asked")
    worst = max(latches, key=lambda latch: (latch.action.severity, -latch.first_seen))
    return Verdict(
        device=device,
        health=_HEALTH_BY_ACTION[worst.action],
        action=worst.action,
        reason=worst.reason,
        message=_message(worst, others=len(latches) - 1),
        since=worst.first_seen,
    )


SUSPICIONS = frozenset({FindingKind.PROCESS_STUCK, FindingKind.RESTARTS_IN_VAIN})
"""What restarts have told of a device, though nobody knows yet what it needs."""

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
"""What a source looks at all the time. It tells of a beginning and of an end, and once each: nobody's word ends it."""

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
    ActionClass.ASK_DRIVER: "only the driver can say what it needs",
    ActionClass.RESET_DEVICE: "the device needs a reset",
    ActionClass.REBOOT_NODE: "the node needs a reboot",
    ActionClass.REPLACE: "the hardware needs inspection or replacement",
}


def _message(latch: Latch, *, others: int) -> str:
    more = f" (and {others} more)" if others else ""
    if latch.action is ActionClass.OBSERVE:
        return f"{latch.text or latch.title}{more}"
    return f"{latch.title}: {_REMEDY[latch.action]}{more}"


def is_driver_verdict(finding: Finding) -> bool:
    """Whether the finding is the driver's own word on what the device needs (NVML field 230, or Xid 154)."""
    return finding.kind is FindingKind.RECOVERY_ACTION or (
        finding.kind is FindingKind.XID and finding.code == "154" and finding.action is not ActionClass.ASK_DRIVER
    )


def _raises(finding: Finding) -> bool:
    return finding.action is not ActionClass.NONE and finding.kind not in EVIDENCE


def _raised(held: tuple[Latch, ...], finding: Finding) -> tuple[Latch, ...]:
    kind, code = finding.kind, finding.code
    if is_driver_verdict(finding):
        # One latch for the driver's word, however it reached us: a later word replaces an earlier one.
        kind, held = FindingKind.RECOVERY_ACTION, tuple(x for x in held if x.kind is not FindingKind.RECOVERY_ACTION)
    earlier = next((latch for latch in held if (latch.kind, latch.code) == (kind, code)), None)
    latch = Latch(
        kind=kind,
        code=code,
        action=_worse(finding.action, earlier.action) if earlier is not None else finding.action,
        first_seen=min(finding.observed_at, earlier.first_seen) if earlier is not None else finding.observed_at,
        last_seen=max(finding.observed_at, earlier.last_seen) if earlier is not None else finding.observed_at,
        text=finding.text,
        count=earlier.count + 1 if earlier is not None else 1,
    )
    return (*(other for other in held if other is not earlier), latch)


def _worse(one: ActionClass, other: ActionClass) -> ActionClass:
    return max(one, other, key=lambda action: action.severity)


def _after_evidence(latch: Latch, finding: Finding, *, now: float) -> Latch | None:
    """Return what is left of a latch after a finding that may be the evidence against it.

    Evidence that is older than the fault is none: sources overtake each other. But an end is told once, so a clock
    that was set back must not make it old. What is ``STANDING`` has one source, whose last word is the newest; only of
    the recovery action the kernel log tells, too.
    """
    told_by_one = latch.kind in STANDING and latch.kind is not FindingKind.RECOVERY_ACTION
    of_its_source = finding.kind is FindingKind.FAULT_OVER and told_by_one
    if finding.observed_at < latch.last_seen <= now and not of_its_source:
        return latch
    if finding.kind is FindingKind.APP_GONE:
        return None if latch.action is ActionClass.RESTART_APP else latch
    if finding.kind is FindingKind.DEVICE_BACK:
        lost_or_reset = latch.action is ActionClass.RESET_DEVICE or latch.kind is FindingKind.DEVICE_LOST
        return None if lost_or_reset or latch.kind in SUSPICIONS else latch
    if finding.kind is FindingKind.CLEARED:
        return latch if latch.kind in STANDING else None
    if finding.kind is FindingKind.FAULT_OVER:
        return None if latch.kind.value == finding.code else latch
    if is_driver_verdict(finding) and finding.action is ActionClass.NONE:
        return _after_driver_says_none(latch)
    return latch


def _after_driver_says_none(latch: Latch) -> Latch | None:
    """The driver's None is the licence to start a new process on the device now, and no more than that."""
    if latch.action is ActionClass.ASK_DRIVER:
        return replace(latch, action=ActionClass.RESTART_APP)
    if latch.kind is FindingKind.RECOVERY_ACTION or latch.action is ActionClass.RESET_DEVICE:
        return None
    return latch
