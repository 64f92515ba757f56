"""The newest that is known of objects: by their watch, or by the answers to our own writes, whichever is newer.

So no look is older than the writes of the look before it, however late the watch is.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final, Generic, TypeVar

import structlog

from common.kube import mirror

log = structlog.get_logger(__name__)

T = TypeVar("T")

_GONE_KEPT: Final = 10_000
_UNSEEN_SECONDS: Final = 60.0


class Newest(Generic[T]):
    """Follows a mirror, and is told of what we have written."""

    def __init__(
        self,
        watch: mirror.Mirror[T],
        *,
        version: Callable[[T], str],
        changed: Callable[[str, T | None, T | None], None],
    ) -> None:
        """``version`` is an object's resource version, ``changed`` hears of its UID, its former and its new value."""
        self._watch = watch
        self._version = version
        self._changed = changed
        self._items: dict[str, T] = {}
        self._gone: OrderedDict[str, None] = OrderedDict()
        self._unseen: dict[str, float] = {}  # written, and not told by the watch yet; since when (loop time)
        watch.subscribe(self._take)

    def items(self) -> Mapping[str, T]:
        """Return what there is by UID: a live, read-only view."""
        return MappingProxyType(self._items)

    def wrote(self, uid: str, value: T) -> None:
        """Take in how an object is after our own write."""
        if uid in self._gone:
            return  # its deletion was told before our answer came
        if uid not in self._watch.items():
            self._unseen.setdefault(uid, asyncio.get_running_loop().time())
        self._put(uid, value)

    def removed(self, uid: str) -> None:
        """Take in that our own deletion has removed an object, or found it gone."""
        self._drop(uid)

    def forget_unseen(self) -> None:
        """Forget what was written long ago and has never been told: it was deleted while nobody watched."""
        now = asyncio.get_running_loop().time()
        for uid in [uid for uid, since in self._unseen.items() if now - since > _UNSEEN_SECONDS]:
            log.warning("jobsets.never_seen", uid=uid, seconds=_UNSEEN_SECONDS)
            self._drop(uid)
            del self._gone[uid]  # that is a guess: where it is met, it is there

    def clear(self) -> None:
        """Forget what only our own writes have told, and what is gone: another leader was here meanwhile."""
        self._gone.clear()
        self._unseen.clear()
        told = self._watch.items()
        for uid in [uid for uid in self._items if uid not in told]:
            self._drop(uid)
        self._gone.clear()

    def _take(self, change: mirror.Change[T]) -> None:
        self._unseen.pop(change.uid, None)
        if change.kind is mirror.ChangeKind.GONE:
            self._drop(change.uid)
        else:
            self._gone.pop(change.uid, None)
            self._put(change.uid, change.value)

    def _put(self, uid: str, value: T) -> None:
        before = self._items.get(uid)
        if before is not None and _number(self._version(value)) < _number(self._version(before)):
            return  # the watch is late
        self._items[uid] = value
        if before != value:
            self._changed(uid, before, value)

    def _drop(self, uid: str) -> None:
        self._unseen.pop(uid, None)
        self._gone[uid] = None
        while len(self._gone) > _GONE_KEPT:
            self._gone.popitem(last=False)
        if (before := self._items.pop(uid, None)) is not None:
            self._changed(uid, before, None)


def _number(version: str) -> int:
    """Return a resource version as a number: they grow (KEP-5504). One that is none counts as the oldest."""
    return int(version) if version.isdecimal() else 0
