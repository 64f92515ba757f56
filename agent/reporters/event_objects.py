"""Convert event messages into Events of the core API. Pure.

core/v1 and not events.k8s.io/v1, although both show the same objects: there an Event's text is fixed once it is written
and only its count may grow (``ValidateEventUpdate``), and it has no ``lastTimestamp``, by which ``kubectl get events``
sorts, and most tools that collect events. Here the Event has the newest text and the count, as kubelet's own.
"""

import hashlib
from typing import Any

from kubemend.agent.model.event_messages import EventMessage
from kubemend.common import plain
from kubemend.common.kube import paths, repeats, timestamps

Object = dict[str, Any]

COMPONENT = "kubemend"
MAX_MESSAGE = 1024
"""Characters (``NoteLengthLimit`` of events.k8s.io, which readers of Events there expect)."""

_NODES_NAMESPACE = "default"  # the namespace of Events about objects without one (client-go's recorder)
_MAX_PREFIX = 230  # of the object's name in the Event's, which may have 253 characters


def collection(event_message: EventMessage) -> str:
    """Return the path under which the message's Event is created."""
    return paths.collection("events", namespace=_namespace(event_message))


def name(event_message: EventMessage, *, node: str) -> str:
    """Return the Event's name: the same for one series, also for the next agent, so that no Event is recorded twice."""
    about = (event_message.about.uid, event_message.about.name) if event_message.about is not None else (node, node)
    key = "\n".join((about[0], event_message.reason, event_message.subject))
    digest = hashlib.sha256(key.encode()).hexdigest()[:16]
    return f"{about[1][:_MAX_PREFIX].rstrip('-.')}.{digest}"


def created(event_message: EventMessage, *, node: str, count: int, first: float) -> Object:
    """Return the Event as it is created; ``first`` is the Unix time of the first of the ``count`` messages in it."""
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": name(event_message, node=node), "namespace": _namespace(event_message)},
        "involvedObject": _involved(event_message, node=node),
        "reason": event_message.reason,
        "type": event_message.level.value,
        "firstTimestamp": timestamps.rfc3339(first),
        "source": {"component": COMPONENT, "host": node},
        "reportingComponent": COMPONENT,
        "reportingInstance": node,
        **continued(event_message, count=count),
    }


def continued(event_message: EventMessage, *, count: int) -> Object:
    """Return the patch of an existing Event: the new count, time and text."""
    return repeats.core(message=_cut(event_message.message), count=count, at=event_message.at)


def _namespace(event_message: EventMessage) -> str:
    return event_message.about.namespace if event_message.about is not None else _NODES_NAMESPACE


def _involved(event_message: EventMessage, *, node: str) -> Object:
    pod = event_message.about
    if pod is None:  # the UID is the name, as in kubelet: ``kubectl describe node`` searches for that, too
        return {"apiVersion": "v1", "kind": "Node", "name": node, "uid": node}
    involved = {"apiVersion": "v1", "kind": "Pod", "namespace": pod.namespace, "name": pod.name, "uid": pod.uid}
    if event_message.container:
        involved["fieldPath"] = f"spec.containers{{{event_message.container}}}"
    return involved


def _cut(message: str) -> str:
    """Return the message in one line without control characters, as a condition's, and not too long."""
    text = plain.text(message)
    return text if len(text) <= MAX_MESSAGE else f"{text[: MAX_MESSAGE - 1]}…"
