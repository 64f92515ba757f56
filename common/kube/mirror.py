"""What a collection of the API holds, kept current for as long as the process runs, each object reduced at once.

Listed page by page, then watched. While the API server is away the last view holds, and the part says that it is
degraded. After an outage the new list is compared with what is known, so listeners hear of differences alone.
"""

import asyncio
import contextlib
import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Generic, TypeVar

import structlog

from common import aio, contained
from common.kube import client, errors, shares, watching
from common.kube.transport import Json
from common.parts import PartState, PartStatus

log = structlog.get_logger(__name__)

T = TypeVar("T")

NOT_UNDERSTOOD: Final = (KeyError, ValueError, TypeError, AttributeError)
"""What reading an object raises when it is not what this version knows."""


class ChangeKind(enum.Enum):
    """What happened to an object. One that was made anew under its name is GONE and then APPEARED, with another UID."""

    APPEARED = "appeared"
    CHANGED = "changed"
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class Change(Generic[T]):
    """One change; ``value`` is the object as it is now, or as it was last."""

    kind: ChangeKind
    uid: str
    value: T


@dataclass(frozen=True, slots=True)
class _Read(Generic[T]):
    """What was read of an object; ``value`` None: it does not belong here, or is not understood."""

    uid: str
    value: T | None


class Mirror(Generic[T]):
    """Keeps the view. ``run`` does the work; everything else can be asked at any time."""

    def __init__(
        self,
        *,
        api: client.KubeClient,
        path: str,
        reduce: Callable[[Json], T | None],
        report: Callable[[PartStatus], None],
        params: client.Params | None = None,
        page: int = 500,
        backoff: aio.Backoff | None = None,
        bounds: shares.Bounds[T] | None = None,
        metadata_only: bool = False,
    ) -> None:
        """Create it for the collection at ``path``, narrowed by ``params`` (selectors), listed ``page`` at a time.

        ``page`` 0: all at once. ``reduce`` returns what to keep of an object, or None for one that does not belong
        here. It is asked as each object comes in, none is held longer; ``metadata_only``: it gets no more than that. It
        may raise what is in NOT_UNDERSTOOD: that is logged, and what was known of the object stays. ``bounds`` is
        for what anybody can fill.
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
        self._items: dict[str, T] = {}
        self._shares: shares.Shares[T] = shares.Shares(bounds)
        self._crowded: set[str] = set()  # namespaces of which it has been told
        self._listeners: list[Callable[[Change[T]], None]] = []
        self._synced = asyncio.Event()

    @property
    def synced(self) -> bool:
        """Whether the collection has been listed since ``run`` began: before, a missing object means nothing."""
        return self._synced.is_set()

    async def wait_synced(self) -> None:
        """Wait until it has."""
        await self._synced.wait()

    def items(self) -> Mapping[str, T]:
        """Return what there is by UID: a live, read-only view."""
        return MappingProxyType(self._items)

    def subscribe(self, listener: Callable[[Change[T]], None]) -> Callable[[], None]:
        """Call ``listener`` at each change, in order; it must not block. Returns the function that ends it."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    async def run(self) -> None:
        """Keep the view current for ever; list again after every outage. It can be cancelled, and run again."""
        try:
            while True:
                await self._follow()
                await self._backoff.wait()
        finally:
            self._synced.clear()

    async def _follow(self) -> None:
        """List, then watch until something goes wrong. A watch that ends in peace goes on where it was.

        Unless there is room now for what was too much before: then it is listed again.
        """
        try:
            version = await self._list()
            self._synced.set()
            self._report(PartStatus(PartState.READY))
            log.info("mirror.synced", path=self._path, items=len(self._items), resource_version=version)
            while True:
                before, version = version, await self._watch_from(version)
                if self._shares.has_room:
                    return
                if version == before:  # a server or proxy may end each watch at once, and must not be hammered
                    await self._backoff.wait()
        except errors.GoneError:
            log.info("mirror.history_gone", path=self._path)  # away for too long: list again
        except errors.KubeError as error:
            self._report(PartStatus(PartState.DEGRADED, message=error.what, mend=error.mend))
            log.debug("mirror.api_away", path=self._path, error=str(error), items=len(self._items))

    async def _list(self) -> str:
        """Take a new list; what it lacks has gone while nobody looked. Returns its version."""
        version = ""
        listed: dict[str, T] = {}
        anew: shares.Shares[T] = shares.Shares(self._bounds)
        pages = self._api.pages(
            self._path,
            params=self._params,
            limit=self._page,
            project=lambda obj: self._read(obj, anew),
            metadata_only=self._metadata_only,
        )
        async with contextlib.aclosing(pages):
            async for page in pages:
                version = page.resource_version
                listed |= {read.uid: read.value for read in page.items if read.value is not None}
        self._shares = anew
        for uid in self._items.keys() - listed.keys():
            self._drop(uid)
        for uid, value in listed.items():
            self._put(uid, value)
        self._tell_of_bare()
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
                if event.type is not watching.EventType.BOOKMARK:
                    self._take(event)
                version = event.resource_version or version
        return version

    def _take(self, event: watching.WatchEvent) -> None:
        read: _Read[T] = event.object
        if event.type is watching.EventType.DELETED or read.value is None:
            self._drop(read.uid, last=read.value)
        else:
            self._put(read.uid, read.value)
        self._tell_of_bare()

    def _read(self, obj: Json, room: shares.Shares[T]) -> _Read[T]:
        """Return an object's UID and what to keep of it."""
        uid, namespace = "", ""  # nothing is known of an object without a UID
        try:
            uid = str(obj["metadata"]["uid"])
            namespace = str(obj["metadata"].get("namespace", ""))
            value = self._items.get(uid)  # it stays when a defect of ours keeps the object from being read
            with contained.within(contained.Part.OBJECT, f"{self._path} {uid}", passing=NOT_UNDERSTOOD):
                value = self._reduce(obj)
        except NOT_UNDERSTOOD as error:
            name = (obj.get("metadata") or {}).get("name", "?")
            log.warning("mirror.not_understood", path=self._path, name=name, error=repr(error))
            value = self._items.get(uid)
        if value is None:
            room.drop(uid)
            return _Read(uid, None)
        fitting = room.fit(uid, value, namespace=namespace)
        if room.is_bare(uid):
            self._note_crowded(namespace)
        before = self._items.get(uid)
        return _Read(uid, before if before is not None and before == fitting else fitting)  # one of two that are alike

    def _note_crowded(self, namespace: str) -> None:
        """Log once of each namespace that not all of it is kept."""
        if namespace not in self._crowded and self._bounds is not None:
            self._crowded.add(namespace)
            log.warning(
                "mirror.too_much",
                path=self._path,
                namespace=namespace,
                object_bytes=self._bounds.one,
                namespace_bytes=self._bounds.namespace,
            )

    def _tell_of_bare(self) -> None:
        if self._bounds is not None:
            self._bounds.told(self._shares.bare)

    def _put(self, uid: str, value: T) -> None:
        before = self._items.get(uid)
        self._items[uid] = value
        if before is None:
            self._tell(Change(ChangeKind.APPEARED, uid, value))
        elif before != value:
            self._tell(Change(ChangeKind.CHANGED, uid, value))

    def _drop(self, uid: str, *, last: T | None = None) -> None:
        self._shares.drop(uid)
        before = self._items.pop(uid, None)
        if before is not None:
            self._tell(Change(ChangeKind.GONE, uid, before if last is None else last))

    def _tell(self, change: Change[T]) -> None:
        for listener in tuple(self._listeners):
            with contained.within(contained.Part.LISTENER, f"{self._path} {change.uid}"):
                listener(change)
