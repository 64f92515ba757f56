"""Rules on a GPU's links: NVLink, its fabric, PCIe."""

from collections.abc import Collection, Mapping

from kubemend.agent.health.gpu.judgement import OVER, Judgement, Rule, Sample
from kubemend.agent.health.gpu.readings import Key, Vital
from kubemend.agent.health.gpu.record import NVLINK_COUNTERS, PCIE_CORRECTED, PCIE_UNCORRECTED
from kubemend.agent.model.findings import FindingKind

_NOT_STARTED, _IN_PROGRESS, _COMPLETED = 1, 2, 3  # NVML_GPU_FABRIC_STATE_*
_IDLE = 0x1  # nvmlClocksEventReasonGpuIdle

# Value of a field of the fabric health mask: 0 is "not supported", 2 is "no" (so a mask other than 0 may be healthy).
_TRUE = 1
_FABRIC_FLAGS = {  # shift of each 2-bit field, NVML_GPU_FABRIC_HEALTH_MASK_SHIFT_*
    0: "bandwidth is degraded",
    2: "a route is being recovered",
    4: "a route is unhealthy",
    6: "it recovers from an access timeout",
}
_CONFIGURATION_SHIFT, _CONFIGURATION_MASK = 8, 0xF
_CONFIGURATION_FAULTS = {  # NVML_GPU_FABRIC_HEALTH_MASK_INCORRECT_CONFIGURATION_*: 0 not supported, 1 none
    2: "its system GUID is wrong",
    3: "its chassis serial number is wrong",
    4: "it has no partition",
    5: "it has too few NVLinks",
    6: "its firmware is incompatible",
    7: "its location is invalid",
    8: "its GPU state is invalid",
}


def _link_down(sample: Sample) -> Judgement | None:
    """Judge whether a link that was up on this boot is down.

    Under MIG no traffic uses NVLink (MIG user guide: no P2P), so none is missing. A fault concerns links that its agent
    has seen up: if those of previous agents are unknown, theirs may concern any link.
    """
    if sample.get(Vital.MIG_MODE):
        return sample.settled
    active = sample.vitals.by_link(Vital.NVLINK_ACTIVE)
    down = sorted(link for link in sample.record.links_seen_up if active.get(link) == 0)
    if down:
        text = f"NVLink {', '.join(map(str, down))} of {len(active)} is down"
        return Judgement(holds=True, text=text, after=sample.limits.link_down, mark=tuple(down))
    unread = any(vital is Vital.NVLINK_ACTIVE for vital, _ in sample.vitals.errors)
    known = bool(active) and not unread and sample.record.links_seen_up <= active.keys()
    judges_all = sample.held or sample.record.links_remembered or all(active.values())
    return sample.settled if known and judges_all else None


def _link_errors(sample: Sample) -> Judgement | None:
    """Judge whether links repeat or recover too many transfers; under MIG there are none (``_link_down``)."""
    if sample.get(Vital.MIG_MODE):
        return sample.settled
    keys = [key for key in sample.vitals.values if key[0] in NVLINK_COUNTERS]
    bad = sorted({link for _, link in _above(sample, keys, most=sample.limits.link_errors)})
    if bad:
        text = f"more than {sample.limits.link_errors} errors in {sample.limits.link_window / 60:g} min on NVLink "
        return Judgement(holds=True, text=text + ", ".join(map(str, bad)), mark=tuple(bad))
    quiet = _quiet(sample, keys, most=sample.limits.link_errors) and not _failed(sample, NVLINK_COUNTERS)
    return OVER if quiet else None


def _fabric_failed(sample: Sample) -> Judgement | None:
    state, status = sample.get(Vital.FABRIC_STATE), sample.get(Vital.FABRIC_STATUS)
    if state in (_NOT_STARTED, _IN_PROGRESS):
        text = "the fabric manager has not initialized the GPU"
        return Judgement(holds=True, text=text, after=sample.limits.fabric_wait, mark=state)
    if state != _COMPLETED or status is None:
        return None
    if status == 0:
        return sample.settled
    return Judgement(holds=True, text=f"initializing its NVLink fabric failed with NVML error {status}", mark=status)


