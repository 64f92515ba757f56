"""Tells as Kubernetes Events what became of rounds, each story once whatever happens, as long as it is news.

core/v1 Events, as the agent's, and for its reason (``agent.reporters.event_objects``): ``kubectl get events`` and most
tools that collect them go by ``lastTimestamp``, which events.k8s.io has not.
"""

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
from common.parts import PartState, PartStatus

log = structlog.get_logger(__name__)

COMPONENT: Final = "kubemend"
MAX_MESSAGE: Final = 1024
"""Characters (``NoteLengthLimit`` of events.k8s.io)."""
_MAX_PREFIX: Final = 230  # of the object's name in the Event's, which may have 253 characters


@dataclass(frozen=True, slots=True)
class ObjectRef:
    """The object that an Event is about."""

    api_version: str
    kind: str
    namespace: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class Story:
    """One Event. ``at`` is Unix time; ``subject`` tells stories of one reason apart, such as by the round's id."""

    about: ObjectRef
    reason: str
    message: str
    at: float
    warning: bool = False
    subject: str = ""


class EventTeller:
    """``tell`` takes stories in, ``run`` writes them, one after the other."""

    def __init__(
        self,
        *,
        api: client.KubeClient,
        report: Callable[[PartStatus], None],
        clock: Callable[[], float] = time.time,
        backoff: aio.Backoff | None = None,
        keep: float = 600.0,
        waiting: int = 1000,
    ) -> None:
        """Create it; ``keep`` is for how many seconds a story is news, ``waiting`` how many can wait (newest first)."""
        self._api = api
        self._report = report
        self._clock = clock
        self._backoff = backoff if backoff is not None else aio.Backoff(first=0.2, limit=10.0)
        self._keep = keep
        self._stories: collections.deque[Story] = collections.deque(maxlen=waiting)
        self._news = asyncio.Event()

    def tell(self, about: ObjectRef, *, reason: str, message: str, warning: bool = False, subject: str = "") -> None:
        """Take a story in. Does not block."""
        self._stories.append(Story(about, reason, message, self._clock(), warning=warning, subject=subject))
        self._news.set()

    async def run(self) -> None:
        """Tell for ever."""
        self._report(PartStatus(PartState.IDLE, "nothing has happened yet"))
        while True:
            while not self._stories:
                self._news.clear()
                await self._news.wait()
            story = self._stories[0]
            if self._clock() - story.at > self._keep or await self._told(story):
                if self._stories and self._stories[0] is story:  # else it had to make room
                    self._stories.popleft()
            else:
                await self._backoff.wait()

    async def _told(self, story: Story) -> bool:
        """Tell a story; return False when that must be tried again."""
        try:
            await self._api.create(paths.collection("events", namespace=story.about.namespace), event(story))
        except errors.ConflictError:
            pass  # told before, by a former leader or by an attempt whose answer was lost
        except (errors.InvalidError, errors.NotFoundError) as error:  # never, or its namespace is gone
            log.warning("event.refused", reason=story.reason, error=str(error))
        except errors.ForbiddenError as error:  # its namespace is going, say: all others would wait for it
            log.warning("event.refused", reason=story.reason, error=str(error))
            return True
        except errors.KubeError as error:
            self._report(PartStatus(PartState.DEGRADED, error.what, error.mend))
            return False
        self._report(PartStatus(PartState.READY))
        self._backoff.reset()
        return True


def event(story: Story) -> dict[str, Any]:
    """Return the Event. Its name is the same for the same story, so that none is told twice."""
    about = story.about
    digest = hashlib.sha256("\n".join((about.uid, story.reason, story.subject)).encode()).hexdigest()[:16]
    message = story.message
    moment = timestamps.rfc3339(story.at)
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{about.name[:_MAX_PREFIX].rstrip('-.')}.{digest}", "namespace": about.namespace},
        "involvedObject": {
            "apiVersion": about.api_version,
            "kind": about.kind,
            "namespace": about.namespace,
            "name": about.name,
            "uid": about.uid,
        },
        "reason": story.reason,
        "message": message if len(message) <= MAX_MESSAGE else f"{message[: MAX_MESSAGE - 1]}…",
        "type": "Warning" if story.warning else "Normal",
        "firstTimestamp": moment,
        "lastTimestamp": moment,
        "count": 1,
        "source": {"component": COMPONENT},
        "reportingComponent": COMPONENT,
        "reportingInstance": COMPONENT,
    }
