"""The catalog of fault codes: what each one means, what it asks for, and which other fault brings it about.

Values only; ``agent.health.catalog_file`` reads them from text. A code that is not in the catalog is reported and
never acted on alone: ``ActionClass.ASK_DRIVER``.
"""

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, NamedTuple, Protocol

from agent.health.repeats import Repeats
from agent.health.sensor_limits import SensorLimits
from agent.health.subcodes import Registers, SubCode
from agent.model.actions import ActionClass
from agent.model.findings import FindingKind


class FaultKey(NamedTuple):
    """How a fault is named: its kind and its code. Kinds that have no codes of their own have an empty one."""

    kind: FindingKind
    code: str = ""

    def __str__(self) -> str:
        return f"{self.kind.value} {self.code}".strip()


class Fault(Protocol):
    """What has a kind, a code and an action: a finding, or what is held because of one."""

    @property
    def kind(self) -> FindingKind: ...
    @property
    def code(self) -> str: ...
    @property
    def action(self) -> ActionClass: ...


class AppCaused(enum.Enum):
    """Whether the workload's own code can bring the fault about."""

    YES = "yes"
    MAYBE = "maybe"
    NO = "no"


@dataclass(frozen=True, slots=True)
class Entry:
    """What is known of one fault.

    ``does`` says what kubemend does where that is more than what holds for the whole action class. ``nvidia`` is
    NVIDIA's own advice in the words of its Xid catalog. ``effect_of`` are the faults that bring this one about:
    seen shortly after one of them on the same device it is no cause of its own. ``cancels`` are those that it
    takes back. With ``word_decides`` the driver's word in the line (Fatal, Non-fatal) goes before ``action``.
    ``subcodes`` go before both: the first that fits the registers in the line decides. ``repeats`` is what many of
    them ask for. ``over_after`` is for how many seconds a fault that says how something is, but whose source never
    sees it end (a line in a log), must not have been seen again to be taken for over. ``ends_programs``: no program can
    go on with the device after it, whether it exits or hangs.
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

    ``does`` says for people what kubemend does about each action class; ``limits`` are those of what is measured.
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

    def what_is_done(self, entry: Entry) -> str:
        """Say for people what kubemend does about a fault."""
        return entry.does or self.does[entry.action]

    def effects(self, key: FaultKey) -> frozenset[FaultKey]:
        """Return the faults that this one is known to bring about."""
        return self._effects.get(key, frozenset())

    def swallows(self, cause: Fault, effect: Fault) -> bool:
        """Whether the second fault is merely an effect of the first, given that it came shortly after it.

        A graver finding is never swallowed: what follows a fault may be worse than the fault. Whether the two
        concern the same device, and how short is shortly, is for the caller.
        """
        entry = self.find(FaultKey(effect.kind, effect.code))
        return (
            entry is not None
            and FaultKey(cause.kind, cause.code) in entry.effect_of
            and effect.action.severity <= cause.action.severity
        )

    def cancels(self, key: FaultKey) -> frozenset[FaultKey]:
        """Return the faults that this one takes back: what was held for them on the same device is over."""
        entry = self.find(key)
        return entry.cancels if entry is not None else frozenset()

    def subcode(self, key: FaultKey, registers: Registers) -> SubCode | None:
        """Return the rule for the registers in a line, or None where there is none for them."""
        entry = self.find(key)
        return next((rule for rule in entry.subcodes if rule.fits(registers)), None) if entry is not None else None

    def action(self, key: FaultKey, *, severity: str | None = None, registers: Registers | None = None) -> ActionClass:
        """Return what a fault asks for.

        ``severity`` is the driver's word in the line, ``Fatal`` or ``Non-fatal``; ``registers`` are those in the line.
        A rule for the registers goes before the word, but where the driver says Fatal it is asked at least.
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
        """Return what a fault asks for, on top of its own class, once it has come at all these times on one device.

        ``times`` are in seconds of one clock, in any order. ``ActionClass.NONE``: that often says nothing more. Where
        the entry's ``repeats.same`` names evidence, only those that are equal in it belong together.
        """
        entry = self.find(key)
        repeats = entry.repeats if entry is not None else None
        return repeats.action if repeats is not None and repeats.reached(times) else ActionClass.NONE

    def over_after(self, key: FaultKey) -> float | None:
        """Return for how many seconds a fault must not be seen again to be over; None: other evidence ends it."""
        entry = self.find(key)
        return entry.over_after if entry is not None else None

    def ends_programs(self, key: FaultKey) -> bool:
        """Return whether no program can go on with the device after a fault. Of unknown ones nobody knows that."""
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
"""Knows nothing: each fault stands for itself."""
