"""Cache answers of the runtime: the latest ones, up to a size limit."""

import collections
from typing import Final, Generic, TypeVar

from kubemend.common.kube import shares

MOST: Final = 256
MOST_OF_ONE: Final = 512 * 1024
"""Bytes in memory; some thousand are usual. A container's environment can have a megabyte, and take ten times that."""
MOST_OF_ALL: Final = 24 * 2**20

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


class Remembered(Generic[_Key, _Value]):
    """Answers by key. An answer that is too large is not kept."""

    def __init__(self) -> None:
        self._known: collections.OrderedDict[_Key, tuple[_Value, int]] = collections.OrderedDict()
        self._weight = 0

    def get(self, key: _Key) -> _Value | None:
        """Return the cached answer, or None."""
        found = self._known.get(key)
        return found[0] if found is not None else None

    def put(self, key: _Key, value: _Value, *, weight: int | None = None) -> None:
        """Cache an answer, and drop the oldest ones above the limits. ``weight`` None: its bytes are estimated."""
        self.forget(key)
        if weight is None:
            weight = shares.weight(value, enough=MOST_OF_ONE)
        if weight > MOST_OF_ONE:
            return
        self._known[key] = value, weight
        self._weight += weight
        while len(self._known) > MOST or self._weight > MOST_OF_ALL:
            self.forget(next(iter(self._known)))

    def forget(self, key: _Key) -> None:
        """Drop an answer, if it is cached."""
        _, weight = self._known.pop(key, (None, 0))
        self._weight -= weight
