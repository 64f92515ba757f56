"""Read fields of an API object with the types that they should have. Pure.

The API server has checked them if the installed schema is kubemend's. Nothing relies on that here: a wrong type or a
number out of range raises ``InvalidFieldError``, never another error. ``null`` counts as absent.
"""

import enum
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, TypeVar

from kubemend.common.kube import timestamps

INT32_MIN: Final = -(2**31)
INT32_MAX: Final = 2**31 - 1
MOST_LEVELS: Final = 64
"""Levels of nested lists and objects; a Job has some dozen. Code that traverses them may be recursive."""
_YEAR_10000: Final = 253402300800
"""Unix seconds."""

_NONE: Final[Mapping[str, Any]] = MappingProxyType({})
_Choice = TypeVar("_Choice", bound=enum.Enum)


class InvalidFieldError(ValueError):
    """An invalid object: ``where`` in it, ``what`` is wrong there, and the ``hint``."""

    def __init__(self, where: str, *, what: str, hint: str) -> None:
        super().__init__(f"{where}: {what}; {hint}")
        self.where = where
        self.what = what
        self.hint = hint


def mapping(value: object, where: str) -> Mapping[str, Any]:
    """Return an object; an empty one if it is absent."""
    if value is None:
        return _NONE
    if not isinstance(value, Mapping):
        raise _wrong(where, value, wanted="an object")
    return value


def shallow(value: object, where: str) -> None:
    """Raise InvalidFieldError for lists and objects that are nested more than MOST_LEVELS deep."""
    level = [value]
    for _ in range(MOST_LEVELS + 1):
        level = [inner for each in level for inner in _inside(each)]
        if not level:
            return
    raise InvalidFieldError(where, what="is nested too deeply", hint=f"keep to {MOST_LEVELS} levels")


def items(value: object, where: str) -> Sequence[Any]:
    """Return a list; an empty one if it is absent."""
    if value is None:
        return ()
    if not isinstance(value, list | tuple):
        raise _wrong(where, value, wanted="a list")
    return value


def objects(value: object, where: str) -> Sequence[Mapping[str, Any]]:
    """Return a list of objects; an empty one if it is absent. An element is never absent."""
    found = items(value, where)
    for index, each in enumerate(found):
        if not isinstance(each, Mapping):
            raise _wrong(f"{where}[{index}]", each, wanted="an object")
    return found


def text(value: object, where: str) -> str:
    """Return a text; "" if it is absent."""
    if value is None:
        return ""
    if not isinstance(value, str):
        raise _wrong(where, value, wanted="a text")
    return value


def name(value: object, where: str) -> str:
    """Return a text that is required."""
    found = text(value, where)
    if not found:
        raise InvalidFieldError(where, what="is missing", hint="give it a value")
    return found


def texts(value: object, where: str) -> tuple[str, ...]:
    """Return a list of texts."""
    found = items(value, where)
    for index, each in enumerate(found):
        if not isinstance(each, str):
            raise _wrong(f"{where}[{index}]", each, wanted="a text")
    return tuple(found)


def strings(value: object, where: str) -> Mapping[str, str]:
    """Return an object whose values are texts, such as labels."""
    found = mapping(value, where)
    for key, each in found.items():
        if not isinstance(each, str):
            raise _wrong(f"{where}[{key}]", each, wanted="a text")
    return found


def flag(value: object, where: str, *, default: bool) -> bool:
    """Return a boolean."""
    if value is None:
        return default
    if not isinstance(value, bool):
        raise _wrong(where, value, wanted="true or false")
    return value


def number(value: object, where: str, *, low: int = 0, high: int = INT32_MAX) -> int | None:
    """Return a whole number from ``low`` to ``high``; None if it is absent."""
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool):
        raise _wrong(where, value, wanted="a whole number")
    if not low <= value <= high:
        raise InvalidFieldError(where, what="is out of range", hint=f"write a number from {low} to {high}")
    return value


def choice(value: object, where: str, *, of: type[_Choice], default: _Choice | None = None) -> _Choice:
    """Return the member of an enumeration that has this value; it is required if there is no ``default``."""
    if value is None and default is not None:
        return default
    try:
        return of(value)
    except ValueError:
        known = ", ".join(str(each.value) for each in of)
        raise InvalidFieldError(where, what="is not a known value", hint=f"write one of {known}") from None


def moment(value: object, where: str) -> float:
    """Return a time (metav1.Time) in Unix seconds; 0 if it is absent."""
    given = text(value, where)
    if not given:
        return 0.0
    try:
        moment = timestamps.unix(given)
    except (ValueError, OverflowError):
        moment = -1
    if not 0 <= moment < _YEAR_10000:  # times outside this range could not be written back
        raise InvalidFieldError(where, what="is not a valid time", hint="write it as 2026-01-31T08:00:00Z")
    return float(moment)


def _inside(value: object) -> Iterable[object]:
    if isinstance(value, Mapping):
        return value.values()
    return value if isinstance(value, list | tuple) else ()


def _wrong(where: str, value: object, *, wanted: str) -> InvalidFieldError:
    return InvalidFieldError(where, what=f"is a {type(value).__name__}", hint=f"write {wanted}")
