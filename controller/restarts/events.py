"""Record Kubernetes Events about rounds. Each is created once, as long as it is recent.

core/v1 Events, like the agent's, and for the same reason (``agent.reporters.event_objects``): ``kubectl get events``
and most tools that collect them use ``lastTimestamp``, which events.k8s.io does not have.
"""

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from kubemend.common import aio, plain
from kubemend.common.components import ComponentStatus
from kubemend.common.kube import client, event_recorder, paths, timestamps

COMPONENT: Final = "kubemend"
MAX_MESSAGE: Final = 1024
"""Characters (``NoteLengthLimit`` of events.k8s.io)."""
_MAX_PREFIX: Final = 230  # part of the object's name in the Event's name, which may have 253 characters


@dataclass(frozen=True, slots=True)
class ObjectRef:
    """The object that an Event is about."""

    api_version: str
    kind: str
    namespace: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class PendingEvent:
    """One Event.

    ``at`` is Unix time; ``subject`` distinguishes Events with the same reason, such as by the round's id.
    """

    about: ObjectRef
    reason: str
    message: str
    at: float
    warning: bool = False
    subject: str = ""


class RoundEventRecorder:
    """Record Events. ``record`` queues them, ``run`` writes them one after another."""

    def __init__(
        self,
        *,
        api: client.KubeClient,
        report: Callable[[ComponentStatus], None],
        clock: Callable[[], float] = time.time,
        backoff: aio.Backoff | None = None,
    ) -> None:
        """``clock`` returns Unix seconds."""
        self._clock = clock
        self._recorder = event_recorder.EventRecorder(api=api, report=report, clock=clock, backoff=backoff)

    def record(
        self,
        about: ObjectRef,
        *,
        reason: str,
        message: str,
        warning: bool = False,
        subject: str = "",
        may_repeat: bool = False,
    ) -> None:
        """Queue an Event. Does not block. ``may_repeat``: a repetition is a new occurrence, and is counted."""
        pending = PendingEvent(about, reason, message, self._clock(), warning=warning, subject=subject)
        path = paths.collection("events", namespace=about.namespace)
        self._recorder.record(path, event(pending), at=pending.at, may_repeat=may_repeat)

    async def run(self) -> None:
        """Write Events indefinitely."""
        await self._recorder.run()


def event(pending: PendingEvent) -> dict[str, Any]:
    """Return the Event. Its name is derived from its content, so that it is created once."""
    about = pending.about
    digest = hashlib.sha256("\n".join((about.uid, pending.reason, pending.subject)).encode()).hexdigest()[:16]
    message = plain.text(pending.message)  # a request's reason is any text
    moment = timestamps.rfc3339(pending.at)
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
        "reason": pending.reason,
        "message": message if len(message) <= MAX_MESSAGE else f"{message[: MAX_MESSAGE - 1]}…",
        "type": "Warning" if pending.warning else "Normal",
        "firstTimestamp": moment,
        "lastTimestamp": moment,
        "count": 1,
        "source": {"component": COMPONENT},
        "reportingComponent": COMPONENT,
        "reportingInstance": COMPONENT,
    }
