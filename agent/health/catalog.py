"""The catalog of fault codes: what each one means, what it asks for, and which other fault brings it about.

Values only; ``agent.health.catalog_file`` reads them from text. A code that is not in the catalog is reported and
never acted on alone: ``ActionClass.ASK_DRIVER``.
"""

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

from agent.model.actions import ActionClass
from agent.model.findings import Finding, FindingKind


class FaultKey(NamedTuple):
    """How a fault is named: its kind and its code. Kinds that have no codes of their own have an empty one."""

    kind: FindingKind
    code: str = ""

    def __str__(self) -> str:
        return f"{self.kind.value} {self.code}".strip()


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


@dataclass(frozen=True, slots=True)
class Catalog:
    """All entries, by kind and code. ``does`` says for people what kubemend does about each action class."""

    version: str
    entries: Mapping[FaultKey, Entry]
    does: Mapping[ActionClass, str]
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

    def swallows(self, cause: Finding, effect: Finding) -> bool:
        """Whether the second finding is merely an effect of the first, given that it came shortly after it.

        A graver finding is never swallowed: what follows a fault may be worse than the fault. Whether the two
        concern the same device, and how short is shortly, is for the caller.
        """
        entry = self.find(FaultKey(effect.kind, effect.code))
        return (
            entry is not None
            and FaultKey(cause.kind, cause.code) in entry.effect_of
            and effect.action.severity <= cause.action.severity
        )

    def action(self, key: FaultKey, *, severity: str | None = None) -> ActionClass:
        """Return what a fault asks for. ``severity`` is the driver's word in the line, ``Fatal`` or ``Non-fatal``."""
        entry = self.find(key)
        action = entry.action if entry is not None else ActionClass.ASK_DRIVER
        word_decides = entry.word_decides if entry is not None else key.kind is FindingKind.SXID
        if not word_decides or severity is None:
            return action
        if severity == "Non-fatal":
            return ActionClass.NONE
        return max(action, ActionClass.ASK_DRIVER, key=lambda each: each.severity)


def _inverse(entries: Iterable[Entry]) -> Mapping[FaultKey, frozenset[FaultKey]]:
    effects: dict[FaultKey, set[FaultKey]] = {}
    for entry in entries:
        for cause in entry.effect_of:
            effects.setdefault(cause, set()).add(entry.key)
    return MappingProxyType({cause: frozenset(keys) for cause, keys in effects.items()})
