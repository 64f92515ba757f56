"""Build a pod's conditions from the devices that it holds and the NICs next to them."""

import pytest

from kubemend.agent.devices import pod_conditions
from kubemend.agent.health.state.fold import ActiveFault
from kubemend.agent.model.actions import ActionClass
from kubemend.agent.model.conditions import ConditionStatus
from kubemend.agent.model.findings import FindingKind
from kubemend.agent.model.verdicts import Health, Verdict

GOOD = Verdict("GPU-0", Health.HEALTHY, ActionClass.NONE, "Healthy", "answers")
SLOW = Verdict("GPU-1", Health.DEGRADED, ActionClass.OBSERVE, "Throttled", "hot for 3 min")
LOST = Verdict("GPU-2", Health.UNHEALTHY, ActionClass.REBOOT_NODE, "Xid79", "Xid 79")
UNKNOWN = Verdict("GPU-3", Health.UNKNOWN, ActionClass.NONE, "NotProven", "cannot be asked")
DOWN = Verdict("0000:18:00.0", Health.UNHEALTHY, ActionClass.REPLACE, "LinkDown", "mlx5_0 has no carrier")
HOT = Verdict("0000:18:00.0", Health.DEGRADED, ActionClass.OBSERVE, "NicHot", "100 degrees")
UNSEEN = Verdict("0000:40:00.0", Health.UNKNOWN, ActionClass.NONE, "NotProven", "cannot be asked")
TRUE, FALSE = ConditionStatus.TRUE, ConditionStatus.FALSE


@pytest.mark.parametrize(
    ("held", "near", "healthy", "failure"),
    [
        pytest.param([GOOD], [], (TRUE, "Healthy"), (FALSE, "NoDeviceFailure"), id="healthy"),
        pytest.param([GOOD, SLOW], [], (FALSE, "Throttled"), (FALSE, "NoDeviceFailure"), id="degraded-is-no-failure"),
        pytest.param([SLOW, LOST], [], (FALSE, "Xid79"), (TRUE, "Xid79"), id="the-worst-counts"),
        pytest.param(
            [GOOD, UNKNOWN], [], (ConditionStatus.UNKNOWN, "NotProven"), (FALSE, "NoDeviceFailure"), id="unknown"
        ),
        pytest.param([GOOD, DOWN], [], (FALSE, "LinkDown"), (TRUE, "LinkDown"), id="a-nic-that-it-holds"),
        pytest.param([GOOD], [DOWN], (FALSE, "LinkDown"), (FALSE, "NoDeviceFailure"), id="one-that-it-may-not-use"),
        pytest.param([GOOD], [HOT], (FALSE, "NicHot"), (FALSE, "NoDeviceFailure"), id="one-that-is-degraded"),
        pytest.param([LOST], [DOWN], (FALSE, "LinkDown"), (TRUE, "Xid79"), id="and-its-own-gpu"),
        pytest.param(
            [GOOD], [UNSEEN], (TRUE, "Healthy"), (FALSE, "NoDeviceFailure"), id="one-of-which-nothing-is-known"
        ),
    ],
)
def test_conditions_of_a_pod(
    held: list[Verdict], near: list[Verdict], healthy: tuple[object, str], failure: tuple[object, str]
) -> None:
    devices, fails = pod_conditions.for_devices(held, near=near)
    assert ((devices.status, devices.reason), (fails.status, fails.reason)) == (healthy, failure)


def test_message_names_worst_device() -> None:
    devices, fails = pod_conditions.for_devices([LOST], near=[DOWN])
    assert devices.message.startswith("0000:18:00.0: mlx5_0 has no carrier")
    assert fails.message.startswith("GPU-2: Xid 79")
    assert pod_conditions.for_devices([GOOD, GOOD])[0].message == "2 devices healthy"


def test_link_down_fails_pod_only_after_patience() -> None:
    for returning, status in (({DOWN.device}, FALSE), (set(), TRUE)):
        devices, fails = pod_conditions.for_devices([DOWN], returning=returning)
        assert (devices.status, fails.status) == (FALSE, status)


def test_link_that_may_come_back_hides_no_lost_gpu() -> None:
    devices, fails = pod_conditions.for_devices([GOOD, DOWN, LOST], returning={DOWN.device})
    assert (devices.reason, fails.status, fails.reason) == ("LinkDown", TRUE, "Xid79")


@pytest.mark.parametrize("link", [FindingKind.LINK_DOWN, FindingKind.RDMA_PORT_DOWN])
def test_only_a_link_that_has_just_gone_down_may_come_back(link: FindingKind) -> None:
    down, lost, hot = (
        ActiveFault(kind, "", action, first_seen=0.0, last_seen=0.0)
        for kind, action in (
            (link, ActionClass.REPLACE),
            (FindingKind.NIC_LOST, ActionClass.REPLACE),
            (FindingKind.NIC_HOT, ActionClass.OBSERVE),
        )
    )
    patience = pod_conditions.LINK_GRACE_PERIOD
    found = [pod_conditions.may_come_back([hot, down], age=age) for age in (0.0, patience - 1, patience)]
    assert found == [True, True, False]
    assert not any(pod_conditions.may_come_back(faults, age=0.0) for faults in ([lost], [down, lost], [hot], []))


def test_known_fault_takes_precedence_over_one_that_only_the_driver_can_judge() -> None:
    undecided = Verdict("a", Health.UNKNOWN, ActionClass.ASK_DRIVER, "Xid119", "Xid 119", 86400.0)
    degraded = Verdict("b", Health.DEGRADED, ActionClass.OBSERVE, "Throttled", "slowed by hardware", 86400.0)
    healthy, _ = pod_conditions.for_devices([undecided, degraded])
    assert (healthy.status, healthy.reason) == (ConditionStatus.FALSE, "Throttled")
