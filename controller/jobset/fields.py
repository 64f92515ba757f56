"""Fields of an object of the API as the types that they should have. Pure.

The API server has checked them, if the schema in force is the one that we know. Whoever reads here believes nothing:
a wrong type or a number out of range is a ``NotUnderstoodError``, never another error. ``null`` is as good as absent.
"""

import enum
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, TypeVar

from common.kube import timestamps

INT32_MIN: Final = -(2**31)
INT32_MAX: Final = 2**31 - 1
MOST_LEVELS: Final = 64
"""Of lists and objects within each other; a Job has some dozen. Whatever walks through them may call itself."""
_YEAR_10000: Final = 253402300800
"""Unix seconds."""

_NONE: Final[Mapping[str, Any]] = MappingProxyType({})
_Choice = TypeVar("_Choice", bound=enum.Enum)


class NotUnderstoodError(ValueError):
    """An object that cannot be worked with: ``where`` in it, ``what`` is wrong there, and the ``mend``."""

    def __init__(self, where: str, *, what: str, mend: str) -> None:
        super().__init__(f"{where}: {what}; {mend}")
        self.where = where
        self.what = what
        self.mend = mend


def mapping(value: object, where: str) -> Mapping[str, Any]:
    """Return an object; an empty one when it is absent."""
    if value is None:
        return _NONE
    if not isinstance(value, Mapping):
        raise _wrong(where, value, wanted="an object")
    return value


def shallow(value: object, where: str) -> None:
    """Raise NotUnderstoodError for lists and objects that are nested more than MOST_LEVELS deep."""
    level = [value]
    for _ in range(MOST_LEVELS + 1):
        level = [inner for each in level for inner in _inside(each)]
        if not level:
            return
    raise NotUnderstoodError(where, what="is nested too deep", mend=f"keep to {MOST_LEVELS} levels")


def items(value: object, where: str) -> Sequence[Any]:
    """Return a list; an empty one when it is absent."""
    if value is None:
        return ()
    if not isinstance(value, list | tuple):
        raise _wrong(where, value, wanted="a list")
    return value


def objects(value: object, where: str) -> Sequence[Mapping[str, Any]]:
    """Return a list of objects; an empty one when it is absent. An element is never absent."""
    found = items(value, where)
    for index, each in enumerate(found):
        if not isinstance(each, Mapping):
            raise _wrong(f"{where}[{index}]", each, wanted="an object")
    return found


def text(value: object, where: str) -> str:
    """Return a text; "" when it is absent."""
    if value is None:
        return ""
    if not isinstance(value, str):
        raise _wrong(where, value, wanted="a text")
    return value


def name(value: object, where: str) -> str:
    """Return a text that must be there."""
    found = text(value, where)
    if not found:
        raise NotUnderstoodError(where, what="is missing", mend="give it a value")
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
    """Return a whole number from ``low`` to ``high``; None when it is absent."""
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool):
        raise _wrong(where, value, wanted="a whole number")
    if not low <= value <= high:
        raise NotUnderstoodError(where, what="is out of range", mend=f"write a number from {low} to {high}")
    return value


def choice(value: object, where: str, *, of: type[_Choice], default: _Choice | None = None) -> _Choice:
    """Return the member of an enumeration that has this value; it must be there if there is no ``default``."""
    if value is None and default is not None:
        return default
    try:
        return of(value)
    except ValueError:
        known = ", ".join(str(each.value) for each in of)
        raise NotUnderstoodError(where, what="is none of the known values", mend=f"write one of {known}") from None


def moment(value: object, where: str) -> float:
    """Return a time (metav1.Time) in Unix seconds; 0 when it is absent."""
    said = text(value, where)
    if not said:
        return 0.0
    try:
        moment = timestamps.unix(said)
    except (ValueError, OverflowError):
        moment = -1
    if not 0 <= moment < _YEAR_10000:  # what is outside could not be written again, too
        raise NotUnderstoodError(where, what="is no time", mend="write it as 2026-01-31T08:00:00Z")
    return float(moment)


def _inside(value: object) -> Iterable[object]:
    if isinstance(value, Mapping):
        return value.values()
    return value if isinstance(value, list | tuple) else ()


def _wrong(where: str, value: object, *, wanted: str) -> NotUnderstoodError:
    return NotUnderstoodError(where, what=f"is a {type(value).__name__}", mend=f"write {wanted}")
