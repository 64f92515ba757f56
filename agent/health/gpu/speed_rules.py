"""Rules for heat, clocks, and NVML errors that concern the board itself."""

from collections.abc import Iterator, Mapping

from kubemend.agent.health.gpu import record
from kubemend.agent.health.gpu.judgement import BETWEEN, OVER, Judgement, Rule, Sample
from kubemend.agent.health.gpu.readings import Vital
from kubemend.agent.model.findings import FindingKind

BOARD_FAULTS = frozenset({8, 11, 14})
"""nvmlReturn_t: INSUFFICIENT_POWER, IRQ_ISSUE, CORRUPTED_INFOROM. No other error is evidence about the board."""


def _throttled(sample: Sample) -> Judgement | None:
    window = sample.record.shares.get(FindingKind.THROTTLED)
    if window is None or sample.get(Vital.CLOCKS_EVENT_REASONS) is None or not window.full(now=sample.now):
        return None
    if window.share >= sample.limits.throttled_share:
        text = f"hardware slowed it down in {window.share:.0%} of the last {window.length / 60:g} min"
        return Judgement(holds=True, text=text)
    return OVER if window.share <= sample.limits.throttled_over else None


def _hot(sample: Sample) -> Judgement | None:
    """Judge whether the GPU is at its slowdown temperature; by its margin where the GPU reports that instead.

    A sensor that showed the heat and cannot be read shows no end of it.
    """
    distances = dict(_distances(sample))
    hot = tuple(vital for vital, distance in distances.items() if distance <= 0)
    if hot:
        names = ("memory" if vital is Vital.MEMORY_TEMPERATURE else "GPU" for vital in hot)
        text = f"{' and '.join(names)} at the temperature limit"
        return Judgement(holds=True, text=text, after=sample.limits.hot_begin, mark=hot)
    if not distances or any((vital, 0) in sample.vitals.errors for vital in sample.mark or ()):
        return None
    cool = all(distance >= sample.limits.hot_release for distance in distances.values())
    return sample.settled if cool else BETWEEN


def _distances(sample: Sample) -> Iterator[tuple[Vital, int]]:
    """Yield each temperature's sensor with the degrees left until the hardware slows the GPU down."""
    margin, slowdown = sample.get(Vital.TEMPERATURE_MARGIN), sample.get(Vital.SLOWDOWN_MARGIN)
    if margin is not None:
        yield Vital.TEMPERATURE_MARGIN, margin - (slowdown or 0)
    elif (left := _left(sample, Vital.TEMPERATURE, Vital.SLOWDOWN_TEMPERATURE)) is not None:
        yield Vital.TEMPERATURE, left
    if (left := _left(sample, Vital.MEMORY_TEMPERATURE, Vital.MEMORY_MAX_TEMPERATURE)) is not None:
        yield Vital.MEMORY_TEMPERATURE, left


def _left(sample: Sample, current: Vital, limit: Vital) -> int | None:
    now, most = sample.get(current), sample.get(limit)
    return most - now if now and most else None  # some boards report 0 for values that they do not measure


def _slow(sample: Sample) -> Judgement | None:
    window = sample.record.shares.get(FindingKind.SLOW_UNDER_LOAD)
    clock, most = sample.get(Vital.SM_CLOCK), sample.get(Vital.SM_CLOCK_MAX)
    counts = record.slow(sample.vitals, limits=sample.limits) is not None
    if window is None or not counts or not window.full(now=sample.now):
        return None
    if window.share >= sample.limits.slow_share:
        text = f"works at {clock} of {most} MHz for {window.length / 60:g} min, without a reason from the driver"
        return Judgement(holds=True, text=text)
    return OVER if 2 * window.share <= sample.limits.slow_share else None


def _board_fault(sample: Sample) -> Judgement | None:
    codes = sorted({code for code in sample.vitals.errors.values() if code in BOARD_FAULTS})
    if codes:
        text = f"NVML answers with error {', '.join(map(str, codes))}"
        return Judgement(holds=True, text=text, mark=tuple(codes), codes=tuple(map(str, codes)))
    return sample.settled if sample.vitals.full and sample.vitals.values else None


RULES: Mapping[FindingKind, Rule] = {
    FindingKind.THROTTLED: _throttled,
    FindingKind.HOT: _hot,
    FindingKind.SLOW_UNDER_LOAD: _slow,
    FindingKind.NVML_ERROR: _board_fault,
}
