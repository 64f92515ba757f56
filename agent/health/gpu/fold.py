"""Fold the polls of one GPU into notices: a fault begins, or is over. Each is emitted once.

A fault begins when its rule has reported it for long enough, and is over when the rule has reported its absence for
long enough. Unknown changes nothing. A fault that was never emitted and is absent is emitted as over once, because a
previous agent may have raised it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from kubemend.agent.health.gpu import link_rules, memory_rules, record, speed_rules
from kubemend.agent.health.gpu.judgement import Judgement, Rule, Sample
from kubemend.agent.health.gpu.limits import Limits
from kubemend.agent.health.gpu.readings import Vitals
from kubemend.agent.health.gpu.record import Record
from kubemend.agent.model.findings import FindingKind

RULES: Mapping[FindingKind, Rule] = MappingProxyType({**memory_rules.RULES, **link_rules.RULES, **speed_rules.RULES})


@dataclass(frozen=True, slots=True)
class Notice:
    """One notice: a fault of this kind, or ``FAULT_OVER`` with the kind that is over as its code."""

    kind: FindingKind
    code: str = ""
    text: str = ""


@dataclass(frozen=True, slots=True)
class EmittedState:
    """The last emitted state of one kind, and since when (monotonic seconds) the rule has reported the opposite.

    ``held`` is None until something was emitted; ``turning`` is the rule's result when it differs from ``held``.
    """

    held: bool | None = None
    mark: object = None
    emitted_at: float = float("-inf")
    turning: bool | None = None
    since: float = 0.0


@dataclass(frozen=True, slots=True)
class GpuVitals:
    """The complete state of one GPU. ``at`` is when it was last read, in monotonic seconds.

    ``unobserved``: kinds of faults whose value the GPU or its driver did not have at the last full poll.
    """

    at: float = float("-inf")
    record: Record = field(default_factory=Record)
    emitted_states: Mapping[FindingKind, EmittedState] = field(default_factory=lambda: MappingProxyType({}))
    unobserved: frozenset[FindingKind] = frozenset()

    def held(self) -> frozenset[FindingKind]:
        """Return the kinds that were emitted and are not over."""
        return frozenset(kind for kind, emitted_state in self.emitted_states.items() if emitted_state.held)

    def joins_fabric(self, limits: Limits) -> bool:
        """Return whether CUDA does not start on the GPU yet, and the fabric manager may still initialize it."""
        state = self.emitted_states.get(FindingKind.FABRIC_FAILED, EmittedState())
        return state.turning is True and self.at - state.since < limits.fabric_wait


def fold(state: GpuVitals, vitals: Vitals, *, now: float, limits: Limits) -> tuple[GpuVitals, tuple[Notice, ...]]:
    """Return the state after one poll at ``now`` (monotonic seconds), and the notices to emit.

    A poll that is not newer than the last changes nothing.
    """
    if now <= state.at:
        return state, ()
    remembered = record.after(state.record, vitals, now=now, limits=limits)
    sample = Sample(vitals=vitals, record=remembered, now=now, limits=limits)
    emitted_states, notices = dict(state.emitted_states), list[Notice]()
    for kind, rule in RULES.items():
        before = emitted_states.get(kind, EmittedState())
        judged = rule(replace(sample, held=True, mark=before.mark) if before.held else sample)
        if judged is not None:
            emitted_states[kind] = _next(before, judged, sample=sample)
            notices += _notices(kind, before, emitted_states[kind], judged)
    unobserved = _unobserved(vitals) if vitals.full else state.unobserved
    return GpuVitals(now, remembered, MappingProxyType(emitted_states), unobserved), tuple(notices)


def begun(state: GpuVitals, kind: FindingKind, *, now: float) -> GpuVitals:
    """Return the state after an event began a fault of this kind; the caller that received the event emits it."""
    emitted_state = EmittedState(held=True, emitted_at=now)
    return replace(state, emitted_states=MappingProxyType({**state.emitted_states, kind: emitted_state}))


def renewed(state: GpuVitals) -> GpuVitals:
    """Return the state after a GPU reset or with a new driver: counters restart, faults still need evidence."""
    return replace(state, record=record.without_counts(state.record))


def cleared(state: GpuVitals) -> GpuVitals:
    """Return the state after an operator has ended the faults that are not observed: they are emitted again if seen."""
    kept = {kind: emitted for kind, emitted in state.emitted_states.items() if kind not in state.unobserved}
    return replace(state, emitted_states=MappingProxyType(kept))


def _unobserved(vitals: Vitals) -> frozenset[FindingKind]:
    known = {vital for vital, _ in (*vitals.values, *vitals.errors)}
    return frozenset(kind for kind, vital in memory_rules.READ_FROM.items() if vital not in known)


def _next(before: EmittedState, judged: Judgement, *, sample: Sample) -> EmittedState:
    if judged.holds is None:
        return _steady(before)
    if judged.holds == before.held:
        same = judged.mark == before.mark or sample.now - before.emitted_at < sample.limits.report_interval
        return _steady(before) if not judged.holds or same else _emitted(judged, now=sample.now)
    since = before.since if before.turning is judged.holds else sample.now
    if sample.now - since < judged.after:
        return replace(before, turning=judged.holds, since=since)
    return _emitted(judged, now=sample.now)


def _steady(before: EmittedState) -> EmittedState:
    return before if before.turning is None else replace(before, turning=None)


def _emitted(judged: Judgement, *, now: float) -> EmittedState:
    return EmittedState(held=judged.holds, mark=judged.mark, emitted_at=now)


def _notices(kind: FindingKind, before: EmittedState, after: EmittedState, judged: Judgement) -> Iterator[Notice]:
    if after.emitted_at == before.emitted_at:
        return
    if after.held:
        yield from (Notice(kind=kind, code=code, text=judged.text) for code in judged.codes)
    else:
        yield Notice(kind=FindingKind.FAULT_OVER, code=kind.value)
