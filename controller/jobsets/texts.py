"""Keep one copy of long texts that occur in thousands of Jobs: those of a JobSet come from one template."""

import collections
import sys
from collections.abc import Mapping
from typing import Any, Final

_LONG: Final = 256
"""Characters."""
_MOST: Final = 16 * 2**20
"""Bytes of texts that are kept, in use or not."""


class Texts:
    """A cache of the latest texts."""

    def __init__(self) -> None:
        self._known: collections.OrderedDict[str, str] = collections.OrderedDict()
        self._size = 0

    def shared(self, value: Any) -> Any:
        """Return a JSON value in which each long text is the copy that was kept before."""
        match value:
            case str() if len(value) >= _LONG:
                return self._same(value)
            case Mapping():
                return {key: self.shared(each) for key, each in value.items()}
            case list() | tuple():
                return [self.shared(each) for each in value]
        return value

    def _same(self, text: str) -> str:
        known = self._known.get(text)
        if known is not None:
            self._known.move_to_end(text)
            return known
        self._known[text] = text
        self._size += sys.getsizeof(text)
        while self._size > _MOST:
            forgotten, _ = self._known.popitem(last=False)
            self._size -= sys.getsizeof(forgotten)
        return text
