"""Nodes as values."""

from typing import Any

import pytest

from kubemend.controller.model.members import NodeName, NodeView
from kubemend.controller.watches import nodes


def node(*, ready: str | None = None, taints: tuple[str, ...] = ()) -> dict[str, Any]:
    conditions = [{"type": "MemoryPressure", "status": "False"}]
    conditions += [{"type": "Ready", "status": ready}] if ready is not None else []
    return {
        "metadata": {"name": "node-1"},
        "spec": {"taints": [{"key": key, "effect": "NoExecute"} for key in taints]},
        "status": {"conditions": conditions},
    }


@pytest.mark.parametrize(
    ("status", "ready"), [("True", True), ("False", False), ("Unknown", None), (None, None), ("Strange", None)]
)
def test_unreported_readiness_is_unknown(status: str | None, ready: bool | None) -> None:
    assert nodes.view(node(ready=status)) == NodeView(NodeName("node-1"), ready=ready)


def test_own_taint_is_recognized() -> None:
    assert nodes.view(node(taints=("kubemend.io/device-failure",))).kept_off
    assert not nodes.view(node(taints=(nodes.OUT_OF_SERVICE,))).kept_off


def test_node_without_status_is_unknown() -> None:
    assert nodes.view({"metadata": {"name": "node-1"}}) == NodeView(NodeName("node-1"), ready=None)


def test_only_out_of_service_taint_means_dead() -> None:
    assert nodes.view(node(taints=(nodes.OUT_OF_SERVICE,))).out_of_service
    assert not nodes.view(
        node(taints=("node.kubernetes.io/unreachable", "node.kubernetes.io/not-ready"))
    ).out_of_service


@pytest.mark.parametrize(
    ("status", "unschedulable", "leaving"),
    [
        ("True", True, True),
        ("True", False, False),
        ("True", None, False),
        ("False", True, False),
        ("Unknown", True, False),
        (None, True, False),
    ],
)
def test_node_is_leaving_once_its_maintenance_is_planned_and_no_new_pod_comes(
    status: str | None, unschedulable: bool | None, leaving: bool
) -> None:
    one = node(ready="True")
    if status is not None:
        one["status"]["conditions"].append({"type": "MaintenancePlanned", "status": status})
    if unschedulable is not None:
        one["spec"]["unschedulable"] = unschedulable
    assert nodes.view(one).leaving is leaving
