"""The newest known state of objects: the newer one of their Informer's and of the answers to the controller's writes.

So no reconcile is older than the writes of the one before, however late the watch is.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final, Generic, TypeVar

import structlog

from kubemend.common.kube import informer
from kubemend.common.kube.changes import ChangeKind

log = structlog.get_logger(__name__)

T = TypeVar("T")

_GONE_KEPT: Final = 10_000
_UNSEEN_SECONDS: Final = 60.0


class Overlay(Generic[T]):
    """Combine an Informer with the results of the controller's own writes."""

    def __init__(
        self,
        watch: informer.Informer[T],
        *,
        version: Callable[[T], str],
        changed: Callable[[str, T | None, T | None], None],
    ) -> None:
        """``version`` returns an object's resource version; ``changed`` gets its UID, its old and its new value."""
        self._watch = watch
        self._version = version
        self._changed = changed
        self._items: dict[str, T] = {}
        self._gone: OrderedDict[str, None] = OrderedDict()
        self._unseen: dict[str, float] = {}  # written, but not yet received by the watch; since when (loop time)
        watch.subscribe(self._apply)

    def items(self) -> Mapping[str, T]:
        """Return the existing objects by UID: a live, read-only view."""
        return MappingProxyType(self._items)

    def wrote(self, uid: str, value: T) -> None:
        """Record an object as the controller's own write has left it."""
        if uid in self._gone:
            return  # the watch reported its deletion before the answer arrived
        if uid not in self._watch.items():
            self._unseen.setdefault(uid, asyncio.get_running_loop().time())
        self._put(uid, value)

    def removed(self, uid: str) -> None:
        """Record that the controller's own deletion has removed an object, or found it deleted."""
        self._drop(uid)

    def forget_unseen(self) -> None:
        """Forget objects that were written long ago and never reported by the watch: deleted while nothing watched."""
        now = asyncio.get_running_loop().time()
        for uid in [uid for uid, since in self._unseen.items() if now - since > _UNSEEN_SECONDS]:
            log.warning("jobsets.not_synced", uid=uid, seconds=_UNSEEN_SECONDS)
            self._drop(uid)
            del self._gone[uid]  # that is a guess: if it is found again, it exists

    def clear(self) -> None:
        """Forget deletions and what only the own writes have shown: another leader was active since."""
        self._gone.clear()
        self._unseen.clear()
        watched = self._watch.items()
        for uid in [uid for uid in self._items if uid not in watched]:
            self._drop(uid)
        self._gone.clear()

    def _apply(self, change: informer.Change[T]) -> None:
        self._unseen.pop(change.uid, None)
        if change.kind is ChangeKind.GONE:
            self._drop(change.uid)
        else:
            self._gone.pop(change.uid, None)
            self._put(change.uid, change.value)

    def _put(self, uid: str, value: T) -> None:
        before = self._items.get(uid)
        if before is not None and _number(self._version(value)) < _number(self._version(before)):
            return  # the watch is behind
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
    """Return a resource version as a number: they grow (KEP-5504). An invalid one counts as the oldest."""
    return int(version) if version.isdecimal() else 0
