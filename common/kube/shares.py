"""Bound how much a view keeps of one object, of one namespace and of all together. Pure.

Users with write access to a namespace control its size; the kept part must neither end the process nor leave other
namespaces short. Of objects beyond the bounds a bare form is kept: the identity, and that nothing may be decided about
the object. Where all namespaces together reach their bound, the one that has most gives up its newest objects.
"""

import math
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Final, Generic, TypeVar

T = TypeVar("T")

_OF_A_KEY: Final = 100
"""Bytes that a key and its value take in a small mapping, themselves not counted."""


@dataclass(frozen=True, slots=True)
class Bounds(Generic[T]):
    """Set the bytes kept of one object (``one``), of one ``namespace``, and in ``total``, bare forms not counted.

    ``bare`` returns the form kept of an object beyond that: it must be small for any object, and of a bare form the
    same. ``on_bare_count`` is called with the number of objects kept in bare form.
    """

    bare: Callable[[T], T]
    one: int
    namespace: int
    total: int
    on_bare_count: Callable[[int], None] = lambda _: None


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
        self._whole: dict[str, dict[str, int]] = {}  # bytes by UID, the newest last, by namespace
        self._held: dict[str, int] = {}  # bytes, by namespace
        self._all = 0  # bytes
        self._full = math.inf  # ``_all`` when the total last left no room: less is kept only after a deletion
        self._bare: set[str] = set()
        self._reduced: dict[str, str] = {}

    @property
    def bare(self) -> int:
        """Return the number of objects kept in bare form."""
        return len(self._bare)

    @property
    def has_room(self) -> bool:
        """Return whether an object kept in bare form would now fit whole."""
        return self._all < self._full and any(self._fits(self._kept[uid]) for uid in self._bare)

    def fit(self, uid: str, value: T, *, namespace: str) -> T:
        """Return the value to keep of an object: itself, or its bare form.

        Objects of other namespaces may have to give way: see ``take_reduced``.
        """
        if self._bounds is None:
            return value
        self.drop(uid)
        kept = _Kept(namespace, weight(value, enough=self._bounds.one), is_bare=False)
        if self._is_within_share(kept) and self._make_room(kept):
            self._held[namespace] = self._held.get(namespace, 0) + kept.weight
            self._all += kept.weight
            self._whole.setdefault(namespace, {})[uid] = kept.weight
            self._kept[uid] = kept
            return value
        self._set_bare(uid, kept)
        return self._bounds.bare(value)

    def has_whole(self, uid: str) -> bool:
        """Return whether an object is kept whole."""
        return uid in self._kept and uid not in self._bare

    def is_bare(self, uid: str) -> bool:
        """Return whether an object is kept in bare form."""
        return uid in self._bare

    def take_reduced(self) -> Mapping[str, str]:
        """Return the namespaces, by UID, of objects that gave way since the last call: keep their bare forms."""
        reduced, self._reduced = self._reduced, {}
        return reduced

    def drop(self, uid: str) -> None:
        """Remove an object."""
        kept = self._kept.pop(uid, None)
        self._bare.discard(uid)
        self._reduced.pop(uid, None)
        if kept is not None and not kept.is_bare:
            self._release(uid, kept)

    def _release(self, uid: str, kept: _Kept) -> None:
        namespace = kept.namespace
        self._all -= kept.weight
        self._held[namespace] -= kept.weight
        del self._whole[namespace][uid]
        if not self._whole[namespace]:
            del self._held[namespace], self._whole[namespace]

    def _set_bare(self, uid: str, kept: _Kept) -> None:
        self._kept[uid] = replace(kept, is_bare=True)
        self._bare.add(uid)

    def _is_within_share(self, kept: _Kept) -> bool:
        assert self._bounds is not None
        held = self._held.get(kept.namespace, 0)
        return kept.weight <= self._bounds.one and held + kept.weight <= self._bounds.namespace

    def _fits(self, kept: _Kept) -> bool:
        assert self._bounds is not None
        return self._is_within_share(kept) and self._all + kept.weight <= self._bounds.total

    def _make_room(self, kept: _Kept) -> bool:
        """Reduce the newest objects of the largest namespaces until an object fits.

        Return False, with nothing reduced, if its own namespace would be the largest before that.
        """
        assert self._bounds is not None
        lacking = self._all + kept.weight - self._bounds.total
        if lacking <= 0:
            return True
        own = self._held.get(kept.namespace, 0) + kept.weight
        held = {namespace: size for namespace, size in self._held.items() if namespace != kept.namespace}
        newest: dict[str, Iterator[str]] = {}
        reduced: list[str] = []
        while lacking > 0:
            largest = max(held, key=lambda namespace: held[namespace], default="")
            if held.get(largest, 0) <= own:
                self._full = self._all
                return False
            uid = next(newest.setdefault(largest, reversed(self._whole[largest])))
            held[largest] -= self._kept[uid].weight
            lacking -= self._kept[uid].weight
            reduced.append(uid)
        for uid in reduced:
            gave_way = self._kept[uid]
            self._release(uid, gave_way)
            self._set_bare(uid, gave_way)
            self._reduced[uid] = gave_way.namespace
        self._full = self._all + kept.weight
        return True


_MAPPINGS: Final = (dict, MappingProxyType)
_COLLECTIONS: Final = (list, tuple, set, frozenset)
"""No abstract classes: each remembers every class it was asked about, in half a megabyte, and is slow to answer."""


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
        if isinstance(each, _MAPPINGS):
            total += 0 if isinstance(each, dict) else _OF_A_KEY * len(each)  # a view does not count its content
            left += each.keys()
            left += each.values()
        elif isinstance(each, _COLLECTIONS):
            left += each
        elif (fields := getattr(type(each), "__dataclass_fields__", None)) is not None:
            left += [getattr(each, name) for name in fields]
    return total
