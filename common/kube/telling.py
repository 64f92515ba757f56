"""Tells Events to the API server, one after the other, each once whatever happens, as long as it is news."""

import asyncio
import collections
import time
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from common import aio, contained
from common.kube import client, errors
from common.kube.transport import Json
from common.parts import PartState, PartStatus

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Story:
    """One Event, the collection that it goes to, and when it happened (Unix time)."""

    path: str
    body: Json
    at: float


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
        waiting: int = 1000,
    ) -> None:
        """Create it; ``keep`` is for how many seconds a story is news, ``waiting`` how many can wait (newest first).

        ``clock`` gives Unix seconds.
        """
        self._api = api
        self._report = report
        self._clock = clock
        self._backoff = backoff if backoff is not None else aio.Backoff(first=0.2, limit=10.0)
        self._keep = keep
        self._stories: collections.deque[_Story] = collections.deque(maxlen=waiting)
        self._news = asyncio.Event()

    def tell(self, path: str, body: Json, *, at: float) -> None:
        """Take an Event in, to be created in the collection at ``path``; it happened ``at``. Does not block."""
        self._stories.append(_Story(path, body, at))
        self._news.set()

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
            await self._api.create(story.path, story.body)
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
