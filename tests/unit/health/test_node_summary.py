from hypothesis import given
from hypothesis import strategies as st

from kubemend.agent.health.state import node_summary
from kubemend.agent.model.actions import ActionClass
from kubemend.agent.model.conditions import ConditionStatus
from kubemend.agent.model.verdicts import Health, Verdict

_verdicts = st.lists(
    st.builds(
        Verdict,
        device=st.integers(0, 20).map("GPU-{}".format),
        health=st.sampled_from(Health),
        action=st.sampled_from(ActionClass),
        reason=st.sampled_from(["Xid79", "Xid48"]),
        message=st.text(max_size=2000),
        since=st.sampled_from([0.0, 100.0, 200.0]),
    ),
    max_size=12,
    unique_by=lambda verdict: verdict.device,
)


def healthy(device: str) -> Verdict:
    return Verdict(device, Health.HEALTHY, ActionClass.NONE, "Healthy", "answers, no fault known")


def unknown(device: str) -> Verdict:
    return Verdict(device, Health.UNKNOWN, ActionClass.NONE, "NotProven", "the driver could not be queried")


def lost(device: str, *, since: float = 86400.0) -> Verdict:
    return Verdict(device, Health.UNHEALTHY, ActionClass.REBOOT_NODE, "Xid79", "Xid 79: off the bus", since)


def degraded(device: str) -> Verdict:
    return Verdict(device, Health.DEGRADED, ActionClass.OBSERVE, "Throttled", "held back by heat", 86400.0)


def test_all_healthy_devices_are_true() -> None:
    found = node_summary.of_node([healthy("a"), healthy("b")])
    assert (found.status, found.reason, found.message) == (ConditionStatus.TRUE, "Healthy", "2 of 2 devices healthy")


def test_node_without_devices_is_unknown() -> None:
    found = node_summary.of_node([])
    assert (found.status, found.reason) == (ConditionStatus.UNKNOWN, "NoDevices")


def test_one_unknown_device_is_not_healthy() -> None:
    found = node_summary.of_node([healthy("a"), unknown("b")])
    assert (found.status, found.reason) == (ConditionStatus.UNKNOWN, "NotProven")
    assert (
        found.message == "1 of 2 devices have an unknown state: b Unknown, action None: the driver could not be queried"
    )


def test_known_fault_takes_precedence_over_unknown() -> None:
    found = node_summary.of_node([unknown("a"), lost("b"), degraded("c")])
    assert (found.status, found.reason) == (ConditionStatus.FALSE, "Xid79")
    assert found.message == (
        "2 of 3 devices not healthy: "
        "b Unhealthy since 1970-01-02T00:00:00Z, action RebootNode: Xid 79: off the bus; "
        "c Degraded since 1970-01-02T00:00:00Z, action Observe: held back by heat; "
        "1 unknown"
    )


def test_known_fault_takes_precedence_over_one_that_only_the_driver_can_judge() -> None:
    undecided = Verdict("a", Health.UNKNOWN, ActionClass.ASK_DRIVER, "Xid119", "Xid 119", 86400.0)
    found = node_summary.of_node([undecided, degraded("b")])
    assert (found.status, found.reason) == (ConditionStatus.FALSE, "Throttled")


def test_older_of_two_equal_faults_gives_the_reason() -> None:
    younger = Verdict("a", Health.UNHEALTHY, ActionClass.REBOOT_NODE, "Xid48", "", 200.0)
    assert node_summary.of_node([younger, lost("b", since=100.0)]).reason == "Xid79"


def test_only_a_few_devices_are_named_and_others_counted() -> None:
    found = node_summary.of_node([lost(f"GPU-{number}") for number in range(8)])
    assert found.message.endswith("; and 5 more")
    assert found.message.count("Xid 79") == node_summary.MAX_NAMED


@given(verdicts=_verdicts, data=st.data())
def test_verdict_order_is_irrelevant_and_message_stays_short(verdicts: list[Verdict], data: st.DataObject) -> None:
    found = node_summary.of_node(verdicts)
    assert node_summary.of_node(data.draw(st.permutations(verdicts))) == found
    assert len(found.message) < 1024


@given(verdicts=_verdicts)
def test_true_requires_every_device_known_healthy(verdicts: list[Verdict]) -> None:
    all_healthy = bool(verdicts) and all(verdict.health is Health.HEALTHY for verdict in verdicts)
    assert (node_summary.of_node(verdicts).status is ConditionStatus.TRUE) == all_healthy
