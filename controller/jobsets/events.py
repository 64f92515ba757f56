"""Record events.k8s.io Events about JobSets. Reporter, action and reasons are those of upstream's controller."""

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from kubemend.common import aio
from kubemend.common.kube import client, event_recorder, paths, timestamps
from kubemend.controller.jobset.plan import Event
from kubemend.controller.jobset.spec import model

GROUP: Final = "events.k8s.io"
REPORTER: Final = "jobset"
ACTION: Final = "Reconciling"
MAX_NOTE: Final = 1024
MAX_REASON: Final = 128
"""Bytes (``NoteLengthLimit`` and ``ReasonLengthLimit`` of ``pkg/apis/core/validation/events.go``)."""

_MAX_PREFIX: Final = 230  # part of the object's name in the Event's name, which may have 253 characters


@dataclass(frozen=True, slots=True)
class JobSetRef:
    """The JobSet that an Event is about."""

    namespace: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class PendingEvent:
    """One Event.

    ``at`` is Unix time. ``subject`` identifies an Event that is recorded once, such as the status's version.

    An Event without one may recur: then it is counted.
    """

    about: JobSetRef
    event: Event
    at: float
    subject: str = ""


class Events:
    """Record Events. ``record`` queues them, ``run`` writes them one after another."""

    def __init__(
        self,
        *,
        api: client.KubeClient,
        instance: str,
        clock: Callable[[], float] = time.time,
        backoff: aio.Backoff | None = None,
    ) -> None:
        """``instance`` is this replica's name, ``clock`` returns Unix seconds."""
        self._instance = instance
        self._clock = clock
        self._recorder = event_recorder.EventRecorder(api=api, clock=clock, backoff=backoff)

    def record(self, about: JobSetRef, event: Event, *, subject: str = "") -> None:
        """Queue an Event. Does not block."""
        pending = PendingEvent(about, event, self._clock(), subject)
        path = paths.collection("events", namespace=about.namespace, group=GROUP)
        self._recorder.record(path, body(pending, instance=self._instance), at=pending.at, may_repeat=not subject)

    async def run(self) -> None:
        """Write Events indefinitely, each as long as it is recent."""
        await self._recorder.run()


def body(pending: PendingEvent, *, instance: str) -> dict[str, Any]:
    """Return the Event. Its name is derived from its content, so that it is created once."""
    about, event = pending.about, pending.event
    content = "\n".join((about.uid, event.reason, event.message, pending.subject))
    digest = hashlib.sha256(content.encode()).hexdigest()[:16]
    return {
        "apiVersion": f"{GROUP}/v1",
        "kind": "Event",
        "metadata": {"name": f"{about.name[:_MAX_PREFIX].rstrip('-.')}.{digest}", "namespace": about.namespace},
        "eventTime": timestamps.rfc3339(pending.at).replace("Z", ".000000Z"),
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
    """Return the message, cut to the size of an Event's note; a longer note would be refused."""
    whole, more = message.encode(), "…"
    if len(whole) <= MAX_NOTE:
        return message
    return whole[: MAX_NOTE - len(more.encode())].decode(errors="ignore") + more
