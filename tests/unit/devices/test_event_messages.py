from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from kubemend.agent.devices import event_messages
from kubemend.agent.health.state import evidence
from kubemend.agent.model import conditions
from kubemend.agent.model.actions import ActionClass
from kubemend.agent.model.conditions import Condition, ConditionStatus
from kubemend.agent.model.devices import DeviceLocator
from kubemend.agent.model.event_messages import EventMessage, Level
from kubemend.agent.model.findings import Finding, FindingKind, Source
from kubemend.agent.model.verdicts import Health, Verdict
from kubemend.agent.model.workloads import ContainerRef, PodRef, PodUid
from kubemend.agent.restart import admission
from kubemend.agent.restart.reasons import Reason

POD = PodRef("ml", "trainer-0", PodUid("u0"))
OTHER = PodRef("ml", "trainer-1", PodUid("u1"))
TRAINER = ContainerRef(POD, "trainer")

HEALTHY = Verdict("GPU-a", Health.HEALTHY, ActionClass.NONE, "Healthy", "answers, no fault known")
UNKNOWN = Verdict("GPU-a", Health.UNKNOWN, ActionClass.NONE, "NotProven", "the driver could not be asked")
LOST = Verdict("GPU-a", Health.UNHEALTHY, ActionClass.REBOOT_NODE, "Xid79", "Xid 79: the node needs a reboot", 50.0)
ECC = Verdict("GPU-a", Health.UNHEALTHY, ActionClass.RESET_DEVICE, "Xid48", "Xid 48: the device needs a reset", 60.0)
HOT = Verdict("GPU-a", Health.DEGRADED, ActionClass.OBSERVE, "Hot", "90 degrees", 40.0)


def said(found: list[EventMessage]) -> list[tuple[PodRef | None, str]]:
    return [(event_message.about, event_message.reason) for event_message in found]


def tell(
    reported: event_messages.DeviceEventMessages, *verdicts: Verdict, holders: tuple[PodRef, ...] | None = ()
) -> list[EventMessage]:
    """Return the messages for the last of the verdicts."""
    found: list[EventMessage] = []
    for verdict in verdicts:
        found = reported.of(verdict, holders=holders, now=100.0)
    return found


def test_fault_is_recorded_once_on_node_and_every_holder() -> None:
    reported = event_messages.DeviceEventMessages()
    assert said(tell(reported, HEALTHY, LOST, holders=(OTHER, POD))) == [
        (None, "DeviceUnhealthy"),
        (POD, "DeviceUnhealthy"),
        (OTHER, "DeviceUnhealthy"),
    ]
    assert tell(reported, LOST, holders=(OTHER, POD)) == []


def test_message_of_fault() -> None:
    (event_message,) = tell(event_messages.DeviceEventMessages(), LOST)
    assert event_message == EventMessage(
        about=None,
        reason="DeviceUnhealthy",
        message="GPU-a: Xid 79: the node needs a reboot; action RebootNode",
        at=50.0,
        level=Level.WARNING,
        subject="GPU-a Xid79",
    )


def test_changed_reason_or_milder_verdict_is_recorded() -> None:
    reported = event_messages.DeviceEventMessages()
    assert said(tell(reported, HOT)) == [(None, "DeviceDegraded")]
    assert said(tell(reported, ECC)) == [(None, "DeviceUnhealthy")]
    assert said(tell(reported, LOST)) == [(None, "DeviceUnhealthy")]
    assert said(tell(reported, HOT)) == [(None, "DeviceDegraded")]
    graver = replace(HOT, health=Health.UNHEALTHY, action=ActionClass.RESET_DEVICE)
    assert said(tell(reported, graver)) == [(None, "DeviceUnhealthy")]


def test_recovery_is_recorded_only_where_fault_was() -> None:
    reported = event_messages.DeviceEventMessages()
    assert tell(reported, UNKNOWN, HEALTHY, holders=(POD,)) == []
    tell(reported, LOST, holders=(POD,))
    (of_node, of_pod) = tell(reported, HEALTHY, holders=(POD, OTHER))
    assert (of_node.about, of_pod.about) == (None, POD)
    assert (of_pod.reason, of_pod.level, of_pod.at) == ("DeviceHealthy", Level.NORMAL, 100.0)
    assert (of_pod.message, of_pod.subject) == ("GPU-a: healthy again", "GPU-a")
    assert tell(reported, HEALTHY, holders=(POD, OTHER)) == []


def test_unknown_verdict_records_and_ends_nothing() -> None:
    reported = event_messages.DeviceEventMessages()
    tell(reported, LOST, holders=(POD,))
    assert tell(reported, UNKNOWN, holders=(POD,)) == []
    assert tell(reported, LOST, holders=(POD,)) == []
    assert len(tell(reported, HEALTHY, holders=(POD,))) == 2


