"""Keep new pods off nodes that a member has left because of a device. Pure.

A member whose device needs a reset, a reboot or replacement is recreated. The scheduler would put it back on the same
node, where a place has just become free. So the node gets a taint until its agent has found all devices healthy again.
A replaced node is another object and does not have the taint.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from kubemend.common.kube import timestamps
from kubemend.controller.jobset.spec import fields
from kubemend.controller.jobset.spec.model import Json

TAINT: Final = "kubemend.io/device-failure"
EFFECT: Final = "NoSchedule"
DEVICES_HEALTHY: Final = "kubemend.io/DevicesHealthy"
"""The node's condition, as its agent reports it (docs/operations.md)."""
SETTLED: Final = 30.0
"""Seconds after a fault from which a report of healthy devices is trusted: agents write conditions late on purpose."""

_VALUE: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?", re.ASCII)
"""The form of a taint's value: a label's value, not empty."""


@dataclass(frozen=True, slots=True)
class DeviceFault:
    """A member was recreated elsewhere because of a device of this node. ``at`` is Unix time, ``code`` the fault's."""

    node: str
    at: float
    code: str = ""


@dataclass(frozen=True, slots=True)
class NodeState:
    """A node. Times are Unix seconds.

    ``healthy_at``: when its agent last found all devices healthy, if that report is current; else None. ``tainted_at``:
    when kubemend's taint was added; None without one, and for one without a time: a person has added that, and removes
    it. ``taints`` are all of its taints.
    """

    name: str
    resource_version: str = ""
    created_at: float = 0.0
    healthy_at: float | None = None
    tainted_at: float | None = None
    taints: tuple[Json, ...] = field(default=())

    @property
    def is_tainted(self) -> bool:
        """Return whether the node has the taint, regardless of its author."""
        return any(map(_is_ours, self.taints))


@dataclass(frozen=True, slots=True)
class AddTaint:
    """Add the taint to the node: ``since`` is its time, ``code`` its value."""

    node: NodeState
    since: float
    code: str


@dataclass(frozen=True, slots=True)
class RemoveTaint:
    """Remove the taint from the node."""

    node: NodeState


def node(obj: Json) -> NodeState:
    """Return a node. Raises InvalidFieldError: the API server accepts invalid times, such as those of the year 0."""
    meta, spec = fields.mapping(obj.get("metadata"), "metadata"), fields.mapping(obj.get("spec"), "spec")
    taints = tuple(fields.objects(spec.get("taints"), "spec.taints"))
    added = [each["timeAdded"] for each in taints if _is_ours(each) and each.get("timeAdded")]
    status = fields.mapping(obj.get("status"), "status")
    conditions = {each.get("type"): each for each in fields.objects(status.get("conditions"), "status.conditions")}
    return NodeState(
        name=fields.name(meta.get("name"), "metadata.name"),
        resource_version=fields.text(meta.get("resourceVersion"), "metadata.resourceVersion"),
        created_at=fields.moment(meta.get("creationTimestamp"), "metadata.creationTimestamp"),
        healthy_at=_healthy_at(conditions.get(DEVICES_HEALTHY) or {}),
        tainted_at=max((fields.moment(each, "spec.taints[].timeAdded") for each in added), default=None),
        taints=taints,
    )


def changes(nodes: Iterable[NodeState], faults: Iterable[DeviceFault]) -> tuple[AddTaint | RemoveTaint, ...]:
    """Return the changes to make, by node name. Making one late or twice does no harm.

    ``faults`` are those that are remembered, however old; see ``is_over`` for which may be forgotten.
    """
    newest: dict[str, DeviceFault] = {}
    for fault in sorted(faults, key=lambda each: each.at):
        newest[fault.node] = fault
    found = (_change(each, newest.get(each.name)) for each in sorted(nodes, key=lambda each: each.name))
    return tuple(each for each in found if each is not None)


def is_over(fault: DeviceFault, node: NodeState | None) -> bool:
    """Return whether a fault no longer matters: its node is deleted or new, or was found healthy since."""
    return node is None or node.created_at > fault.at or _is_healthy_since(node, fault.at)


def patch(change: AddTaint | RemoveTaint) -> dict[str, Any]:
    """Return the JSON merge patch of the node. It conflicts if the node has changed, because taints are one list."""
    others = [each for each in change.node.taints if not _is_ours(each)]
    if isinstance(change, AddTaint):
        others.append(_taint(change))
    return {"metadata": {"resourceVersion": change.node.resource_version}, "spec": {"taints": others}}


def _change(node: NodeState, fault: DeviceFault | None) -> AddTaint | RemoveTaint | None:
    open_fault = fault is not None and not is_over(fault, node)
    if fault is not None and open_fault and not node.is_tainted:
        return AddTaint(node, fault.at, fault.code)
    if node.tainted_at is not None and not open_fault and _is_healthy_since(node, node.tainted_at):
        return RemoveTaint(node)
    return None


def _is_healthy_since(node: NodeState, at: float) -> bool:
    return node.healthy_at is not None and node.healthy_at >= at + SETTLED


def _healthy_at(condition: Json) -> float | None:
    if condition.get("status") != "True":
        return None
    times = {name: condition[name] for name in ("lastHeartbeatTime", "lastTransitionTime") if condition.get(name)}
    return max((fields.moment(each, f"{DEVICES_HEALTHY}.{name}") for name, each in times.items()), default=None)


def _taint(change: AddTaint) -> dict[str, str]:
    value = {"value": change.code} if _VALUE.fullmatch(change.code) else {}
    return {"key": TAINT, **value, "effect": EFFECT, "timeAdded": timestamps.rfc3339(change.since)}


def _is_ours(taint: Json) -> bool:
    return bool(taint.get("key") == TAINT and taint.get("effect") == EFFECT)
