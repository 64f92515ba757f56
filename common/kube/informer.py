"""Keep a current view of a collection of the API, each object reduced as it comes in.

The collection is listed page by page, then watched. While the API server is unavailable the last view is kept, and the
component reports that it is degraded. After an outage the new list is compared with the view, so listeners receive only
differences.
"""

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Generic, TypeVar

import structlog

from kubemend.common import aio, contained
from kubemend.common.components import ComponentState, ComponentStatus
from kubemend.common.kube import client, errors, shares, watch_protocol
from kubemend.common.kube.changes import ChangeKind
from kubemend.common.kube.transport import Json

log = structlog.get_logger(__name__)

T = TypeVar("T")

INVALID: Final = (KeyError, ValueError, TypeError, AttributeError)
"""Exceptions of reading an object that does not have the form that this version knows."""


@dataclass(frozen=True, slots=True)
class Change(Generic[T]):
    """Describe one change; ``value`` is the object as it is now, or its last known state."""

    kind: ChangeKind
    uid: str
    value: T


@dataclass(frozen=True, slots=True)
class _Read(Generic[T]):
    """Hold the result of reading an object; ``value`` None: it does not belong here, or cannot be parsed."""

    uid: str
    value: T | None


class Informer(Generic[T]):
    """Keep the view. ``run`` does the work; everything else can be called at any time."""

    def __init__(
        self,
        *,
        api: client.KubeClient,
        path: str,
        reduce: Callable[[Json], T | None],
        report: Callable[[ComponentStatus], None],
        params: client.Params | None = None,
        page: int = 500,
        backoff: aio.Backoff | None = None,
        bounds: shares.Bounds[T] | None = None,
        metadata_only: bool = False,
        optional: bool = False,
    ) -> None:
        """Create it for the collection at ``path``, narrowed by ``params`` (selectors), listed ``page`` at a time.

        ``page`` 0: all at once. ``reduce`` returns the part of an object to keep, or None for one that does not belong
        here. It is called as each object comes in, and no object is held longer. ``metadata_only``: it gets only the
        metadata. It may raise the exceptions of INVALID: these are logged, and the known value of the object is
        kept. ``bounds`` limits collections that any user can fill. ``optional``: ``run`` drops all objects and raises
        NotFoundError when the server does not have the collection.
        """
        self._api = api
        self._path = path
        self._params = dict(params or {})
        self._reduce = reduce
        self._report = report
        self._page = page
        self._backoff = backoff or aio.Backoff(first=0.2, limit=10.0)
        self._bounds = bounds
        self._metadata_only = metadata_only
        self._optional = optional
        self._items: dict[str, T] = {}
        self._shares: shares.Shares[T] = shares.Shares(bounds)
        self._crowded: set[str] = set()  # namespaces that have been logged as too large
        self._listeners: list[Callable[[Change[T]], None]] = []
        self._synced = asyncio.Event()

    @property
    def synced(self) -> bool:
        """Return whether the collection has been listed since ``run`` began: before, a missing object means nothing."""
        return self._synced.is_set()

    async def wait_synced(self) -> None:
        """Wait until the collection has been listed."""
        await self._synced.wait()

    def items(self) -> Mapping[str, T]:
        """Return the objects by UID: a live, read-only view."""
        return MappingProxyType(self._items)

    def subscribe(self, listener: Callable[[Change[T]], None]) -> Callable[[], None]:
        """Call ``listener`` at each change, in order; it must not block. Returns the function that unsubscribes it."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    async def run(self) -> None:
        """Keep the view current indefinitely; list again after every outage. It can be cancelled, and run again."""
        try:
            while True:
                await self._follow()
                await self._backoff.wait()
        finally:
            self._synced.clear()

    async def _follow(self) -> None:
        """List, then watch until an error. A watch that the server ends is resumed.

        Exception: when there is now room for objects that were too large before, return to list again.
        """
        try:
            version = await self._list()
            self._synced.set()
            self._report(ComponentStatus(ComponentState.READY))
            log.info("informer.synced", path=self._path, items=len(self._items), resource_version=version)
            while True:
                before, version = version, await self._watch_from(version)
                if self._shares.has_room:
                    return
                if version == before:  # a server or proxy may end each watch at once, and must not be overloaded
                    await self._backoff.wait()
        except errors.GoneError:
            log.info("informer.history_expired", path=self._path)  # away for too long: list again
        except errors.KubeError as error:
            if self._optional and isinstance(error, errors.NotFoundError):
                for uid in [*self._items]:
                    self._drop(uid)
                raise
            self._report(ComponentStatus(ComponentState.DEGRADED, message=error.what, hint=error.hint))
            log.debug("informer.api_unavailable", path=self._path, error=str(error), items=len(self._items))

    async def _list(self) -> str:
        """List again and drop the objects that have disappeared in the meantime. Return the list's version."""
        version = ""
        listed: dict[str, T] = {}
        fresh: shares.Shares[T] = shares.Shares(self._bounds)

        def keep(obj: Json) -> None:
            read = self._read(obj, fresh)
            if read.value is not None:
                listed[read.uid] = read.value
            listed.update(self._reduced(fresh, listed))

        pages = self._api.pages(
            self._path, params=self._params, limit=self._page, project=keep, metadata_only=self._metadata_only
        )
        async with contextlib.aclosing(pages):
            async for page in pages:
                version = page.resource_version
        self._shares = fresh
        for uid in self._items.keys() - listed.keys():
            self._drop(uid)
        for uid, value in listed.items():
            self._put(uid, value)
        self._report_bare()
        return version

    async def _watch_from(self, version: str) -> str:
        events = self._api.watch(
            self._path,
            params=self._params,
            resource_version=version,
            project=lambda obj: self._read(obj, self._shares),
            metadata_only=self._metadata_only,
        )
        async with contextlib.aclosing(events):
            async for event in events:
                self._backoff.reset()
                if event.type is not watch_protocol.EventType.BOOKMARK:
                    self._take(event)
                version = event.resource_version or version
        return version

    def _take(self, event: watch_protocol.WatchEvent) -> None:
        read: _Read[T] = event.object
        if event.type is watch_protocol.EventType.DELETED or read.value is None:
            self._drop(read.uid, last=read.value)
        else:
            self._put(read.uid, read.value)
        for uid, value in self._reduced(self._shares, self._items).items():
            self._put(uid, value)
        self._report_bare()

    def _read(self, obj: Json, room: shares.Shares[T]) -> _Read[T]:
        """Return an object's UID and the part to keep."""
        uid, namespace = "", ""  # nothing is known of an object without a UID
        try:
            uid = str(obj["metadata"]["uid"])
            namespace = str(obj["metadata"].get("namespace", ""))
            value = self._items.get(uid)  # kept when an internal error prevents reading the object
            with contained.within(contained.Part.OBJECT, f"{self._path} {uid}", passing=INVALID):
                value = self._reduce(obj)
        except INVALID as error:
            name = (obj.get("metadata") or {}).get("name", "?")
            log.warning("informer.invalid", path=self._path, name=name, error=repr(error))
            value = self._items.get(uid)
        if value is None:
            room.drop(uid)
            return _Read(uid, None)
        before = self._items.get(uid)
        if before == value and room.has_whole(uid):
            return _Read(uid, before)  # usual, and to weigh it would take as long as to decode it
        fitting = room.fit(uid, value, namespace=namespace)
        if room.is_bare(uid):
            self._note_crowded(namespace)
        # share one of two equal values
        return _Read(uid, before if before is not None and before == fitting else fitting)

    def _reduced(self, room: shares.Shares[T], items: Mapping[str, T]) -> Mapping[str, T]:
        """Return the bare forms, by UID, of objects that gave way to those of smaller namespaces."""
        reduced: dict[str, T] = {}
        for uid, namespace in room.take_reduced().items():
            assert self._bounds is not None
            self._note_crowded(namespace)
            reduced[uid] = self._bounds.bare(items[uid])
        return reduced

    def _note_crowded(self, namespace: str) -> None:
        """Log once per namespace that not all of it is kept."""
        if namespace not in self._crowded and self._bounds is not None:
            self._crowded.add(namespace)
            log.warning(
                "informer.too_large",
                path=self._path,
                namespace=namespace,
                object_bytes=self._bounds.one,
                namespace_bytes=self._bounds.namespace,
                total_bytes=self._bounds.total,
            )

    def _report_bare(self) -> None:
        if self._bounds is not None:
            self._bounds.on_bare_count(self._shares.bare)

    def _put(self, uid: str, value: T) -> None:
        before = self._items.get(uid)
        self._items[uid] = value
        if before is None:
            self._notify(Change(ChangeKind.APPEARED, uid, value))
        elif before != value:
            self._notify(Change(ChangeKind.CHANGED, uid, value))

    def _drop(self, uid: str, *, last: T | None = None) -> None:
        self._shares.drop(uid)
        before = self._items.pop(uid, None)
        if before is not None:
            self._notify(Change(ChangeKind.GONE, uid, before if last is None else last))

    def _notify(self, change: Change[T]) -> None:
        for listener in tuple(self._listeners):
            with contained.within(contained.Part.LISTENER, f"{self._path} {change.uid}"):
                listener(change)