def test_pod_that_gets_faulty_device_later_is_informed() -> None:
    reported = event_messages.DeviceEventMessages()
    tell(reported, LOST)
    assert said(tell(reported, LOST, holders=(POD,))) == [(POD, "DeviceUnhealthy")]


def test_pod_that_released_device_gets_no_event() -> None:
    reported = event_messages.DeviceEventMessages()
    tell(reported, LOST, holders=(POD,))
    tell(reported, LOST)
    assert said(tell(reported, HEALTHY)) == [(None, "DeviceHealthy")]


def test_silent_kubelet_still_records_on_node_and_keeps_pods() -> None:
    reported = event_messages.DeviceEventMessages()
    tell(reported, HOT, holders=(POD,))
    assert said(tell(reported, LOST, holders=None)) == [(None, "DeviceUnhealthy")]
    assert said(tell(reported, HEALTHY, holders=None)) == [(None, "DeviceHealthy"), (POD, "DeviceHealthy")]


@given(verdicts=st.lists(st.sampled_from([HEALTHY, UNKNOWN, LOST, ECC, HOT]), max_size=20))
def test_last_recorded_event_matches_last_known_verdict(verdicts: list[Verdict]) -> None:
    reported = event_messages.DeviceEventMessages()
    all_reported = [
        event_message for verdict in verdicts for event_message in reported.of(verdict, holders=(), now=100.0)
    ]
    known = [verdict for verdict in verdicts if verdict.health is not Health.UNKNOWN]
    if all_reported:
        assert all_reported[-1].reason == f"Device{known[-1].health.value}"
    else:
        assert all(verdict.health is Health.HEALTHY for verdict in known)


def restart(status: ConditionStatus, reason: str) -> Condition:
    return Condition(conditions.IN_PLACE_RESTART, status, reason, "trainer restart 1 by swap in 50 ms")


def test_restart_done_is_normal_and_failed_is_warning() -> None:
    done = event_messages.of_restart(TRAINER, restart(ConditionStatus.TRUE, "Swapped"), now=5.0)
    assert (done.about, done.reason, done.level, done.container) == (POD, "RestartedInPlace", Level.NORMAL, "trainer")
    failed = event_messages.of_restart(TRAINER, restart(ConditionStatus.FALSE, "Stuck"), now=5.0)
    assert (failed.reason, failed.level) == ("InPlaceRestartFailed", Level.WARNING)
    assert done.message == failed.message == "trainer restart 1 by swap in 50 ms"


def test_refusal_and_hold_are_recorded_with_reason_admission_not() -> None:
    condition = restart(ConditionStatus.FALSE, "DeviceNotUsable")

    def reported(verb: admission.Verb) -> EventMessage | None:
        decision = admission.Decision(verb, Reason.DEVICE_NOT_USABLE, "needs a reset")
        return event_messages.of_decision(TRAINER, decision, condition, now=5.0)

    refused, held = reported(admission.Verb.REFUSE), reported(admission.Verb.POSTPONE)
    assert refused is not None
    assert held is not None
    assert (refused.reason, held.reason) == ("InPlaceRestartRefused", "InPlaceRestartPostponed")
    assert refused.message.startswith("DeviceNotUsable: ")
    assert reported(admission.Verb.ACT) is None


def oom(**facts: str) -> Finding:
    return Finding(
        source=Source.KERNEL_LOG,
        kind=FindingKind.OOM_KILL,
        code="",
        device=DeviceLocator(),
        action=ActionClass.NONE,
        observed_at=7.0,
        pid=4242,
        process_name="python3",
        evidence=facts,
    )


def oom_announcement(finding: Finding, *, pod: PodRef | None = POD, **more: Any) -> EventMessage | None:
    return event_messages.of_oom_kill(finding, pod=pod, **more)


def test_oom_kill_is_recorded_on_pod_of_process() -> None:
    event_message = oom_announcement(oom(**{evidence.POD_UID: "u0", evidence.OOM_SCOPE: "cgroup"}), container="trainer")
    assert event_message is not None
    assert (event_message.about, event_message.reason, event_message.container, event_message.at) == (
        POD,
        "OOMKilled",
        "trainer",
        7.0,
    )
    assert event_message.message == (
        "the kernel killed python3 (pid 4242): a memory limit of the pod or the container was reached"
    )


def test_oom_kill_of_the_node_names_the_node() -> None:
    event_message = oom_announcement(oom(**{evidence.POD_UID: "u0", evidence.OOM_SCOPE: "node"}))
    assert event_message is not None
    assert event_message.message == "the kernel killed python3 (pid 4242): the node ran out of memory"


def test_oom_kill_with_several_lines_is_recorded_once() -> None:
    assert oom_announcement(oom()) is None


def test_oom_kill_outside_pods_or_before_agent_is_ignored() -> None:
    assert oom_announcement(oom(**{evidence.POD_UID: "u0"}), pod=None) is None
    assert oom_announcement(oom(**{evidence.POD_UID: "u0", evidence.LOOK_BACK: "true"})) is None
