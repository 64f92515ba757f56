"""How much a view keeps of one object and of one namespace. Pure.

Whoever may write into a namespace decides how much stands there; what is kept of it must end no process and leave no
other namespace short. Of what is too much a bare form is kept: who it is, and that nothing may be decided about it.
"""

import math
import sys
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

T = TypeVar("T")

_OF_A_KEY: Final = 100
"""Bytes that a key and its value take in a small mapping, themselves not counted."""


@dataclass(frozen=True, slots=True)
class Bounds(Generic[T]):
    """``one``: bytes that are kept of one object, ``namespace``: of all of a namespace, bare forms not counted.

    ``bare`` returns what is kept of an object beyond that: it must be small whatever the object is. ``told`` hears of
    how many objects no more than that is kept.
    """

    bare: Callable[[T], T]
    one: int
    namespace: int
    told: Callable[[int], None] = lambda _: None


@dataclass(frozen=True, slots=True)
class _Kept:
    namespace: str
    weight: int
    is_bare: bool


class Shares(Generic[T]):
    """What each namespace has of one view."""

    def __init__(self, bounds: Bounds[T] | None) -> None:
        """``bounds`` None: everything is kept whole."""
        self._bounds = bounds
        self._kept: dict[str, _Kept] = {}  # by UID
        self._held: dict[str, int] = {}  # bytes, by namespace
        self._bare: set[str] = set()

    @property
    def bare(self) -> int:
        """Of how many objects no more than the bare form is kept."""
        return len(self._bare)

    @property
    def has_room(self) -> bool:
        """Whether an object of which the bare form is kept would now be kept whole."""
        return any(self._fits(self._kept[uid]) for uid in self._bare)

    def fit(self, uid: str, value: T, *, namespace: str) -> T:
        """Return what to keep of an object: the value itself, or its bare form."""
        if self._bounds is None:
            return value
        self.drop(uid)
        kept = _Kept(namespace, weight(value, enough=self._bounds.one), is_bare=False)
        if self._fits(kept):
            self._held[namespace] = self._held.get(namespace, 0) + kept.weight
            self._kept[uid] = kept
            return value
        self._kept[uid] = _Kept(namespace, kept.weight, is_bare=True)
        self._bare.add(uid)
        return self._bounds.bare(value)

    def is_bare(self, uid: str) -> bool:
        """Whether no more than the bare form of an object is kept."""
        return uid in self._bare

    def drop(self, uid: str) -> None:
        """Forget an object."""
        kept = self._kept.pop(uid, None)
        self._bare.discard(uid)
        if kept is not None and not kept.is_bare:
            self._held[kept.namespace] -= kept.weight
            if not self._held[kept.namespace]:
                del self._held[kept.namespace]

    def _fits(self, kept: _Kept) -> bool:
        assert self._bounds is not None
        held = self._held.get(kept.namespace, 0)
        return kept.weight <= self._bounds.one and held + kept.weight <= self._bounds.namespace


def weight(value: Any, *, enough: float = math.inf) -> int:
    """Return about how many bytes a value has in memory, with all that is in it; what is the same object counts once.

    Keys of JSON that occur again and again are one object each. What has more than ``enough`` is not looked at further.
    """
    total, left, seen = 0, [value], set[int]()
    while left and total <= enough:
        each = left.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        total += sys.getsizeof(each)
        if isinstance(each, Mapping):
            total += 0 if isinstance(each, dict) else _OF_A_KEY * len(each)  # a view does not count what it shows
            left += each.keys()
            left += each.values()
        elif isinstance(each, list | tuple | AbstractSet):
            left += each
        elif (fields := getattr(type(each), "__dataclass_fields__", None)) is not None:
            left += [getattr(each, name) for name in fields]
    return total
