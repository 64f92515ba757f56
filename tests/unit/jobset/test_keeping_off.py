"""Which nodes are kept free of new pods for a device's sake, and until when."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.kube import timestamps
from controller.jobset import fields, keeping_off
from controller.jobset.keeping_off import DeviceFault, KeepOff, LetBack, NodeState

T = 1_700_000_000.0
LATER = T + keeping_off.SETTLED
TAINT = {"key": "kubemend.io/device-failure", "effect": "NoSchedule", "timeAdded": timestamps.rfc3339(T)}
OTHER = {"key": "maintenance", "effect": "NoSchedule"}


def node(
    *taints: dict[str, Any], healthy: str | None = None, told_at: float = LATER, created: float = T - 100
) -> NodeState:
    """A node as the API has it; ``healthy`` is what its agent said at ``told_at``."""
    said = {
        "type": "kubemend.io/DevicesHealthy",
        "status": healthy,
        "lastHeartbeatTime": timestamps.rfc3339(told_at),
        "lastTransitionTime": timestamps.rfc3339(T - 1000),
    }
    return keeping_off.node(
        {
            "metadata": {"name": "n1", "resourceVersion": "7", "creationTimestamp": timestamps.rfc3339(created)},
            "spec": {"taints": list(taints)},
            "status": {"conditions": [{"type": "Ready", "status": "True"}, *([] if healthy is None else [said])]},
        }
    )


def fault(at: float = T, *, code: str = "Xid79", on: str = "n1") -> DeviceFault:
    return DeviceFault(on, at, code)


@pytest.mark.parametrize(("healthy", "told_at"), [(None, LATER), ("False", LATER), ("Unknown", LATER), ("True", T - 1)])
def test_a_node_that_a_member_left_for_its_device_is_kept_off(healthy: str | None, told_at: float) -> None:
    state = node(healthy=healthy, told_at=told_at)
    assert keeping_off.changes([state], [fault()]) == (KeepOff(state, T, "Xid79"),)


def test_a_node_of_which_nothing_is_known_is_left_alone() -> None:
    assert keeping_off.changes([node(healthy="False")], []) == ()
    assert keeping_off.changes([node()], [fault(on="n2")]) == ()


def test_it_is_not_tainted_twice() -> None:
    assert keeping_off.changes([node(TAINT, healthy="False")], [fault()]) == ()


def test_it_is_let_back_once_its_devices_are_found_healthy() -> None:
    state = node(TAINT, healthy="True")
    assert keeping_off.changes([state], []) == (LetBack(state),)
    assert keeping_off.changes([state], [fault()]) == (LetBack(state),)


@pytest.mark.parametrize(
    ("healthy", "told_at"), [(None, LATER), ("False", LATER), ("Unknown", LATER), ("True", LATER - 1)]
)
def test_before_that_it_is_not(healthy: str | None, told_at: float) -> None:
    """A report from before the fault, or from the seconds in which agents hold reports back, says nothing of it."""
    assert keeping_off.changes([node(TAINT, healthy=healthy, told_at=told_at)], []) == ()


def test_a_new_fault_keeps_it_off_for_longer() -> None:
    assert keeping_off.changes([node(TAINT, healthy="True", told_at=LATER)], [fault(T + 5)]) == ()


def test_the_newest_fault_counts() -> None:
    (change,) = keeping_off.changes([node()], [fault(T, code="New"), fault(T - 50, code="Old")])
    assert isinstance(change, KeepOff)
    assert (change.since, change.code) == (T, "New")


def test_a_node_that_was_replaced_is_a_new_one() -> None:
    assert keeping_off.changes([node(created=T + 1)], [fault()]) == ()
    assert keeping_off.is_over(fault(), node(created=T + 1))
    assert keeping_off.is_over(fault(), None)
    assert not keeping_off.is_over(fault(), node())


def test_somebody_else_s_taint_is_left_to_them() -> None:
    by_hand = {"key": "kubemend.io/device-failure", "effect": "NoSchedule"}
    state = node(by_hand, healthy="True")
    assert state.is_tainted
    assert keeping_off.changes([state], []) == ()
    assert keeping_off.changes([node(by_hand)], [fault()]) == ()


def test_nodes_are_answered_by_name() -> None:
    states = [NodeState(name) for name in ("b", "a")]
    found = keeping_off.changes(states, [fault(on="a"), fault(on="b")])
    assert [each.node.name for each in found] == ["a", "b"]


def test_the_patch_adds_one_taint_and_keeps_the_others() -> None:
    assert keeping_off.patch(KeepOff(node(OTHER), T, "Xid79")) == {
        "metadata": {"resourceVersion": "7"},
        "spec": {"taints": [OTHER, {**TAINT, "value": "Xid79"}]},
    }


def test_the_patch_takes_ours_away_alone() -> None:
    no_execute = {"key": "kubemend.io/device-failure", "effect": "NoExecute"}
    found = keeping_off.patch(LetBack(node(OTHER, TAINT, no_execute)))
    assert found["spec"]["taints"] == [OTHER, no_execute]


@pytest.mark.parametrize("code", ["", "a b", "x" * 64, "-a", "Xid 79", "ä", "a\n"])
def test_a_code_that_is_no_taint_s_value_is_left_out(code: str) -> None:
    assert keeping_off.patch(KeepOff(node(), T, code))["spec"]["taints"] == [TAINT]


ODD_TIMES = ["0000-01-01T00:00:00Z", "10000-01-01T00:59:59Z", "soon", 7]


@pytest.mark.parametrize("time", ODD_TIMES)
@pytest.mark.parametrize("place", ["creationTimestamp", "timeAdded", "lastHeartbeatTime", "lastTransitionTime"])
def test_a_node_with_a_time_that_is_none_is_not_understood_and_says_where(place: str, time: object) -> None:
    condition = {"type": "kubemend.io/DevicesHealthy", "status": "True", "lastHeartbeatTime": "2026-01-01T00:00:00Z"}
    odd = {place: time}
    told = {
        "metadata": {"name": "n1", "creationTimestamp": "2026-01-01T00:00:00Z", **odd},
        "spec": {"taints": [{**TAINT, **odd}]},
        "status": {"conditions": [{**condition, **odd}]},
    }
    with pytest.raises(fields.NotUnderstoodError, match=f"{place}: .*; write "):
        keeping_off.node(told)


@pytest.mark.parametrize(
    "odd", [{"metadata": []}, {"spec": "x"}, {"spec": {"taints": ["x"]}}, {"status": {"conditions": {"a": "b"}}}, {}]
)
def test_a_node_of_another_shape_is_not_understood(odd: dict[str, Any]) -> None:
    with pytest.raises(fields.NotUnderstoodError):
        keeping_off.node({"metadata": {}, **odd})


@given(
    told=st.lists(
        st.tuples(st.sampled_from(["fault", "healthy", "unhealthy"]), st.integers(1, 120)), min_size=1, max_size=12
    )
)
def test_in_the_end_a_node_is_kept_off_unless_it_was_found_healthy_since_its_last_fault(
    told: list[tuple[str, int]],
) -> None:
    """Whatever happens in between: the leader may forget each fault once it is over, and only then."""
    now, last, recovered = T, T, True
    faults: list[DeviceFault] = []
    taints: list[dict[str, Any]] = []
    for what, seconds in told:
        now += seconds
        if what == "fault":
            last, recovered = now, False
            faults.append(fault(now))
        elif what == "healthy" and now >= last + keeping_off.SETTLED:
            recovered = True
        state = node(*taints, healthy="True" if what == "healthy" else "False", told_at=now)
        for change in keeping_off.changes([state], faults):
            taints = json.loads(json.dumps(keeping_off.patch(change)["spec"]["taints"]))
        faults = [each for each in faults if not keeping_off.is_over(each, state)]
        assert bool(taints) is not recovered
