"""The catalog of fault codes: the meaning of each, the action it calls for, and the faults that cause it.

Values only; ``catalog_file`` parses them. A code that is not in the catalog is reported and never acted on alone:
``ActionClass.ASK_DRIVER``.
"""

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, NamedTuple, Protocol

from kubemend.agent.health.catalog.repeats import Repeats
from kubemend.agent.health.catalog.sensor_limits import SensorLimits
from kubemend.agent.health.catalog.subcodes import Registers, SubCode
from kubemend.agent.model.actions import ActionClass
from kubemend.agent.model.findings import FindingKind


class FaultKey(NamedTuple):
    """The name of a fault: its kind and its code. The code is empty for kinds that have none."""

    kind: FindingKind
    code: str = ""

    def __str__(self) -> str:
        return f"{self.kind.value} {self.code}".strip()


class Fault(Protocol):
    """An object with a kind, a code and an action: a finding, or an active fault raised by one."""

    @property
    def kind(self) -> FindingKind: ...
    @property
    def code(self) -> str: ...
    @property
    def action(self) -> ActionClass: ...


class AppCaused(enum.Enum):
    """Whether the workload's own code can cause the fault."""

    YES = "yes"
    MAYBE = "maybe"
    NO = "no"


@dataclass(frozen=True, slots=True)
class Entry:
    """The catalog's entry for one fault.

    ``does`` describes kubemend's reaction where it goes beyond that of the action class. ``nvidia`` is NVIDIA's own
    advice, quoted from its Xid catalog. ``effect_of`` are the faults that cause this one: if it follows one of them
    shortly on the same device, it is not a cause of its own. ``cancels`` are the faults that it ends. With
    ``word_decides`` the driver's severity in the line (Fatal, Non-fatal) takes precedence over ``action``. ``subcodes``
    take precedence over both: the first that matches the registers in the line decides. ``repeats`` is the action for
    frequent repetition. ``over_after`` applies to a fault that describes a state, but whose source never sees it end (a
    line in a log): seconds without another occurrence after which it counts as over. ``ends_programs``: no program can
    continue on the device after it, whether it exits or hangs.
    """

    key: FaultKey
    name: str
    action: ActionClass
    app_caused: AppCaused
    meaning: str
    does: str = ""
    nvidia: str = ""
    note: str = ""
    effect_of: frozenset[FaultKey] = frozenset()
    cancels: frozenset[FaultKey] = frozenset()
    word_decides: bool = False
    subcodes: tuple[SubCode, ...] = ()
    repeats: Repeats | None = None
    over_after: float | None = None
    ends_programs: bool = False


@dataclass(frozen=True, slots=True)
class Catalog:
    """All entries, by kind and code.

    ``does`` describes kubemend's reaction to each action class; ``limits`` are those of measured values.
    """

    version: str
    entries: Mapping[FaultKey, Entry]
    does: Mapping[ActionClass, str]
    limits: SensorLimits = field(default_factory=SensorLimits)
    _effects: Mapping[FaultKey, frozenset[FaultKey]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_effects", _inverse(self.entries.values()))

    def find(self, key: FaultKey) -> Entry | None:
        """Return the entry of a fault, or None. A kind without codes has one entry for all."""
        return self.entries.get(key) or self.entries.get(FaultKey(key.kind))

    def reaction(self, entry: Entry) -> str:
        """Return a description of kubemend's reaction to a fault."""
        return entry.does or self.does[entry.action]

    def effects(self, key: FaultKey) -> frozenset[FaultKey]:
        """Return the faults that this one is known to cause."""
        return self._effects.get(key, frozenset())

    def is_side_effect(self, cause: Fault, effect: Fault) -> bool:
        """Return whether the second fault is merely an effect of the first, given that it followed shortly.

        A more severe finding is never suppressed: the effect of a fault may be worse than the fault. The caller checks
        that both concern the same device, and the time between them.
        """
        entry = self.find(FaultKey(effect.kind, effect.code))
        return (
            entry is not None
            and FaultKey(cause.kind, cause.code) in entry.effect_of
            and effect.action.severity <= cause.action.severity
        )

    def cancels(self, key: FaultKey) -> frozenset[FaultKey]:
        """Return the faults that this one ends on the same device."""
        entry = self.find(key)
        return entry.cancels if entry is not None else frozenset()

    def subcode(self, key: FaultKey, registers: Registers) -> SubCode | None:
        """Return the rule for the registers in a line, or None where there is none."""
        entry = self.find(key)
        return next((rule for rule in entry.subcodes if rule.fits(registers)), None) if entry is not None else None

    def classify(self, kind: FindingKind, code: str) -> ActionClass:
        """Return the action that a fault calls for, when no more is known of it than its kind and code."""
        return self.action(FaultKey(kind, code))

    def action(self, key: FaultKey, *, severity: str | None = None, registers: Registers | None = None) -> ActionClass:
        """Return the action that a fault calls for.

        ``severity`` is the driver's severity in the line, ``Fatal`` or ``Non-fatal``; ``registers`` are those in the
        line. A rule for the registers takes precedence over the severity, but Fatal gives at least AskDriver.
        """
        entry = self.find(key)
        action = entry.action if entry is not None else ActionClass.ASK_DRIVER
        rule = self.subcode(key, registers) if registers is not None else None
        if rule is not None:
            return _graver(rule.action, ActionClass.ASK_DRIVER) if severity == "Fatal" else rule.action
        word_decides = entry.word_decides if entry is not None else key.kind is FindingKind.SXID
        if not word_decides or severity is None:
            return action
        if severity == "Non-fatal":
            return ActionClass.NONE
        return _graver(action, ActionClass.ASK_DRIVER)

    def after_repeats(self, key: FaultKey, times: Iterable[float]) -> ActionClass:
        """Return the additional action that a fault calls for after occurring at all these times on one device.

        ``times`` are in seconds of one clock, in any order. ``ActionClass.NONE``: no additional action. Where the
        entry's ``repeats.same`` names evidence, only occurrences with equal evidence belong together.
        """
        entry = self.find(key)
        repeats = entry.repeats if entry is not None else None
        return repeats.action if repeats is not None and repeats.reached(times) else ActionClass.NONE

    def may_follow_graver(self, key: FaultKey) -> bool:
        """Return whether the cause of a fault of a program may be a graver one, which is reported only after it.

        Not for a fault that the program itself causes: the program is lost in any case. True for unknown
        faults.
        """
        entry = self.find(key)
        return entry is None or entry.app_caused is not AppCaused.YES

    def over_after(self, key: FaultKey) -> float | None:
        """Return the seconds without another occurrence after which a fault is over; None: other evidence ends it."""
        entry = self.find(key)
        return entry.over_after if entry is not None else None

    def ends_programs(self, key: FaultKey) -> bool:
        """Return whether no program can continue on the device after a fault; False for unknown faults."""
        entry = self.find(key)
        return entry is not None and entry.ends_programs


def _graver(one: ActionClass, other: ActionClass) -> ActionClass:
    return max(one, other, key=lambda action: action.severity)


def _inverse(entries: Iterable[Entry]) -> Mapping[FaultKey, frozenset[FaultKey]]:
    effects: dict[FaultKey, set[FaultKey]] = {}
    for entry in entries:
        for cause in entry.effect_of:
            effects.setdefault(cause, set()).add(entry.key)
    return MappingProxyType({cause: frozenset(keys) for cause, keys in effects.items()})


EMPTY: Final = Catalog(version="", entries=MappingProxyType({}), does=MappingProxyType({}))
"""An empty catalog: no fault is related to another."""
