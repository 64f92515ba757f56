"""Nodes that are kept free of new pods because of a device, and until when."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubemend.common.kube import timestamps
from kubemend.controller.jobset.placement import device_taints
from kubemend.controller.jobset.placement.device_taints import AddTaint, DeviceFault, NodeState, RemoveTaint
from kubemend.controller.jobset.spec import fields

T = 1_700_000_000.0
LATER = T + device_taints.SETTLED
TAINT = {"key": "kubemend.io/device-failure", "effect": "NoSchedule", "timeAdded": timestamps.rfc3339(T)}
OTHER = {"key": "maintenance", "effect": "NoSchedule"}


def node(
    *taints: dict[str, Any], healthy: str | None = None, reported_at: float = LATER, created: float = T - 100
) -> NodeState:
    """Return a node as the API has it; ``healthy`` is its agent's report at ``reported_at``."""
    condition = {
        "type": "kubemend.io/DevicesHealthy",
        "status": healthy,
        "lastHeartbeatTime": timestamps.rfc3339(reported_at),
        "lastTransitionTime": timestamps.rfc3339(T - 1000),
    }
    return device_taints.node(
        {
            "metadata": {"name": "n1", "resourceVersion": "7", "creationTimestamp": timestamps.rfc3339(created)},
            "spec": {"taints": list(taints)},
            "status": {"conditions": [{"type": "Ready", "status": "True"}, *([] if healthy is None else [condition])]},
        }
    )


def fault(at: float = T, *, code: str = "Xid79", on: str = "n1") -> DeviceFault:
    return DeviceFault(on, at, code)


@pytest.mark.parametrize(
    ("healthy", "reported_at"), [(None, LATER), ("False", LATER), ("Unknown", LATER), ("True", T - 1)]
)
def test_node_left_because_of_device_is_tainted(healthy: str | None, reported_at: float) -> None:
    state = node(healthy=healthy, reported_at=reported_at)
    assert device_taints.changes([state], [fault()]) == (AddTaint(state, T, "Xid79"),)


def test_unknown_node_is_not_tainted() -> None:
    assert device_taints.changes([node(healthy="False")], []) == ()
    assert device_taints.changes([node()], [fault(on="n2")]) == ()


def test_node_is_not_tainted_twice() -> None:
    assert device_taints.changes([node(TAINT, healthy="False")], [fault()]) == ()


def test_taint_is_removed_once_devices_are_healthy() -> None:
    state = node(TAINT, healthy="True")
    assert device_taints.changes([state], []) == (RemoveTaint(state),)
    assert device_taints.changes([state], [fault()]) == (RemoveTaint(state),)


@pytest.mark.parametrize(
    ("healthy", "reported_at"), [(None, LATER), ("False", LATER), ("Unknown", LATER), ("True", LATER - 1)]
)
def test_taint_stays_until_devices_are_healthy(healthy: str | None, reported_at: float) -> None:
    """A report from before the fault, or from the seconds in which agents delay reports, has no effect."""
    assert device_taints.changes([node(TAINT, healthy=healthy, reported_at=reported_at)], []) == ()


def test_new_fault_prolongs_taint() -> None:
    assert device_taints.changes([node(TAINT, healthy="True", reported_at=LATER)], [fault(T + 5)]) == ()


def test_newest_fault_counts() -> None:
    (change,) = device_taints.changes([node()], [fault(T, code="New"), fault(T - 50, code="Old")])
    assert isinstance(change, AddTaint)
    assert (change.since, change.code) == (T, "New")


def test_replaced_node_is_not_tainted() -> None:
    assert device_taints.changes([node(created=T + 1)], [fault()]) == ()
    assert device_taints.is_over(fault(), node(created=T + 1))
    assert device_taints.is_over(fault(), None)
    assert not device_taints.is_over(fault(), node())