def _fabric_degraded(sample: Sample) -> Judgement | None:
    mask = sample.get(Vital.FABRIC_HEALTH)
    if mask is None or sample.get(Vital.FABRIC_STATE) != _COMPLETED:
        return None
    degradations = [text for shift, text in _FABRIC_FLAGS.items() if mask >> shift & 0b11 == _TRUE]
    fault = _CONFIGURATION_FAULTS.get(mask >> _CONFIGURATION_SHIFT & _CONFIGURATION_MASK)
    degradations += [fault] if fault is not None else []
    if not degradations:
        return sample.settled
    return Judgement(holds=True, text=f"NVLink fabric: {', '.join(degradations)}", mark=tuple(degradations))


def _pcie_narrow(sample: Sample) -> Judgement | None:
    return _below(sample, Vital.PCIE_WIDTH, Vital.PCIE_WIDTH_MAX, text="PCIe link has {} of {} lanes")


def _pcie_slow(sample: Sample) -> Judgement | None:
    text = "PCIe link runs at generation {} instead of {}"
    return _below(sample, Vital.PCIE_GENERATION, Vital.PCIE_GENERATION_MAX, text=text)


def _below(sample: Sample, current: Vital, most: Vital, *, text: str) -> Judgement | None:
    """Judge a link property.

    A full value proves that the link is well; a lower value counts only while the GPU works.
    """
    now, could = sample.get(current), sample.get(most)
    if not now or not could:
        return None
    if now >= could:
        return sample.settled
    if not _works(sample):
        return None
    return Judgement(holds=True, text=text.format(now, could), after=sample.limits.pcie_begin, mark=now)


def _works(sample: Sample) -> bool:
    used, pstate, reasons = (sample.get(each) for each in (Vital.UTILIZATION, Vital.PSTATE, Vital.CLOCKS_EVENT_REASONS))
    if used is not None:
        return used >= sample.limits.busy
    return pstate == 0 and reasons is not None and not reasons & _IDLE  # under MIG there is no utilization


def _pcie_errors(sample: Sample) -> Judgement | None:
    corrected = [(vital, 0) for vital in PCIE_CORRECTED if sample.get(vital) is not None]
    uncorrected = [(vital, 0) for vital in PCIE_UNCORRECTED if sample.get(vital) is not None]
    most = sample.limits.pcie_replays
    bad = [*_above(sample, uncorrected, most=0), *_above(sample, corrected, most=most)]
    if bad:
        names = ", ".join(vital.value.removeprefix("pcie-") for vital, _ in bad)
        text = f"PCIe link counts errors ({names}) in {sample.limits.pcie_window / 60:g} min"
        return Judgement(holds=True, text=text, mark=tuple(bad))
    failed = _failed(sample, (*PCIE_CORRECTED, *PCIE_UNCORRECTED))
    quiet = _quiet(sample, [*corrected, *uncorrected], most=most) and not failed
    return OVER if quiet else None


def _above(sample: Sample, keys: list[Key], *, most: int) -> list[Key]:
    return [key for key in keys if sample.record.windows[key].hits > most]


def _failed(sample: Sample, vitals: Collection[Vital]) -> bool:
    """Return whether a counter that was read before could not be read: it may be the one that has grown."""
    return any(key[0] in vitals and key in sample.record.windows for key in sample.vitals.errors)


def _quiet(sample: Sample, keys: list[Key], *, most: int) -> bool:
    """Return whether there are any keys, all were watched for a whole window, and stayed well below the limit."""
    windows = [sample.record.windows[key] for key in keys]
    return bool(windows) and all(window.full(now=sample.now) and 2 * window.hits <= most for window in windows)


RULES: Mapping[FindingKind, Rule] = {
    FindingKind.NVLINK_DOWN: _link_down,
    FindingKind.NVLINK_ERRORS: _link_errors,
    FindingKind.FABRIC_FAILED: _fabric_failed,
    FindingKind.FABRIC_DEGRADED: _fabric_degraded,
    FindingKind.PCIE_NARROW: _pcie_narrow,
    FindingKind.PCIE_SLOW: _pcie_slow,
    FindingKind.PCIE_ERRORS: _pcie_errors,
}
