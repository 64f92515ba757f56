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


def test_addresses_are_those_from_which_pods_see_a_node() -> None:
    found = node()
    found["metadata"]["annotations"] = {"projectcalico.org/IPv4VXLANTunnelAddr": "10.1.2.3"}
    found["spec"]["podCIDRs"] = ["10.244.7.0/24", "fd00:7::/64"]
    found["status"]["addresses"] = [
        {"type": "InternalIP", "address": "10.0.0.7"},
        {"type": "ExternalIP", "address": "203.0.113.7"},
        {"type": "Hostname", "address": "node-1"},
    ]
    assert nodes.view(found).addresses == {"10.0.0.7", "10.1.2.3", "10.244.7.0", "fd00:7::"}


@pytest.mark.parametrize(
    "address",
    ["0.0.0.0", "::", "127.0.0.1", "fe80::1%eth0", "::ffff:10.0.0.1", "224.0.0.1", "10.0.0.0/8", "x", "", None],
)
def test_address_of_no_single_host_is_left_out(address: str | None) -> None:
    found = node()
    found["status"]["addresses"] = [{"type": "InternalIP", "address": address}, {"type": "InternalIP"}]
    assert nodes.view(found).addresses == frozenset()


def test_number_of_addresses_is_bounded() -> None:
    found = node()
    found["status"]["addresses"] = [{"type": "InternalIP", "address": f"10.0.{i}.1"} for i in range(256)]
    assert len(nodes.view(found).addresses) == 8
