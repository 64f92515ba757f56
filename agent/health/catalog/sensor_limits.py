"""The limits from which a reading of a GPU or a NIC is a fault, and from which it is over: part of the catalog.

The meaning and the origin of each number: ``agent.health.gpu.limits`` and ``agent.health.nic.links``.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final, TypeVar

from kubemend.agent.health.gpu.limits import Limits
from kubemend.agent.health.nic.links import LinkLimits

_Group = TypeVar("_Group", Limits, LinkLimits)

GROUPS: Final = ("gpu", "nic")


@dataclass(frozen=True, slots=True)
class SensorLimits:
    """The limits for GPUs and for NICs. Times are in seconds."""

    gpu: Limits = field(default_factory=Limits)
    nic: LinkLimits = field(default_factory=LinkLimits)

    def changed(self, given: object) -> "SensorLimits":
        """Return the limits with these changes: ``{"gpu": {"settle": 30}}``. Raises ValueError with a hint."""
        groups = _mapping(given, name="limits")
        if unknown := sorted(set(groups) - set(GROUPS)):
            raise ValueError(f"limits has no group {unknown[0]!r}: use {' or '.join(GROUPS)}")
        return SensorLimits(
            gpu=_changed(self.gpu, groups.get("gpu", {}), name="limits.gpu"),
            nic=_changed(self.nic, groups.get("nic", {}), name="limits.nic"),
        )


def _changed(limits: _Group, given: object, *, name: str) -> _Group:
    changes: dict[str, Any] = {}
    known = {each.name for each in fields(limits)}
    for key, value in _mapping(given, name=name).items():
        if key not in known:
            raise ValueError(f"{name} has no limit {key!r}: use {', '.join(sorted(known))}")
        whole = isinstance(getattr(limits, key), int)
        number = value if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
        if not 0 < number < _LARGEST or (whole and number != int(number)):
            kind = "a whole number" if whole else "a number"
            raise ValueError(f"{name}.{key} is {value!r}: write {kind} of more than 0")
        changes[key] = int(number) if whole else float(number)
    return replace(limits, **changes)


def _mapping(given: object, *, name: str) -> Mapping[str, object]:
    if not isinstance(given, Mapping):
        raise ValueError(f"{name} is not a mapping: write names and numbers")  # noqa: TRY004 - a file is wrong, not the program
    return {str(key): value for key, value in given.items()}


_LARGEST = 1e9
