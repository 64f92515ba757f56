"""Tells Events to the API server, one after the other, each once whatever happens, as long as it is news.

One that may happen again is counted in the Event that is there (``common.kube.repeats``), by whoever leads then.
"""

import asyncio
import collections
import time
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from common import aio, contained
from common.kube import client, errors, repeats
from common.kube.transport import Json
from common.parts import PartState, PartStatus

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class _Story:
    """One Event, the collection that it goes to, and when it happened last (Unix time).

    ``untold``: how often, of what has not been told; None: it happens once.
    """

    path: str
    body: Json
    at: float
    untold: int | None = None

    @property
    def key(self) -> str:
        return f"{self.path}/{self.body['metadata']['name']}"


@dataclass(slots=True)
class _Counted:
    """How often what may happen again was told to have happened, and from when on it may be told again (Unix time).

    ``untold`` times it has happened since.
    """

    count: int
    not_before: float
    untold: int = 0


class Teller:
    """``tell`` takes Events in, ``run`` writes them. That one is told once is up to its name."""

    def __init__(
        self,
        *,
        api: client.KubeClient,
        report: Callable[[PartStatus], None] = lambda _: None,
        clock: Callable[[], float] = time.time,
        backoff: aio.Backoff | None = None,
        keep: float = 600.0,
        spacing: float = 60.0,
        waiting: int = 1000,
    ) -> None:
        """Create it; ``keep`` is for how many seconds a story is news, ``waiting`` how many can wait (newest first).

        What happens again within ``spacing`` seconds is counted with what happens after them: nothing is written for
        it alone. Of ``waiting`` such stories it is known how often they were told. ``clock`` gives Unix seconds.
        """
        self._api = api
        self._report = report
        self._clock = clock
        self._backoff = backoff if backoff is not None else aio.Backoff(first=0.2, limit=10.0)
        self._keep = keep
        self._spacing = spacing
        self._waiting = waiting
        self._counted: collections.OrderedDict[str, _Counted] = collections.OrderedDict()  # told last comes last
        self._stories: collections.deque[_Story] = collections.deque(maxlen=waiting)
        self._news = asyncio.Event()

    def tell(self, path: str, body: Json, *, at: float, may_repeat: bool = False) -> None:
        """Take an Event in, to be created in the collection at ``path``; it happened ``at``. Does not block.

        ``may_repeat``: what has the same name is the same happening again, and is counted; else it was told already.
        """
        story = _Story(path, body, at)
        if may_repeat and not self._is_due(story):
            return
        self._stories.append(story)
        self._news.set()

    def _is_due(self, story: _Story) -> bool:
        """Count a story, and return whether it is to be told now; else one that waits tells of it, or a later one."""
        for each in self._stories:
            if each.untold is not None and each.key == story.key:
                each.untold, each.at, each.body = each.untold + 1, story.at, story.body
                return False
        counted, story.untold = self._counted.get(story.key), 1
        if counted is None:
            return True
        if story.at < counted.not_before:
            counted.untold += 1
            return False
        story.untold, counted.untold = counted.untold + 1, 0
        return True

    async def run(self) -> None:
        """Tell for ever."""
        self._report(PartStatus(PartState.IDLE, "nothing has happened yet"))
        while True:
            while not self._stories:
                self._news.clear()
                await self._news.wait()
            story = self._stories[0]
            dealt_with = True
            with contained.within(contained.Part.EVENT, story.body.get("reason")):
                dealt_with = self._clock() - story.at > self._keep or await self._told(story)
            if dealt_with:
                if self._stories and self._stories[0] is story:  # else it had to make room
                    self._stories.popleft()
            else:
                await self._backoff.wait()

    async def _told(self, story: _Story) -> bool:
        """Tell a story; return False when that must be tried again."""
        reason = story.body["reason"]
        try:
            await self._write(story)
        except errors.AlreadyExistsError:
            pass  # told before, by a former leader or by an attempt whose answer was lost
        except (errors.InvalidError, errors.NotFoundError, errors.ConflictError) as error:
            log.warning("event.refused", reason=reason, error=str(error))  # never, or its namespace is gone
        except errors.ForbiddenError as error:  # its namespace is going, say: all others would wait for it
            log.warning("event.refused", reason=reason, error=str(error))
            return True
        except errors.KubeError as error:
            log.info("event.again", reason=reason, error=str(error))
            self._report(PartStatus(PartState.DEGRADED, error.what, error.mend))
            return False
        self._report(PartStatus(PartState.READY))
        self._backoff.reset()
        return True

    async def _write(self, story: _Story) -> None:
        if story.untold is None:
            await self._api.create(story.path, story.body)
            return
        at, untold = story.at, story.untold
        count = await self._count(story, at=at, untold=untold)
        story.untold -= untold
        self._counted.pop(story.key, None)
        while len(self._counted) >= self._waiting:
            self._counted.popitem(last=False)
        self._counted[story.key] = _Counted(count, self._clock() + self._spacing, untold=story.untold)

    async def _count(self, story: _Story, *, at: float, untold: int) -> int:
        """Tell how often it has happened by now, and return that."""
        counted = self._counted.get(story.key)
        if counted is None:
            fresh = dict(story.body) if untold == 1 else story.body | repeats.again(story.body, count=untold, at=at)
            try:
                await self._api.create(story.path, fresh)
            except errors.AlreadyExistsError:
                # A patch of nothing answers with the object: no right to read Events is needed.
                known, last = repeats.told(await self._patch(story, {}))
                if last >= int(at):  # the answer to our own attempt was lost
                    return known
                counted = _Counted(known, at)
            else:
                return untold
        count = counted.count + untold
        try:
            await self._patch(story, repeats.again(story.body, count=count, at=at))
        except errors.NotFoundError:  # the Event's hour is over
            self._counted.pop(story.key, None)
            return await self._count(story, at=at, untold=untold)
        return count

    async def _patch(self, story: _Story, change: Json) -> Json:
        return await self._api.patch(story.key, change, content_type=client.Patch.MERGE)
