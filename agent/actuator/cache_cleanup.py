"""Empty compile caches between the end of the old container and the start of the new one, and remove the remains.

Emptying is time-boxed. Failures are counted and reported, and do not block the start.
"""

import asyncio
import enum
import functools
import json
import posixpath
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

import structlog

from kubemend.agent.actuator import cache_removal
from kubemend.agent.actuator.cache_removal import Access, Bounds, Removed
from kubemend.agent.clients.journal.store import JournalError
from kubemend.agent.restart import cache
from kubemend.common import contained
from kubemend.common.contained import Part
from kubemend.common.side_process import Calls, ProcessEndedError

log = structlog.get_logger(__name__)

_SLACK = 0.5  # seconds after which a call that should have ended by itself is abandoned
DOCUMENT: Final = "cache-volumes"
"""The journal's document with the volumes in which something was moved aside and may not be removed yet."""


class Result(enum.Enum):
    """What became of a cache to empty.

    ``NOTHING_THERE``: the container had no directory. ``NOT_REMOVED``: it was emptied, but its old files stay until the
    pod ends.
    """

    EMPTIED = "Emptied"
    NOTHING_THERE = "NothingThere"
    NOT_EMPTIED = "NotEmptied"
    NOT_REMOVED = "NotRemoved"


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Timeouts in seconds.

    ``work`` is for one emptying, ``slice`` for one call that removes the remains, ``remains`` for all of a volume.
    """

    work: float = 1.0
    slice: float = 2.0
    remains: float = 600.0


@dataclass(frozen=True, slots=True)
class Emptying:
    """The result of an emptying; ``text`` is for people."""

    result: Result
    text: str = ""


class Documents(Protocol):
    """Keep documents on disk (``agent.clients.journal.store.Store``). Raises JournalError."""

    async def load(self, key: str) -> str | None: ...
    async def save(self, key: str, body: str) -> None: ...


class CacheCleaner:
    """Access to the caches of this node's pods. Without a socket, or ``calls``, nothing is emptied.

    ``calls`` runs the work in another process, because a file system may hang. ``documents`` remembers the volumes in
    which something remains, for the next agent. ``count`` is called with each result.
    """

    def __init__(
        self,
        socket_path: str = "",
        *,
        calls: Calls | None = None,
        documents: Documents | None = None,
        proc: Path = Path("/proc"),
        timeouts: Timeouts | None = None,
        count: Callable[[Result], None] = lambda _: None,
    ) -> None:
        self._access = Access(socket_path, proc)
        self._calls = calls
        self._documents = documents
        self._timeouts = timeouts if timeouts is not None else Timeouts()
        self._count = count
        self._known: Counter[cache.Volume] = Counter()
        self._spent: dict[cache.Volume, float] = {}
        self._waiting: asyncio.Queue[cache.Volume] = asyncio.Queue()
        self._saving = asyncio.Lock()
        self._loaded = False

    async def empty(self, place: cache.Place) -> Emptying:
        """Empty a container's cache, while no container of that name runs. Never fails."""
        expected = (TimeoutError, ProcessEndedError, OSError)
        try:
            with contained.within(Part.CONTAINER, f"cache {place.volume.path}", passing=expected) as work:
                emptying = await self._empty(place)
        except TimeoutError as error:
            emptying = Emptying(Result.NOT_EMPTIED, str(error) or f"it took more than {self._timeouts.work:g} s")
        except (ProcessEndedError, OSError) as error:
            emptying = Emptying(Result.NOT_EMPTIED, error.strerror or str(error))
        if work.error is not None:
            emptying = Emptying(Result.NOT_EMPTIED, contained.describe(work.error))
        self._count(emptying.result)
        return emptying

    async def _empty(self, place: cache.Place) -> Emptying:
        if self._calls is None:
            return Emptying(Result.NOT_EMPTIED, "this agent has no access to it")
        self._known[place.volume] += 1
        await self._save()
        bounds = Bounds(until=time.monotonic() + self._timeouts.work)
        work = functools.partial(cache_removal.empty, self._access, place, bounds=bounds)
        try:
            removed = await self._calls.call(
                work, owner=f"cache {place.volume.path}", timeout=self._timeouts.work + _SLACK
            )
        finally:
            self._waiting.put_nowait(place.volume)
        if removed is None:
            return Emptying(Result.NOTHING_THERE)
        rest = "" if removed.is_complete else ", the rest is being removed"
        return Emptying(Result.EMPTIED, f"{removed.entries} files removed{rest}")

    async def run(self) -> None:
        """Remove what was moved aside, also by previous agents. Never returns."""
        async with self._saving:
            await self._load()
        while True:
            volume = await self._waiting.get()
            begun = time.monotonic()
            if await self._is_finished(volume):
                self._known -= Counter([volume])
                self._spent.pop(volume, None)
                await self._save()
            else:  # after the other volumes
                self._spent[volume] = self._spent.get(volume, 0.0) + time.monotonic() - begun
                self._waiting.put_nowait(volume)

    async def _is_finished(self, volume: cache.Volume) -> bool:
        """Remove a slice of the remains; return whether to stop."""
        removed, reason = None, ""
        with contained.within(Part.CONTAINER, f"cache {volume.path}") as work:
            try:
                removed = await self._remove(volume)
            except (TimeoutError, OSError) as error:
                reason = str(error) or "it did not answer"
        if work.error is not None:
            reason = contained.describe(work.error)
        elif removed is not None:
            if removed.is_complete:
                return True
            if removed.cut_short and removed.entries and self._spent.get(volume, 0.0) < self._timeouts.remains:
                return False
            reason = "; ".join(removed.left) or f"there was more after {self._spent.get(volume, 0.0):.0f} s"
        log.warning("cache.not_removed", volume=posixpath.join(volume.pods, volume.path), reason=reason)
        self._count(Result.NOT_REMOVED)
        return True

    async def _remove(self, volume: cache.Volume) -> Removed:
        if self._calls is None:
            return Removed()
        bounds = Bounds(until=time.monotonic() + self._timeouts.slice)
        work = functools.partial(cache_removal.remove, self._access, volume, bounds=bounds)
        return await self._calls.call(work, owner=f"remains {volume.path}", timeout=self._timeouts.slice + _SLACK)

    async def _load(self) -> None:
        """Queue the volumes of previous agents, once. Without the journal the remains go with their pods."""
        if self._documents is None or self._loaded:
            return
        self._loaded = True
        try:
            text = await self._documents.load(DOCUMENT)
            left = [cache.Volume(str(pods), str(path)) for pods, path in json.loads(text or "[]")]
        except (JournalError, ValueError, TypeError) as error:
            log.warning("cache.remains_unknown", error=str(error))
            return
        for volume in left:
            self._known[volume] += 1
            self._waiting.put_nowait(volume)

    async def _save(self) -> None:
        """Write the document; read the previous agent's first. Failures are logged."""
        if self._documents is None:
            return
        async with self._saving:
            await self._load()
            known = sorted((volume.pods, volume.path) for volume in self._known)
            try:
                await self._documents.save(DOCUMENT, json.dumps(known))
            except JournalError as error:
                log.warning("cache.remains_not_saved", error=str(error))


