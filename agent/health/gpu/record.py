"""The state kept of a GPU between polls: last counter values, windows over time, links that were up."""

import functools
import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from kubemend.agent.health.gpu.limits import Limits
from kubemend.agent.health.gpu.readings import Key, Vital, Vitals
from kubemend.agent.model.findings import FindingKind

PARTS = 10
_WIDEST_GAP = 4  # parts between two polls
_FULL_SHARE = 0.9  # of its length: the current part is never complete


@dataclass(frozen=True, slots=True)
class Part:
    """The counts of one part of a window."""

    number: int
    hits: int
    samples: int


@dataclass(frozen=True, slots=True)
class Window:
    """Hits and polls of the last ``length`` seconds.

    ``begun``: the time of the first of an unbroken series of polls.
    """

    length: float
    begun: float = 0.0
    parts: tuple[Part, ...] = ()

    def with_sample(self, *, now: float, hits: int) -> "Window":
        """Return the window after one more poll with so many hits. ``now`` never decreases."""
        number = int(now * PARTS / self.length)
        if self.parts and (last := self.parts[-1]).number == number:
            counted = Part(number=number, hits=last.hits + hits, samples=last.samples + 1)
            return Window(length=self.length, begun=self.begun, parts=(*self.parts[:-1], counted))
        kept = tuple(part for part in self.parts if part.number > number - PARTS)
        begun = self.begun if kept else now
        return Window(length=self.length, begun=begun, parts=(*kept, Part(number=number, hits=hits, samples=1)))

    @property
    def hits(self) -> int:
        """All hits in the window as of its last poll."""
        return sum(part.hits for part in self.parts)

    @property
    def share(self) -> float:
        """Hits per poll."""
        return self.hits / samples if (samples := self._samples) else 0.0

    def full(self, *, now: float) -> bool:
        """Return whether it covers about its whole length, without a wide gap: enough to prove absence."""
        gaps = (later.number - earlier.number for earlier, later in itertools.pairwise(self.parts))
        return now - self.begun >= _FULL_SHARE * self.length and all(gap <= _WIDEST_GAP for gap in gaps)

    @property
    def _samples(self) -> int:
        return sum(part.samples for part in self.parts)


HARDWARE_SLOWDOWN = 0x8 | 0x40 | 0x80
"""nvmlClocksEventReasonHwSlowdown, HwThermalSlowdown, HwPowerBrakeSlowdown."""

NVLINK_COUNTERS = (
    Vital.NVLINK_REPLAYS,
    Vital.NVLINK_RECOVERIES,
    Vital.NVLINK_RECEIVE_ERRORS,
    Vital.NVLINK_RECOVERY_EVENTS,
)
PCIE_CORRECTED = (
    Vital.PCIE_REPLAYS,
    Vital.PCIE_CORRECTABLE,
    Vital.PCIE_NAKS_RECEIVED,
    Vital.PCIE_RECEIVER,
    Vital.PCIE_BAD_TLP,
    Vital.PCIE_NAKS_SENT,
    Vital.PCIE_BAD_DLLP,
    Vital.PCIE_LCRC,
    Vital.PCIE_LANE,
)
PCIE_UNCORRECTED = (Vital.PCIE_NON_FATAL, Vital.PCIE_FATAL)
"""Unsupported requests are excluded: a bus scan causes them on a healthy link."""


@dataclass(frozen=True, slots=True)
class Baseline:
    """The last value of a counter, and the time of its reading."""

    value: int
    at: float


@dataclass(frozen=True, slots=True)
class Record:
    """``counters`` and ``windows`` are keyed by what they count, ``shares`` by the kind that they are evidence of.

    The absolute value of a counter is no evidence: healthy boards carry counts from their production (DCGM 4.6.1 took
    them for faults). Only growth during the watch counts.

    ``links_remembered``: ``links_seen_up`` began with the links that previous agents of this boot have seen up.
    """

    counters: Mapping[Key, Baseline] = field(default_factory=lambda: MappingProxyType({}))
    windows: Mapping[Key, Window] = field(default_factory=lambda: MappingProxyType({}))
    shares: Mapping[FindingKind, Window] = field(default_factory=lambda: MappingProxyType({}))
    links_seen_up: frozenset[int] = frozenset()
    links_remembered: bool = False


def after(record: Record, vitals: Vitals, *, now: float, limits: Limits) -> Record:
    """Return the record after one more poll."""
    up = {link for link, active in vitals.by_link(Vital.NVLINK_ACTIVE).items() if active}
    return replace(
        _counted(record, vitals, now=now, limits=limits),
        shares=MappingProxyType({**record.shares, **_shares(record, vitals, now=now, limits=limits)}),
        links_seen_up=record.links_seen_up | up,
    )


def without_counts(record: Record) -> Record:
    """Return the record without the values that a GPU reset or a new driver restarts."""
    return Record(links_seen_up=record.links_seen_up, links_remembered=record.links_remembered)


def _counted(record: Record, vitals: Vitals, *, now: float, limits: Limits) -> Record:
    lengths = _window_lengths(limits)
    counters, windows = dict(record.counters), dict(record.windows)
    for key, value in vitals.values.items():
        length = lengths.get(key[0])
        if length is None:
            continue
        before = counters.get(key)
        counters[key] = Baseline(value=value, at=now)
        window = windows.get(key, Window(length=length))
        growth = 0
        if before is not None and value < before.value:
            window = Window(length=length)  # the counter restarted: a reset, or a new driver
        elif before is not None and now - before.at <= length:  # otherwise the time of the growth is unknown
            growth = value - before.value
        windows[key] = window.with_sample(now=now, hits=growth)
    return replace(record, counters=MappingProxyType(counters), windows=MappingProxyType(windows))


@functools.cache
def _window_lengths(limits: Limits) -> Mapping[Vital, float]:
    return {
        Vital.ECC_CORRECTED: limits.corrected_window,
        **dict.fromkeys(NVLINK_COUNTERS, limits.link_window),
        **dict.fromkeys((*PCIE_CORRECTED, *PCIE_UNCORRECTED), limits.pcie_window),
    }


def _shares(record: Record, vitals: Vitals, *, now: float, limits: Limits) -> dict[FindingKind, Window]:
    samples = {
        FindingKind.THROTTLED: (_throttled(vitals), limits.throttled_window),
        FindingKind.SLOW_UNDER_LOAD: (slow(vitals, limits=limits), limits.slow_window),
    }
    return {
        kind: record.shares.get(kind, Window(length=length)).with_sample(now=now, hits=int(seen))
        for kind, (seen, length) in samples.items()
        if seen is not None
    }


def _throttled(vitals: Vitals) -> bool | None:
    reasons = vitals.get(Vital.CLOCKS_EVENT_REASONS)
    return None if reasons is None else bool(reasons & HARDWARE_SLOWDOWN)


def slow(vitals: Vitals, *, limits: Limits) -> bool | None:
    """Return whether the GPU is at full load, far below its clocks, without a reason from the driver.

    None when idle, or where one of these values is unknown.
    """
    used, clock, most = (vitals.get(each) for each in (Vital.UTILIZATION, Vital.SM_CLOCK, Vital.SM_CLOCK_MAX))
    reasons = vitals.get(Vital.CLOCKS_EVENT_REASONS)
    if used is None or clock is None or not most or reasons is None or used < limits.slow_utilization:
        return None
    return reasons == 0 and clock < limits.slow_clock * most
