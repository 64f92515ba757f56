"""Find members that lag behind their gang, from the measurements of their devices. Pure.

One slow GPU slows a whole synchronous job, and nothing fails. A member is a straggler if one measure of its devices has
been far below the gang's median for some time, and the gang was busy all that time. It is only reported. Missing data
(no sample, an old one, a negative value) neither begins a report nor ends one.
"""

import enum
import itertools
import operator
import statistics
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final

from kubemend.controller.model.members import PodUid, Sample


class Measure(enum.Enum):
    """The measures compared. A throttled GPU shows in its clock first, one that waits for input in its utilization."""

    UTILIZATION = "utilization"
    CLOCK = "clock"
    POWER = "power"


_VALUE_OF: Final[Mapping[Measure, Callable[[Sample], float]]] = MappingProxyType(
    {measure: operator.attrgetter(measure.value) for measure in Measure}
)


@dataclass(frozen=True, slots=True)
class Thresholds:
    """When a member lags; ratios refer to the gang's median, times are in seconds.

    ``behind``: ratio, by measure, below which a member lags. ``caught_up``: added to that ratio to end a report.
    ``persists``: for how long it must lag, or have caught up, without a break. ``busy``: the gang's median utilization
    must be at least that. ``fewest``: members that a median needs. ``stale``: older readings are ignored.
    """

    behind: Mapping[Measure, float] = field(
        default_factory=lambda: MappingProxyType({Measure.UTILIZATION: 0.5, Measure.CLOCK: 0.75, Measure.POWER: 0.5})
    )
    caught_up: float = 0.1
    persists: float = 120.0
    busy: float = 0.5
    fewest: int = 3
    stale: float = 30.0


DEFAULT: Final = Thresholds()


@dataclass(frozen=True, slots=True)
class Report:
    """A member has become a straggler by one measure or, if ``ended``, has caught up. ``since`` is Unix time."""

    pod: PodUid
    measure: Measure
    value: float
    median: float
    since: float
    ended: bool = False

    def __str__(self) -> str:
        if self.ended:
            return f"{self.measure.value} is back at {self.value:.0%}, the gang's median is {self.median:.0%}"
        return f"{self.measure.value} is {self.value:.0%}, the gang's median is {self.median:.0%}"


@dataclass(frozen=True, slots=True)
class Reading:
    """A member's newest values: means over those of its devices that have a value."""

    at: float
    values: Mapping[Measure, float]


_Key = tuple[PodUid, Measure]


@dataclass(frozen=True, slots=True)
class Watch:
    """The state of one gang. ``turned`` is when a member's measure crossed to the other side of its reported state."""

    thresholds: Thresholds = DEFAULT
    readings: Mapping[PodUid, Reading] = field(default_factory=lambda: MappingProxyType({}))
    turned: Mapping[_Key, float] = field(default_factory=lambda: MappingProxyType({}))
    lagging: Mapping[_Key, Report] = field(default_factory=lambda: MappingProxyType({}))

    def seen(self, fresh: Mapping[PodUid, Reading]) -> "Watch":
        """Record new readings. It copies those of all members, so those of many agents belong together."""
        return replace(self, readings=MappingProxyType(dict(self.readings) | dict(fresh)))

    def judged(self, members: Collection[PodUid], *, now: float) -> tuple["Watch", tuple[Report, ...]]:
        """Compare these members and forget all others; return the reports that begin or end now."""
        limits = self.thresholds
        known = {pod: each for pod, each in self.readings.items() if pod in members and now - each.at <= limits.stale}
        medians = {measure: _median(known.values(), measure, fewest=limits.fewest) for measure in Measure}
        load = medians[Measure.UTILIZATION]
        is_busy = load is not None and load >= limits.busy
        turned: dict[_Key, float] = {}
        lagging = {key: report for key, report in self.lagging.items() if key[0] in members}
        reports: list[Report] = []
        for pod, measure in itertools.product(sorted(known) if is_busy else (), Measure):
            key, value, median = (pod, measure), known[pod].values.get(measure), medians[measure]
            if value is None or median is None or not self._is_turned(key, value, median):
                continue
            turned[key] = since = self.turned.get(key, now)
            if now - since < limits.persists:
                continue
            del turned[key]
            report = Report(pod, measure, value, median, since, ended=key in lagging)
            reports.append(report)
            if report.ended:
                del lagging[key]
            else:
                lagging[key] = report
        readings = {pod: each for pod, each in self.readings.items() if pod in members}
        after = Watch(limits, MappingProxyType(readings), MappingProxyType(turned), MappingProxyType(lagging))
        return after, tuple(reports)

    def _is_turned(self, key: _Key, value: float, median: float) -> bool:
        part = self.thresholds.behind[key[1]]
        if key in self.lagging:
            return value >= (part + self.thresholds.caught_up) * median
        return value < part * median


def read(samples: Iterable[Sample], *, now: float) -> dict[PodUid, Reading]:
    """Return the readings of members from measurements of an agent, which contain all devices of a member."""
    by_pod: dict[PodUid, list[Sample]] = {}
    for sample in samples:
        by_pod.setdefault(sample.pod, []).append(sample)
    return {pod: Reading(now, _means(own)) for pod, own in by_pod.items()}


def _means(samples: Sequence[Sample]) -> Mapping[Measure, float]:
    by_measure = {measure: [value for value in map(get, samples) if value >= 0] for measure, get in _VALUE_OF.items()}
    return {measure: sum(values) / len(values) for measure, values in by_measure.items() if values}


def _median(readings: Iterable[Reading], measure: Measure, *, fewest: int) -> float | None:
    values = [each.values[measure] for each in readings if measure in each.values]
    return statistics.median(values) if len(values) >= fewest else None
