"""Track faults that recur on a device. Pure: history and a finding in, history and perhaps a finding out.

A fault that ends with its process leaves no trace in the verdict. Its times are kept here for as long as the catalog's
rule for it looks back, across reboots too: a reboot does not fix bad hardware. Where a program can cause the fault, one
workload counts once, because a program with a bug causes its fault after each restart, on any device. All occurrences
with an unknown workload count as one, too. NVML repeats the Xids of the kernel log without process and location, so its
reports do not count.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from kubemend.agent.health.catalog import repeats
from kubemend.agent.health.catalog.catalog import AppCaused, Catalog, FaultKey
from kubemend.agent.model.actions import ActionClass
from kubemend.agent.model.findings import Finding, FindingKind, Source

MOST_TIMES = 64
"""Number of times kept for one fault: lines of one event count once (``repeats.BURST_SECONDS``), rules need few."""


@dataclass(frozen=True, slots=True)
class Fault:
    """The key of a count: one fault on one device, with the evidence that the rule requires to be equal."""

    device: str
    key: FaultKey
    same: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Occurrence:
    """The time of a fault in Unix seconds, and its pod (UID; empty where it is unknown)."""

    at: float
    pod: str = ""


@dataclass(frozen=True, slots=True)
class History:
    """The stored occurrences of faults that count."""

    faults: Mapping[Fault, tuple[Occurrence, ...]] = field(default_factory=lambda: MappingProxyType({}))

    def without(self, device: str) -> "History":
        """Return the history of all other devices."""
        return History(MappingProxyType({fault: kept for fault, kept in self.faults.items() if fault.device != device}))


def noted(
    history: History, finding: Finding, *, device: str, pod: str = "", catalog: Catalog
) -> tuple[History, Finding | None]:
    """Return the history with a finding added, and the finding for its recurrence; None where there is none.

    An operator's clearing (``CLEARED``) resets the count.
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
    occurrences = (*before, Occurrence(finding.observed_at, pod))
    events = repeats.events(each.at for each in occurrences)
    if each_counts:  # further lines of an event would take the place of earlier events
        occurrences = tuple({each.at: each for each in occurrences if each.at in events}.values())
    occurrences = occurrences[-MOST_TIMES:]
    kept = _recent(history, now=finding.observed_at, catalog=catalog)
    after = History(MappingProxyType({**kept, fault: occurrences}))
    action = catalog.after_repeats(key, [each.at for each in occurrences])
    if action is ActionClass.NONE:
        return after, None
    text = f"{finding.title} came {len(events)} times within {rule.within / 3600:g} h"
    return after, replace(finding, kind=FindingKind.FAULT_REPEATED, code="", action=action, text=text, pid=None)


def _recent(history: History, *, now: float, catalog: Catalog) -> dict[Fault, tuple[Occurrence, ...]]:
    """Return the occurrences that some rule may still use."""
    recent = {}
    for fault, occurrences in history.faults.items():
        entry = catalog.find(fault.key)
        if entry is not None and entry.repeats is not None and occurrences[-1].at >= now - entry.repeats.within:
            recent[fault] = occurrences
    return recent
