"""Which faults have come again and again on a device. Pure: what is remembered and a finding in, the same out.

A fault that ends with its process leaves nothing behind in the verdict. Here its times are kept for as long as the
catalog's rule for it looks back, over reboots too: bad hardware does not mend itself by one. Where a program can bring
the fault about, one workload counts once: a program with a bug meets its fault after each restart, on whatever device.
Those whose workload is not known count as one, too. NVML tells of the kernel log's Xids a second time, without process
and place: its word does not count.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from agent.health.catalog import AppCaused, Catalog, FaultKey
from agent.model.actions import ActionClass
from agent.model.findings import Finding, FindingKind, Source

MOST_TIMES = 64
"""Times that are kept of one fault: lines of one event count once (``repeats.BURST_SECONDS``), rules ask for few."""


@dataclass(frozen=True, slots=True)
class Fault:
    """What counts together: one fault on one device, with the evidence that the rule wants to be the same."""

    device: str
    key: FaultKey
    same: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Occurrence:
    """When a fault came, in Unix seconds, and in which pod (its UID; empty where that is not known)."""

    at: float
    pod: str = ""


@dataclass(frozen=True, slots=True)
class History:
    """What is remembered of faults that count."""

    faults: Mapping[Fault, tuple[Occurrence, ...]] = field(default_factory=lambda: MappingProxyType({}))

    def without(self, device: str) -> "History":
        """Return the history of all other devices."""
        return History(MappingProxyType({fault: kept for fault, kept in self.faults.items() if fault.device != device}))


def noted(
    history: History, finding: Finding, *, device: str, pod: str = "", catalog: Catalog
) -> tuple[History, Finding | None]:
    """Return the history with a finding in it, and the finding that its many like make; None where there is none.

    An operator's word (``CLEARED``) ends the count.
    """
    if finding.kind is FindingKind.CLEARED:
        return history.without(device), None
    key = FaultKey(finding.kind, finding.code)
    entry = catalog.find(key)
    rule = entry.repeats if entry is not None else None
    if entry is None or rule is None or (finding.kind is FindingKind.XID and finding.source is Source.NVML):
        return history, None
    each_counts = entry.app_caused is AppCaused.NO
    fault = Fault(device, key, tuple(finding.evidence.get(name, "") for name in rule.same))
    since = finding.observed_at - rule.within
    before = (each for each in history.faults.get(fault, ()) if each.at >= since and (each_counts or each.pod != pod))
    occurrences = (*before, Occurrence(finding.observed_at, pod))[-MOST_TIMES:]
    kept = _young(history, now=finding.observed_at, catalog=catalog)
    after = History(MappingProxyType({**kept, fault: occurrences}))
    action = catalog.after_repeats(key, [each.at for each in occurrences])
    if action is ActionClass.NONE:
        return after, None
    text = f"{finding.title} came {len(occurrences)} times within {rule.within / 3600:g} h"
    return after, replace(finding, kind=FindingKind.FAULT_REPEATED, code="", action=action, text=text, pid=None)


def _young(history: History, *, now: float, catalog: Catalog) -> dict[Fault, tuple[Occurrence, ...]]:
    """Return what some rule may still look back at."""
    young = {}
    for fault, occurrences in history.faults.items():
        entry = catalog.find(fault.key)
        if entry is not None and entry.repeats is not None and occurrences[-1].at >= now - entry.repeats.within:
            young[fault] = occurrences
    return young