def test_foreign_taint_is_kept() -> None:
    by_hand = {"key": "kubemend.io/device-failure", "effect": "NoSchedule"}
    state = node(by_hand, healthy="True")
    assert state.is_tainted
    assert device_taints.changes([state], []) == ()
    assert device_taints.changes([node(by_hand)], [fault()]) == ()


def test_changes_are_ordered_by_node_name() -> None:
    states = [NodeState(name) for name in ("b", "a")]
    found = device_taints.changes(states, [fault(on="a"), fault(on="b")])
    assert [each.node.name for each in found] == ["a", "b"]


def test_patch_adds_one_taint_and_keeps_others() -> None:
    assert device_taints.patch(AddTaint(node(OTHER), T, "Xid79")) == {
        "metadata": {"resourceVersion": "7"},
        "spec": {"taints": [OTHER, {**TAINT, "value": "Xid79"}]},
    }


def test_patch_removes_only_our_taint() -> None:
    no_execute = {"key": "kubemend.io/device-failure", "effect": "NoExecute"}
    found = device_taints.patch(RemoveTaint(node(OTHER, TAINT, no_execute)))
    assert found["spec"]["taints"] == [OTHER, no_execute]


@pytest.mark.parametrize("code", ["", "a b", "x" * 64, "-a", "Xid 79", "ä", "a\n"])
def test_code_invalid_as_taint_value_is_omitted(code: str) -> None:
    assert device_taints.patch(AddTaint(node(), T, code))["spec"]["taints"] == [TAINT]


ODD_TIMES = ["0000-01-01T00:00:00Z", "10000-01-01T00:59:59Z", "soon", 7]


@pytest.mark.parametrize("time", ODD_TIMES)
@pytest.mark.parametrize("place", ["creationTimestamp", "timeAdded", "lastHeartbeatTime", "lastTransitionTime"])
def test_node_with_invalid_time_raises_with_field(place: str, time: object) -> None:
    condition = {"type": "kubemend.io/DevicesHealthy", "status": "True", "lastHeartbeatTime": "2026-01-01T00:00:00Z"}
    odd = {place: time}
    obj = {
        "metadata": {"name": "n1", "creationTimestamp": "2026-01-01T00:00:00Z", **odd},
        "spec": {"taints": [{**TAINT, **odd}]},
        "status": {"conditions": [{**condition, **odd}]},
    }
    with pytest.raises(fields.InvalidFieldError, match=f"{place}: .*; write "):
        device_taints.node(obj)


@pytest.mark.parametrize(
    "odd", [{"metadata": []}, {"spec": "x"}, {"spec": {"taints": ["x"]}}, {"status": {"conditions": {"a": "b"}}}, {}]
)
def test_malformed_node_raises(odd: dict[str, Any]) -> None:
    with pytest.raises(fields.InvalidFieldError):
        device_taints.node({"metadata": {}, **odd})


@given(
    reports=st.lists(
        st.tuples(st.sampled_from(["fault", "healthy", "unhealthy"]), st.integers(1, 120)), min_size=1, max_size=12
    )
)
def test_node_is_finally_tainted_unless_healthy_since_last_fault(
    reports: list[tuple[str, int]],
) -> None:
    """After any events in between, the leader may forget each fault once it is over, and only then."""
    now, last, recovered = T, T, True
    faults: list[DeviceFault] = []
    taints: list[dict[str, Any]] = []
    for what, seconds in reports:
        now += seconds
        if what == "fault":
            last, recovered = now, False
            faults.append(fault(now))
        elif what == "healthy" and now >= last + device_taints.SETTLED:
            recovered = True
        state = node(*taints, healthy="True" if what == "healthy" else "False", reported_at=now)
        for change in device_taints.changes([state], faults):
            taints = json.loads(json.dumps(device_taints.patch(change)["spec"]["taints"]))
        faults = [each for each in faults if not device_taints.is_over(each, state)]
        assert bool(taints) is not recovered
