"""Lists in pages: all pages of one list show the objects as they were when its first page was read."""

import collections
import secrets
from typing import Any, Final

from hack.devnode.api import errors

Object = dict[str, Any]

_REMEMBERED: Final = 64


class Pages:
    """Keeps what is left of lists that are being read; a list that is forgotten answers 410, as after a compaction."""

    def __init__(self) -> None:
        self._left: collections.OrderedDict[str, tuple[Object, int]] = collections.OrderedDict()

    def first(self, listing: Object, *, limit: int) -> Object:
        """Return the first page of a list; ``limit`` 0 is all of it."""
        return self._page(listing, start=0, limit=limit)

    def next(self, token: str, *, limit: int) -> Object:
        """Return the page that a token stands for. Raises ApiError 410 when nobody remembers it."""
        if token not in self._left:
            message = "The provided continue parameter is too old to display a consistent list result."
            raise errors.ApiError(410, "Expired", message)
        listing, start = self._left[token]
        return self._page(listing, start=start, limit=limit)

    def forget(self) -> None:
        """Forget all lists."""
        self._left.clear()

    def _page(self, listing: Object, *, start: int, limit: int) -> Object:
        items = listing["items"]
        end = start + limit if limit else len(items)
        metadata = dict(listing["metadata"])
        if end < len(items):
            token = metadata["continue"] = secrets.token_urlsafe(12)
            metadata["remainingItemCount"] = len(items) - end
            self._left[token] = (listing, end)
            if len(self._left) > _REMEMBERED:
                self._left.popitem(last=False)
        return {**listing, "metadata": metadata, "items": items[start:end]}
