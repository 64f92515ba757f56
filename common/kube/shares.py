"""Bound how much a view keeps of one object and of one namespace. Pure.

Users with write access to a namespace control its size; the kept part must neither end the process nor leave other
namespaces short. Of objects beyond the bounds a bare form is kept: the identity, and that nothing may be decided about
the object.
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
    """Set the bytes kept of one object (``one``) and of one ``namespace``, bare forms not counted.

    ``bare`` returns the form kept of an object beyond that: it must be small for any object. ``told`` is called with
    the number of objects kept in bare form.
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
    """Account for the share of each namespace in one view."""

    def __init__(self, bounds: Bounds[T] | None) -> None:
        """``bounds`` None: everything is kept whole."""
        self._bounds = bounds
        self._kept: dict[str, _Kept] = {}  # by UID
        self._held: dict[str, int] = {}  # bytes, by namespace
        self._bare: set[str] = set()

    @property
    def bare(self) -> int:
        """Return the number of objects kept in bare form."""
        return len(self._bare)

    @property
    def has_room(self) -> bool:
        """Return whether an object kept in bare form would now fit whole."""
        return any(self._fits(self._kept[uid]) for uid in self._bare)

    def fit(self, uid: str, value: T, *, namespace: str) -> T:
        """Return the value to keep of an object: itself, or its bare form."""
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
        """Return whether an object is kept in bare form."""
        return uid in self._bare

    def drop(self, uid: str) -> None:
        """Remove an object."""
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
    """Estimate the bytes of a value in memory, with everything in it; the same object counts once.

    Recurring JSON keys are one object each. Counting stops once the total exceeds ``enough``.
    """
    total, left, seen = 0, [value], set[int]()
    while left and total <= enough:
        each = left.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        total += sys.getsizeof(each)
        if isinstance(each, Mapping):
            total += 0 if isinstance(each, dict) else _OF_A_KEY * len(each)  # a view does not count its content
            left += each.keys()
            left += each.values()
        elif isinstance(each, list | tuple | AbstractSet):
            left += each
        elif (fields := getattr(type(each), "__dataclass_fields__", None)) is not None:
            left += [getattr(each, name) for name in fields]
    return total
