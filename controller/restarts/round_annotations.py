"""Parse the annotations with a round's first status. Pure.

Any user with the right to create Restarts can write them, and the API server does not validate annotations. So only
values that later code can handle are accepted.
"""

import json
from collections.abc import Mapping
from types import MappingProxyType, UnionType
from typing import Any, Final

from kubemend.common.kube import timestamps
from kubemend.controller.restarts import names

_HIGHEST_ATTEMPT: Final = 2**31 - 1  # int32 in the resource
_HIGHEST_EPOCH: Final = 2**64 - 1  # uint64 in coordination/v1
_WIDEST_NUMBER: Final = 3e10  # as Unix time almost a thousand years from now, and still a date
_BEGUN_WITH: Final[Mapping[str, type]] = MappingProxyType(
    {
        "phase": str,
        "attempt": int,
        "trigger": dict,
        "decision": dict,
        "members": dict,
        "startTime": str,
        "resume": dict,
    }
)
"""The fields of a round's first status, with their types."""


def status(text: str) -> dict[str, Any]:
    """Return the status that a round began with. Raises ValueError or TypeError."""
    try:
        read = json.loads(text, parse_int=_number, parse_float=_number, parse_constant=_number)
    except RecursionError:
        raise ValueError(f"annotation {names.ROUND} is nested too deeply") from None
    _expect(dict, read)
    kept = {name: read[name] for name in _BEGUN_WITH if name in read}
    for name, value in kept.items():
        _expect(_BEGUN_WITH[name], value)
    trigger, decision = kept.get("trigger", {}), kept.get("decision", {})
    for value in (*trigger.values(), *decision.values()):
        _expect(str, value)
    for value in kept.get("members", {}).values():
        _expect(int, value)
    resume = kept.get("resume", {})
    _expect(str, resume.get("gang", ""))
    for value in resume.values():
        for each in value if isinstance(value, list) else ():
            _expect(str, each)
        _expect(str | int | float | list | None, value)
    for time in (kept.get("startTime"), trigger.get("time")):
        if time is not None:
            timestamps.unix(time)
    return kept


def attempt(text: str) -> int:
    """Return a round's number. Raises ValueError."""
    return _within(text, 1, _HIGHEST_ATTEMPT)


def epoch(text: str) -> int:
    """Return the epoch of the leader that owns a round. Raises ValueError."""
    return _within(text, 0, _HIGHEST_EPOCH)


def _number(text: str) -> int | float:
    """Return a number. Raises ValueError if it is invalid or out of range."""
    value = float(text)
    if not abs(value) <= _WIDEST_NUMBER:
        raise ValueError(f"annotation {names.ROUND} has the number {text[:20]}")
    return int(text) if text.lstrip("-").isdecimal() else value


def _within(text: str, low: int, high: int) -> int:
    number = int(text)
    if not low <= number <= high:
        raise ValueError(f"{number} is not from {low} to {high}")
    return number


def _expect(kind: type | UnionType, value: object) -> None:
    if not isinstance(value, kind):
        raise TypeError(f"annotation {names.ROUND} has {type(value).__name__} instead of {kind}")
