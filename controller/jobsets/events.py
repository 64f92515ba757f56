"""Tells of JobSets as events.k8s.io Events, in the words of upstream's controller: reporter and action are its."""

import asyncio
import collections
import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import structlog

from common import aio
from common.kube import client, errors, paths, timestamps
from controller.jobset import model
from controller.jobset.plan import Event

log = structlog.get_logger(__name__)

GROUP: Final = "events.k8s.io"
REPORTER: Final = "jobset"
ACTION: Final = "Reconciling"
MAX_NOTE: Final = 1024
MAX_REASON: Final = 128
"""Bytes (``NoteLengthLimit`` and ``ReasonLengthLimit`` of ``pkg/apis/core/validation/events.go``)."""

_MAX_PREFIX: Final = 230  # of the object's name in the Event's, which may have 253 characters
_NEWS_SECONDS: Final = 600.0
_WAITING: Final = 1000


@dataclass(frozen=True, slots=True)
class About:
    """The JobSet that an Event is about."""

    namespace: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class Story:
    """One Event. ``at`` is Unix time; ``subject`` tells apart what happens again, such as by the status's version."""

    about: About
    event: Event
    at: float
    subject: str = ""


class Events:
    """``tell`` takes stories in, ``run`` writes them, one after the other."""

    def __init__(
        self,
        *,
        api: client.KubeClient,
        instance: str,
        clock: Callable[[], float] = time.time,
        backoff: aio.Backoff | None = None,
    ) -> None:
        """``instance`` is this replica's name."""
        self._api = api
        self._instance = instance
        self._clock = clock
        self._backoff = backoff if backoff is not None else aio.Backoff(first=0.2, limit=10.0)
        self._stories: collections.deque[Story] = collections.deque(maxlen=_WAITING)
        self._news = asyncio.Event()

    def tell(self, about: About, event: Event, *, subject: str = "") -> None:
        """Take a story in. Does not block."""
        self._stories.append(Story(about, event, self._clock(), subject))
        self._news.set()

    async def run(self) -> None:
        """Tell for ever, each story for as long as it is news."""
        while True:
            while not self._stories:
                self._news.clear()
                await self._news.wait()
            story = self._stories[0]
            if self._clock() - story.at > _NEWS_SECONDS or await self._told(story):
                if self._stories and self._stories[0] is story:  # else it had to make room
                    self._stories.popleft()
            else:
                await self._backoff.wait()

    async def _told(self, story: Story) -> bool:
        """Tell a story; return False when that must be tried again."""
        path = paths.collection("events", namespace=story.about.namespace, group=GROUP)
        try:
            await self._api.create(path, body(story, instance=self._instance))
        except errors.ConflictError:
            pass  # told before, by an attempt whose answer was lost
        except (errors.InvalidError, errors.NotFoundError, errors.ForbiddenError) as error:
            log.warning("event.refused", reason=story.event.reason, error=str(error))  # its namespace is going, say
        except errors.KubeError as error:
            log.info("event.again", reason=story.event.reason, error=str(error))
            return False
        self._backoff.reset()
        return True


def body(story: Story, *, instance: str) -> dict[str, Any]:
    """Return the Event. Its name is the same for the same story, so that none is told twice."""
    about, event = story.about, story.event
    told = "\n".join((about.uid, event.reason, event.message, story.subject))
    digest = hashlib.sha256(told.encode()).hexdigest()[:16]
    return {
        "apiVersion": f"{GROUP}/v1",
        "kind": "Event",
        "metadata": {"name": f"{about.name[:_MAX_PREFIX].rstrip('-.')}.{digest}", "namespace": about.namespace},
        "eventTime": timestamps.rfc3339(story.at).replace("Z", ".000000Z"),
        "reportingController": REPORTER,
        "reportingInstance": instance,
        "action": ACTION,
        "reason": event.reason[:MAX_REASON],
        "regarding": {
            "apiVersion": model.API_VERSION,
            "kind": model.KIND,
            "namespace": about.namespace,
            "name": about.name,
            "uid": about.uid,
        },
        "note": _note(event.message),
        "type": event.type.value,
    }


def _note(message: str) -> str:
    """Return as much of a message as an Event takes; with one byte more it would be refused."""
    whole, more = message.encode(), "…"
    if len(whole) <= MAX_NOTE:
        return message
    return whole[: MAX_NOTE - len(more.encode())].decode(errors="ignore") + more
