"""Rules on a GPU's memory: ECC errors, row remapping, page retirement, poison."""

from collections.abc import Mapping

from kubemend.agent.health.gpu.judgement import OVER, Judgement, Rule, Sample
from kubemend.agent.health.gpu.readings import Vital
from kubemend.agent.model.findings import FindingKind


def _flag(sample: Sample, vital: Vital, *, text: str) -> Judgement | None:
    value = sample.get(vital)
    if value is None:
        return None
    return Judgement(holds=True, text=text) if value else OVER


def _remap_pending(sample: Sample) -> Judgement | None:
    return _flag(sample, Vital.REMAP_PENDING, text="a row of memory waits to be remapped at the next reset")


def _remap_failed(sample: Sample) -> Judgement | None:
    return _flag(sample, Vital.REMAP_FAILED, text="a row of memory could not be remapped")


def _retirement_pending(sample: Sample) -> Judgement | None:
    return _flag(sample, Vital.RETIREMENT_PENDING, text="pages of memory wait to be retired at the next reset")


def _sram_threshold(sample: Sample) -> Judgement | None:
    return _flag(sample, Vital.SRAM_THRESHOLD, text="SRAM had more uncorrected errors than the driver allows")


def _uncorrected(sample: Sample) -> Judgement | None:
    count = sample.get(Vital.ECC_UNCORRECTED)
    if count is None:
        return None
    if count == 0:
        return OVER
    parts = ((Vital.ECC_UNCORRECTED_DRAM, "DRAM"), (Vital.ECC_UNCORRECTED_SRAM, "SRAM"))
    known = [f"{name} {value}" for vital, name in parts if (value := sample.get(vital)) is not None]
    where = f" ({', '.join(known)})" if known else ""
    text = f"{count} uncorrected memory errors{where} since the driver was loaded"
    return Judgement(holds=True, text=text, mark=count.bit_length())  # emitted again each time the count has doubled


def _corrected_rate(sample: Sample) -> Judgement | None:
    window = sample.record.windows.get((Vital.ECC_CORRECTED, 0))
    if window is None or sample.get(Vital.ECC_CORRECTED) is None:
        return None
    most = sample.limits.corrected_errors
    if window.hits > most:
        minutes = f"{window.length / 60:g} min"
        return Judgement(holds=True, text=f"more than {most} corrected memory errors in {minutes}")
    return OVER if window.full(now=sample.now) and 2 * window.hits <= most else None


def _driver_content(sample: Sample) -> Judgement | None:
    """Judge a fault that an event began: it holds while the driver recommends an action and ends on a lasting None."""
    action = sample.get(Vital.RECOVERY_ACTION)
    if action is None:
        return None
    if action != 0:
        return Judgement(holds=True) if sample.held else None
    return sample.settled


READ_FROM: Mapping[FindingKind, Vital] = {
    FindingKind.ECC_UNCORRECTED: Vital.ECC_UNCORRECTED,
    FindingKind.ECC_SRAM_THRESHOLD: Vital.SRAM_THRESHOLD,
    FindingKind.ECC_CORRECTED_RATE: Vital.ECC_CORRECTED,
    FindingKind.ROW_REMAP_PENDING: Vital.REMAP_PENDING,
    FindingKind.ROW_REMAP_FAILED: Vital.REMAP_FAILED,
    FindingKind.PAGE_RETIREMENT_PENDING: Vital.RETIREMENT_PENDING,
}
"""The one value without which a fault can neither begin nor end: a GPU with ECC switched off has no counts."""

RULES: Mapping[FindingKind, Rule] = {
    FindingKind.ECC_UNCORRECTED: _uncorrected,
    FindingKind.ECC_SRAM_THRESHOLD: _sram_threshold,
    FindingKind.ECC_CORRECTED_RATE: _corrected_rate,
    FindingKind.ROW_REMAP_PENDING: _remap_pending,
    FindingKind.ROW_REMAP_FAILED: _remap_failed,
    FindingKind.PAGE_RETIREMENT_PENDING: _retirement_pending,
    FindingKind.MEMORY_POISONED: _driver_content,
    FindingKind.GPU_UNAVAILABLE: _driver_content,
}