class CacheCleanup:
    """The emptying of one container's cache in one restart, done once."""

    def __init__(self, cleaner: CacheCleaner, request: cache.Request) -> None:
        self._cleaner = cleaner
        self._place = request.place
        self._after = f"after {request.early_failures} early failures"
        self._once = asyncio.Lock()
        self._emptying: Emptying | None = None

    @property
    def note(self) -> str:
        """Return a description of the result, for people; empty if there was nothing to do."""
        emptying, whose = self._emptying, f"cache of {self._place.container}"
        if emptying is None:
            return f"{whose} not emptied {self._after}: the successor did not wait for it"
        match emptying.result:
            case Result.NOTHING_THERE:
                return ""
            case Result.NOT_EMPTIED:
                return f"{whose} not emptied {self._after}: {emptying.text}"
            case _:
                return f"{whose} emptied {self._after} ({emptying.text})"

    async def before_start(self) -> None:
        """Empty it once. Call when the old container is dead, before its successor runs."""
        async with self._once:
            if self._emptying is None:
                self._emptying = await self._cleaner.empty(self._place)
                self._log(self._emptying)

    def _log(self, emptying: Emptying) -> None:
        about = {"volume": self._place.volume.path, "container": self._place.container}
        if emptying.result is Result.NOT_EMPTIED:
            log.warning("cache.not_emptied", **about, reason=emptying.text)
        else:
            log.info("cache.emptied", **about, result=emptying.result.value, detail=emptying.text)
