"""Record Events at the API server, in each namespace in order, each once, as long as they are recent.

An Event that may recur is counted in the existing Event (``common.kube.repeats``), also by a later leader.
"""

import asyncio
import collections
import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from kubemend.common import aio, contained
from kubemend.common.components import ComponentState, ComponentStatus
from kubemend.common.kube import client, errors, repeats
from kubemend.common.kube.transport import Json

log = structlog.get_logger(__name__)


@dataclass(slots=True, eq=False)
class _Entry:
    """Hold one Event, the collection that it goes to, and its last occurrence (Unix time).

    ``unrecorded``: occurrences not yet written; None: it happens once.
    """

    path: str
    body: Json
    at: float
    unrecorded: int | None = None

    @property
    def key(self) -> str:
        return f"{self.path}/{self.body['metadata']['name']}"


@dataclass(slots=True)
class _Counted:
    """Hold how many occurrences of a recurring Event were written, and when the next write is allowed (Unix time).

    ``unrecorded``: occurrences since then.
    """

    count: int
    not_before: float
    unrecorded: int = 0


class EventRecorder:
    """Queue Events with ``record`` and write them with ``run``. The Event's name ensures that it is written once."""

    def __init__(
        self,
        *,
        api: client.KubeClient,
        report: Callable[[ComponentStatus], None] = lambda _: None,
        clock: Callable[[], float] = time.time,
        backoff: aio.Backoff | None = None,
        keep: float = 600.0,
        spacing: float = 60.0,
        waiting: int = 1000,
    ) -> None:
        """Create the recorder.

        - ``keep``: seconds for which an Event is worth writing
        - ``waiting``: how many can be queued (the newest are kept), and of how many recurring Events the count is
          remembered
        - ``spacing``: occurrences within this many seconds are counted with the next one and cause no write of their
          own
        - ``clock``: gives Unix seconds
        """
        self._api = api
        self._report = report
        self._clock = clock
        self._backoff = backoff if backoff is not None else aio.Backoff(first=0.2, limit=10.0)
        self._keep = keep
        self._spacing = spacing
        self._waiting = waiting
        self._counted: collections.OrderedDict[str, _Counted] = collections.OrderedDict()  # written last comes last
        self._entries: collections.deque[_Entry] = collections.deque(maxlen=waiting)
        self._queued = asyncio.Event()

    def record(self, path: str, body: Json, *, at: float, may_repeat: bool = False) -> None:
        """Queue an Event for the collection at ``path``; it happened ``at``. Does not block.

        ``may_repeat``: an Event of the same name is another occurrence and is counted; else it has already been
        written.
        """
        entry = _Entry(path, body, at)
        if may_repeat and not self._is_due(entry):
            return
        self._entries.append(entry)
        self._queued.set()

    def _is_due(self, entry: _Entry) -> bool:
        """Count an occurrence; return whether to queue it. If not, a queued or a later Event includes it."""
        for each in self._entries:
            if each.unrecorded is not None and each.key == entry.key:
                each.unrecorded, each.at, each.body = each.unrecorded + 1, entry.at, entry.body
                return False
        counted, entry.unrecorded = self._counted.get(entry.key), 1
        if counted is None:
            return True
        if entry.at < counted.not_before:
            counted.unrecorded += 1
            return False
        entry.unrecorded, counted.unrecorded = counted.unrecorded + 1, 0
        return True

    async def run(self) -> None:
        """Write Events indefinitely.

        A namespace in which a write failed, for example because a webhook of its own is unavailable, comes after all
        others.
        """
        self._report(ComponentStatus(ComponentState.IDLE, "nothing has happened yet"))
        failed: dict[str, float] = {}  # when the last write to a collection failed (loop time)
        dropped = False  # whether the last Event was too old
        while True:
            while not self._entries:
                if dropped:  # an earlier error says nothing about the next Event
                    self._report(ComponentStatus(ComponentState.IDLE, "no Events to record"))
                    dropped = False
                self._queued.clear()
                await self._queued.wait()
            entry = min(self._entries, key=lambda each: failed.get(each.path, 0.0))
            handled = True
            with contained.within(contained.Part.EVENT, entry.body.get("reason")):
                dropped = self._clock() - entry.at > self._keep
                handled = dropped or await self._record(entry)
            if handled:
                failed.pop(entry.path, None)
                with contextlib.suppress(ValueError):  # it was dropped to make room
                    self._entries.remove(entry)
            else:
                failed[entry.path] = asyncio.get_running_loop().time()
                queued = {each.path for each in self._entries}
                failed = {path: at for path, at in failed.items() if path in queued}
                await self._backoff.wait()

    async def _record(self, entry: _Entry) -> bool:
        """Write an Event; return False when it must be retried."""
        reason = entry.body["reason"]
        try:
            await self._write(entry)
        except errors.AlreadyExistsError:
            pass  # written before, by a previous leader or by an attempt whose answer was lost
        except (errors.InvalidError, errors.NotFoundError) as error:
            # refused permanently, or its namespace no longer exists
            log.warning("event.refused", reason=reason, error=str(error))
        except errors.ForbiddenError as error:  # its namespace may be terminating: all other Events would wait for it
            log.warning("event.refused", reason=reason, error=str(error))
            return True
        except errors.KubeError as error:
            log.info("event.write_retried", reason=reason, error=str(error))
            if not isinstance(error, errors.ConflictError):  # many writers change their namespace's quota
                self._report(ComponentStatus(ComponentState.DEGRADED, error.what, error.hint))
            return False
        self._report(ComponentStatus(ComponentState.READY))
        self._backoff.reset()
        return True

    async def _write(self, entry: _Entry) -> None:
        if entry.unrecorded is None:
            await self._api.create(entry.path, entry.body)
            return
        at, unrecorded = entry.at, entry.unrecorded
        count = await self._count(entry, at=at, unrecorded=unrecorded)
        entry.unrecorded -= unrecorded
        self._counted.pop(entry.key, None)
        while len(self._counted) >= self._waiting:
            self._counted.popitem(last=False)
        self._counted[entry.key] = _Counted(count, self._clock() + self._spacing, unrecorded=entry.unrecorded)
        if entry.unrecorded and entry.at >= at + self._spacing:  # it came during a slow write, and needs one of its own
            await self._write(entry)

    async def _count(self, entry: _Entry, *, at: float, unrecorded: int) -> int:
        """Write the number of occurrences so far, and return it."""
        counted = self._counted.get(entry.key)
        if counted is None:
            fresh = (
                dict(entry.body) if unrecorded == 1 else entry.body | repeats.again(entry.body, count=unrecorded, at=at)
            )
            try:
                await self._api.create(entry.path, fresh)
            except errors.AlreadyExistsError:
                # An empty patch answers with the object: no right to read Events is needed.
                known, last = repeats.occurrences(await self._patch(entry, {}))
                if last >= int(at):  # the answer to the own attempt was lost
                    return known
                counted = _Counted(known, at)
            else:
                return unrecorded
        count = counted.count + unrecorded
        try:
            await self._patch(entry, repeats.again(entry.body, count=count, at=at))
        except errors.NotFoundError:  # the Event has expired after its hour
            self._counted.pop(entry.key, None)
            return await self._count(entry, at=at, unrecorded=unrecorded)
        return count

    async def _patch(self, entry: _Entry, change: Json) -> Json:
        return await self._api.patch(entry.key, change, content_type=client.Patch.MERGE)
