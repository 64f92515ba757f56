"""Tells of JobSets as events.k8s.io Events, in the words of upstream's controller: reporter and action are its."""

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from common import aio
from common.kube import client, paths, telling, timestamps
from controller.jobset import model
from controller.jobset.plan import Event

GROUP: Final = "events.k8s.io"
REPORTER: Final = "jobset"
ACTION: Final = "Reconciling"
MAX_NOTE: Final = 1024
MAX_REASON: Final = 128
"""Bytes (``NoteLengthLimit`` and ``ReasonLengthLimit`` of ``pkg/apis/core/validation/events.go``)."""

_MAX_PREFIX: Final = 230  # of the object's name in the Event's, which may have 253 characters


@dataclass(frozen=True, slots=True)
class About:
    """The JobSet that an Event is about."""

    namespace: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class Story:
    """One Event. ``at`` is Unix time. ``subject`` tells apart what is told once, such as by the status's version.

    Without one it may happen again: then it is counted.
    """

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
        """``instance`` is this replica's name, ``clock`` gives Unix seconds."""
        self._instance = instance
        self._clock = clock
        self._teller = telling.Teller(api=api, clock=clock, backoff=backoff)

    def tell(self, about: About, event: Event, *, subject: str = "") -> None:
        """Take a story in. Does not block."""
        story = Story(about, event, self._clock(), subject)
        path = paths.collection("events", namespace=about.namespace, group=GROUP)
        self._teller.tell(path, body(story, instance=self._instance), at=story.at, may_repeat=not subject)

    async def run(self) -> None:
        """Tell for ever, each story for as long as it is news."""
        await self._teller.run()


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
