"""Merge kustomize's patches into manifests under conditions, so that one tree shows all variants.

Patches are strategic merges, of which this knows what the patches in ``daemonset`` use: maps, lists with a merge key,
``null``, and ``$patch: delete``. A test compares the chart with ``kubectl kustomize`` for every component.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

ABSENT: Final = object()
"""The value of a field in the variants that lack it."""

_MERGE_KEYS: Final = {"containers": "name", "env": "name", "volumes": "name", "volumeMounts": "mountPath"}


class ChartError(ValueError):
    """A patch has a form that the chart cannot express."""


@dataclass(frozen=True, slots=True)
class Choice:
    """Choose a field's value: ``then`` if the condition holds, a Helm pipeline, and ``otherwise`` if not."""

    condition: str
    then: Any
    otherwise: Any = ABSENT


@dataclass(frozen=True, slots=True)
class When:
    """Include a list's item if the condition holds, a Helm pipeline."""

    condition: str
    item: Any


@dataclass(frozen=True, slots=True)
class FromValues:
    """Take a field, or more items of a list, from the chart's values.

    A list or a map is left out if it is empty. A ``scalar`` never is.
    """

    path: str
    scalar: bool = False


def either(*conditions: str) -> str:
    """Return the condition that holds if one of these does."""
    return conditions[0] if len(set(conditions)) == 1 else f"or {' '.join(map(_operand, conditions))}"


def unless(condition: str) -> str:
    """Return the opposite of a condition."""
    return f"not {_operand(condition)}"


def merged(tree: Any, patch: Any, condition: str) -> Any:
    """Return a map of a manifest with a patch that applies under a condition. Raises ChartError."""
    if not (isinstance(tree, Mapping) and isinstance(patch, Mapping)):
        raise ChartError(f"cannot merge {patch!r} into {tree!r}")
    result = dict(tree)
    for key, value in patch.items():
        result[key] = _field(key, result.get(key, ABSENT), value, condition)
    return {key: value for key, value in result.items() if value is not ABSENT}


def _field(key: str, old: Any, new: Any, condition: str) -> Any:
    if isinstance(old, Choice) and old.then == new and old.otherwise is ABSENT:
        return Choice(either(old.condition, condition), new)
    if isinstance(old, Choice):
        raise ChartError(f"two patches change {key}")
    if new is None:
        return ABSENT if old is ABSENT else Choice(condition, ABSENT, old)
    if old is ABSENT:
        return Choice(condition, new)
    if old == new:
        return old
    if isinstance(new, list) and key in _MERGE_KEYS:
        return _items(old, new, _MERGE_KEYS[key], condition)
    return merged(old, new, condition) if isinstance(new, Mapping) else Choice(condition, new, old)


def _items(old: list[Any], patch: list[Any], key: str, condition: str) -> list[Any]:
    result = list(old)
    for item in patch:
        place = next((at for at, each in enumerate(result) if _plain(each).get(key) == item[key]), None)
        if item.get("$patch") == "delete":
            if place is not None:
                result[place] = When(unless(condition), result[place])
        elif place is None:
            result.append(When(condition, item))
        elif isinstance(result[place], When):
            if result[place].item != item:
                raise ChartError(f"two patches change {item[key]}")
            result[place] = When(either(result[place].condition, condition), item)
        else:
            result[place] = merged(result[place], item, condition)
    return result


def _plain(item: Any) -> Mapping[str, Any]:
    found: Mapping[str, Any] = item.item if isinstance(item, When) else item
    return found


def _operand(condition: str) -> str:
    return f"({condition})" if " " in condition else condition
