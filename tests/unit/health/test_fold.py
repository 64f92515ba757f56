"""The fold: severity decreases only on the evidence that belongs to the fault that raised it."""

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubemend.agent.health.catalog import catalog_file
from kubemend.agent.health.state import evidence, fold
from kubemend.agent.model.actions import ActionClass
from kubemend.agent.model.devices import DeviceLocator
from kubemend.agent.model.findings import Finding, FindingKind, Source
from kubemend.agent.model.verdicts import Health

GPU = "GPU-1"


def finding(kind: FindingKind, code: str, action: ActionClass, *, at: float = 0.0, **changes: Any) -> Finding:
    return Finding(
        source=Source.KERNEL_LOG, kind=kind, code=code, device=DeviceLocator(), action=action, observed_at=at, **changes
    )


def xid(code: int, action: ActionClass, at: float = 0.0) -> Finding:
    return finding(FindingKind.XID, str(code), action, at=at)


def folded(*findings: Finding) -> fold.HealthState:
    state = fold.HealthState(boot_id="boot-1")
    for item in findings:
        state = fold.fold(state, item, device=GPU)
    return state


APP_GONE = finding(FindingKind.APP_GONE, "", ActionClass.NONE, at=99.0)
DRIVER_NONE = finding(FindingKind.RECOVERY_ACTION, "0", ActionClass.NONE, at=99.0)
DRIVER_RESET = finding(FindingKind.RECOVERY_ACTION, "1", ActionClass.RESET_DEVICE, at=50.0)
NO_LONGER_REQUIRED = finding(FindingKind.FAULT_OVER, "RecoveryAction", ActionClass.NONE, at=99.0)
RECOMMENDS_UNKNOWN = finding(FindingKind.RECOVERY_ACTION, "5", ActionClass.ASK_DRIVER)
CHANGED_TO_UNKNOWN = finding(FindingKind.XID, "154", ActionClass.ASK_DRIVER)
CHANGED_TO_NONE = finding(FindingKind.XID, "154", ActionClass.NONE, at=99.0)
BACK = finding(FindingKind.DEVICE_BACK, "", ActionClass.NONE, at=99.0)
LOST = finding(FindingKind.DEVICE_LOST, "", ActionClass.REBOOT_NODE, at=5.0)
XID31 = xid(31, ActionClass.RESTART_APP)
XID48 = xid(48, ActionClass.RESET_DEVICE)
XID79 = xid(79, ActionClass.REBOOT_NODE)
XID64 = xid(64, ActionClass.REPLACE)
UNKNOWN = xid(999, ActionClass.ASK_DRIVER)
STUCK = finding(FindingKind.PROCESS_STUCK, "", ActionClass.OBSERVE, text="pid 11 cannot be killed")
INEFFECTIVE = finding(FindingKind.RESTARTS_INEFFECTIVE, "", ActionClass.OBSERVE)
NOT_STUCK = finding(FindingKind.FAULT_OVER, "ProcessStuck", ActionClass.NONE, at=99.0)


NIC_FATAL = finding(FindingKind.NIC_FATAL, "", ActionClass.RESET_DEVICE, at=1.0)
AER_FATAL = finding(FindingKind.AER_FATAL, "", ActionClass.ASK_DRIVER, at=1.0)
NIC_LOST = finding(FindingKind.NIC_LOST, "", ActionClass.REPLACE, at=2.0)
NIC_THERE = finding(FindingKind.FAULT_OVER, "NicLost", ActionClass.NONE, at=99.0)


def test_device_that_answers_without_faults_is_healthy() -> None:
    assert fold.verdict(folded(), GPU, answers=True).health is Health.HEALTHY


@pytest.mark.parametrize("answers", [None, False])
def test_device_that_does_not_answer_is_unknown(answers: bool | None) -> None:
    assert fold.verdict(folded(), GPU, answers=answers).health is Health.UNKNOWN


@pytest.mark.parametrize(
    ("findings", "health", "reason"),
    [
        pytest.param([XID31], Health.DEGRADED, "Xid31", id="app-class"),
        pytest.param([XID31, APP_GONE], Health.HEALTHY, "Healthy", id="app-gone-ends-an-app-fault"),
        pytest.param([XID48, xid(45, ActionClass.NONE, 1.0)], Health.UNHEALTHY, "Xid48", id="45-never-hides-48"),
        pytest.param([XID48, xid(13, ActionClass.RESTART_APP, 1.0)], Health.UNHEALTHY, "Xid48", id="nor-does-13"),
        pytest.param([XID48, APP_GONE], Health.UNHEALTHY, "Xid48", id="app-gone-is-no-evidence-for-a-reset"),
        pytest.param(
            [XID48, DRIVER_RESET, DRIVER_NONE], Health.HEALTHY, "Healthy", id="driver-none-after-reset-ends-it"
        ),
        pytest.param([XID48, DRIVER_NONE], Health.UNHEALTHY, "Xid48", id="none-all-the-time-proves-no-reset"),
        pytest.param([XID48, CHANGED_TO_NONE], Health.HEALTHY, "Healthy", id="xid-154-reports-a-change-to-none"),
        pytest.param(
            [XID48, DRIVER_RESET, NO_LONGER_REQUIRED], Health.HEALTHY, "Healthy", id="new-agent-sees-none-after-reset"
        ),
        pytest.param([XID48, NO_LONGER_REQUIRED], Health.UNHEALTHY, "Xid48", id="new-agent-sees-none-as-before"),
        pytest.param(
            [UNKNOWN, XID48, DRIVER_NONE], Health.UNHEALTHY, "Xid48", id="none-about-another-fault-ends-no-reset"
        ),
        pytest.param(
            [
                XID48,
                dataclasses.replace(DRIVER_RESET, observed_at=100.0),
                DRIVER_NONE,
            ],
            Health.UNHEALTHY,
            "Xid48",
            id="none-that-was-read-before-the-requirement",
        ),
        pytest.param(
            [XID48, dataclasses.replace(DRIVER_RESET, observed_at=100.0), NO_LONGER_REQUIRED],
            Health.UNHEALTHY,
            "Xid48",
            id="nor-does-the-end-of-an-earlier-requirement",
        ),
        pytest.param(
            [XID48, DRIVER_RESET, dataclasses.replace(DRIVER_RESET, observed_at=60.0)],
            Health.UNHEALTHY,
            "Xid48",
            id="a-requirement-that-is-repeated-ends-nothing",
        ),
        pytest.param(
            [XID48, DRIVER_RESET, finding(FindingKind.FAULT_OVER, "Hot", ActionClass.NONE, at=99.0)],
            Health.UNHEALTHY,
            "Xid48",
            id="nor-does-the-end-of-another-fault",
        ),
        pytest.param(
            [UNKNOWN, xid(45, ActionClass.NONE, 1.0)], Health.UNKNOWN, "Xid999", id="only-the-driver-licences"
        ),
        pytest.param(
            [dataclasses.replace(STUCK, observed_at=100.0), NOT_STUCK],
            Health.DEGRADED,
            "ProcessStuck",
            id="stuck-again",
        ),
        pytest.param(
            [dataclasses.replace(NIC_FATAL, action=ActionClass.REPLACE), NIC_LOST, NIC_THERE],
            Health.UNHEALTHY,
            "NicFatal",
            id="the-return-of-a-nic-ends-no-broken-hardware",
        ),
        pytest.param(
            [finding(FindingKind.RDMA_ERRORS, "", ActionClass.RESET_DEVICE, at=1.0), NIC_LOST, NIC_THERE],
            Health.UNHEALTHY,
            "RdmaErrors",
            id="nor-what-its-source-still-observes",
        ),
        pytest.param([XID79, DRIVER_NONE], Health.UNHEALTHY, "Xid79", id="but-not-for-a-gpu-off-the-bus"),
        pytest.param([XID79, BACK], Health.UNHEALTHY, "Xid79", id="off-the-bus-needs-a-reboot"),
        pytest.param([LOST, BACK], Health.HEALTHY, "Healthy", id="lost-and-back"),
        pytest.param([XID31, DRIVER_RESET], Health.UNHEALTHY, "RecoveryAction1", id="the-driver-may-raise-it"),
        pytest.param(
            [xid(31, ActionClass.RESTART_APP, 60.0), DRIVER_RESET], Health.UNHEALTHY, "RecoveryAction1", id="also-late"
        ),
        pytest.param(
            [DRIVER_RESET, dataclasses.replace(CHANGED_TO_UNKNOWN, observed_at=60.0)],
            Health.UNHEALTHY,
            "RecoveryAction1",
            id="and-a-line-without-its-action-does-not-lower-it",
        ),
        pytest.param([DRIVER_RESET, DRIVER_NONE], Health.HEALTHY, "Healthy", id="driver-none-ends-its-recommendation"),
        pytest.param([UNKNOWN], Health.UNKNOWN, "Xid999", id="unknown-code-is-unknown"),
        pytest.param([UNKNOWN, DRIVER_NONE], Health.DEGRADED, "Xid999", id="driver-none-licences-a-restart"),
        pytest.param([RECOMMENDS_UNKNOWN, DRIVER_NONE], Health.HEALTHY, "Healthy", id="but-not-for-its-recommendation"),
        pytest.param([AER_FATAL, DRIVER_NONE], Health.HEALTHY, "Healthy", id="nor-for-an-error-of-the-link"),
        pytest.param([CHANGED_TO_UNKNOWN, DRIVER_NONE], Health.HEALTHY, "Healthy", id="nor-for-the-line-about-it"),
        pytest.param([STUCK], Health.DEGRADED, "ProcessStuck", id="a-suspicion-degrades"),
        pytest.param([STUCK, APP_GONE, DRIVER_NONE], Health.DEGRADED, "ProcessStuck", id="and-is-no-app-fault"),
        pytest.param([STUCK, NOT_STUCK], Health.HEALTHY, "Healthy", id="until-it-is-over"),
        pytest.param([NIC_FATAL, NIC_LOST, NIC_THERE], Health.HEALTHY, "Healthy", id="nic-was-initialized-again"),
        pytest.param([AER_FATAL, NIC_LOST, NIC_THERE], Health.HEALTHY, "Healthy", id="also-after-a-fatal-pcie-error"),
        pytest.param([NIC_FATAL, NIC_THERE], Health.UNHEALTHY, "NicFatal", id="nic-that-never-was-away-was-not"),
        pytest.param(
            [NIC_LOST, dataclasses.replace(NIC_FATAL, observed_at=3.0), NIC_THERE],
            Health.UNHEALTHY,
            "NicFatal",
            id="nor-is-a-fault-after-the-loss-over",
        ),
        pytest.param([INEFFECTIVE, NOT_STUCK], Health.DEGRADED, "RestartsIneffective", id="each-by-its-own-evidence"),
        pytest.param([INEFFECTIVE, BACK], Health.HEALTHY, "Healthy", id="or-by-a-reset"),
        pytest.param([XID48, STUCK], Health.UNHEALTHY, "Xid48", id="a-suspicion-hides-no-fault"),
        pytest.param([XID48, NOT_STUCK], Health.UNHEALTHY, "Xid48", id="nor-does-its-end-clear-one"),
        pytest.param([XID64, DRIVER_NONE, BACK, APP_GONE], Health.UNHEALTHY, "Xid64", id="broken-stays-broken"),
    ],
)
def test_verdict(findings: list[Finding], health: Health, reason: str) -> None:
    result = fold.verdict(folded(*findings), GPU, answers=True)
    assert (result.health, result.reason) == (health, reason)


def test_repeated_fault_is_one_with_its_first_and_last_time_and_worst_action() -> None:
    reset, restart = ActionClass.RESET_DEVICE, ActionClass.RESTART_APP
    (latch,) = folded(
        xid(94, reset, 7.0), xid(94, restart, 5.0), xid(94, restart, 9.0), xid(94, restart, 8.0)
    ).active_faults(GPU)
    assert (latch.action, latch.count, latch.first_seen, latch.last_seen) == (reset, 4, 5.0, 9.0)


def test_evidence_from_before_the_fault_clears_nothing() -> None:
    early = finding(FindingKind.APP_GONE, "", ActionClass.NONE, at=-1.0)
    assert fold.verdict(folded(XID31, early), GPU, answers=True).health is Health.DEGRADED


def test_end_of_standing_fault_counts_whatever_the_clock() -> None:
    down = finding(FindingKind.LINK_DOWN, "", ActionClass.REPLACE, at=3600.0)
    up = finding(FindingKind.FAULT_OVER, "LinkDown", ActionClass.NONE, at=10.0)
    assert folded(down, up).active_faults(GPU) == ()


def test_newer_recovery_action_replaces_the_older() -> None:
    reboot = finding(FindingKind.XID, "154", ActionClass.REBOOT_NODE, at=60.0)
    state = folded(DRIVER_RESET, reboot)
    assert [latch.action for latch in state.active_faults(GPU)] == [ActionClass.REBOOT_NODE]


def test_older_recovery_action_does_not_replace_the_newer() -> None:
    """The kernel log may be read late, and its line may ask for less than the driver by now."""
    line = finding(FindingKind.XID, "154", ActionClass.RESET_DEVICE, at=40.0, evidence={evidence.RECOVERY_ACTION: "1"})
    state = folded(finding(FindingKind.RECOVERY_ACTION, "2", ActionClass.REBOOT_NODE, at=50.0), line)
    assert [latch.action for latch in state.active_faults(GPU)] == [ActionClass.REBOOT_NODE]


def test_clock_that_was_set_back_makes_no_recovery_action_old() -> None:
    state = fold.fold(
        folded(DRIVER_RESET),
        finding(FindingKind.RECOVERY_ACTION, "2", ActionClass.REBOOT_NODE, at=40.0),
        device=GPU,
        now=41.0,
    )
    assert [latch.action for latch in state.active_faults(GPU)] == [ActionClass.REBOOT_NODE]


def test_recommendation_has_one_reason_from_either_source() -> None:
    """Otherwise its reason would change with the poll that follows the line, and an Event with it."""
    line = finding(FindingKind.XID, "154", ActionClass.RESET_DEVICE, at=49.0, evidence={evidence.RECOVERY_ACTION: "1"})
    reasons = [fold.verdict(folded(*each), GPU, answers=True).reason for each in ([line], [line, DRIVER_RESET])]
    assert reasons == ["RecoveryAction1", "RecoveryAction1"]


def test_reboot_clears_all_but_broken_hardware() -> None:
    state = fold.after_reboot(folded(XID79, XID64), boot_id="boot-2", places={})
    assert [latch.code for latch in state.active_faults(GPU)] == ["64"]


def test_lost_gpu_is_missed_at_its_place_after_a_reboot_until_one_answers_there() -> None:
    """One that is not on the bus any more is not listed, and the others would seem to be all."""
    place = "0000:41:00.0"
    state = fold.after_reboot(folded(LOST, XID79, XID64), boot_id="boot-2", places={GPU: place})
    (missed,) = state.active_faults(place)
    assert (missed.reason, missed.action) == ("DeviceLost", ActionClass.REPLACE), "a reboot did not help"
    assert [latch.code for latch in state.active_faults(GPU)] == ["64"]
    assert fold.after_reboot(state, boot_id="boot-3", places={}).active_faults(place) == (missed,)

    successor = fold.renamed(state, {place: "GPU-2"})
    answers = finding(FindingKind.FAULT_OVER, "DeviceLost", ActionClass.NONE, at=99.0)
    assert fold.fold(successor, answers, device="GPU-2").active_faults("GPU-2") == ()


def test_lost_gpu_without_a_known_place_is_over_with_the_boot() -> None:
    assert fold.after_reboot(folded(LOST), boot_id="boot-2", places={}).devices == {}


def test_only_a_lost_gpu_is_missed_at_its_place() -> None:
    places = {GPU: "0000:41:00.0"}
    assert fold.after_reboot(folded(XID48), boot_id="boot-2", places=places).devices == {}
    broken = folded(dataclasses.replace(LOST, action=ActionClass.REPLACE))
    assert fold.after_reboot(broken, boot_id="boot-2", places=places).devices.keys() == {GPU}


def test_first_boot_is_recorded_so_that_the_next_one_is_a_reboot() -> None:
    assert fold.after_reboot(fold.HealthState(), boot_id="boot-1", places={}).boot_id == "boot-1"


def test_agent_restart_on_same_boot_clears_nothing() -> None:
    assert fold.after_reboot(folded(XID79), boot_id="boot-1", places={}) == folded(XID79)


def test_suspicion_message_has_its_observation() -> None:
    assert fold.verdict(folded(STUCK), GPU, answers=True).message == "pid 11 cannot be killed"


KINDS = st.sampled_from([STUCK, XID31, XID48, XID79, XID64, UNKNOWN, DRIVER_RESET, LOST, xid(45, ActionClass.NONE)])


@given(st.lists(KINDS, max_size=8), KINDS)
def test_severity_never_decreases_without_evidence(earlier: list[Finding], later: Finding) -> None:
    before = fold.verdict(folded(*earlier), GPU, answers=True)
    after = fold.verdict(folded(*earlier, later), GPU, answers=True)
    assert after.action.severity >= before.action.severity


@given(st.lists(st.one_of(KINDS, st.sampled_from([APP_GONE, DRIVER_NONE, BACK])), max_size=10))
def test_finding_on_one_device_never_affects_another(findings: list[Finding]) -> None:
    state = fold.fold(fold.HealthState(), XID79, device="GPU-2")
    for item in findings:
        state = fold.fold(state, item, device=GPU)
    assert fold.verdict(state, "GPU-2", answers=True).reason == "Xid79"


def test_faults_of_two_names_of_a_device_are_merged() -> None:
    state = fold.HealthState(boot_id="boot-1")
    for item, device in (
        (XID79, "0000:41:00.0"),
        (XID31, "0000:41:00.0"),
        (xid(31, ActionClass.RESTART_APP, 7.0), GPU),
    ):
        state = fold.fold(state, item, device=device)
    known = fold.renamed(state, {"0000:41:00.0": GPU, "0000:42:00.0": "GPU-2"})
    assert set(known.devices) == {GPU}
    assert {(latch.reason, latch.count, latch.last_seen) for latch in known.active_faults(GPU)} == {
        ("Xid79", 1, 0.0),
        ("Xid31", 2, 7.0),
    }
    assert fold.renamed(known, {"0000:41:00.0": GPU}) == known


def test_fault_of_two_names_keeps_its_worst_action_and_first_time() -> None:
    reset, restart = xid(94, ActionClass.RESET_DEVICE, at=3.0), xid(94, ActionClass.RESTART_APP, at=7.0)
    for of_place, of_uuid in ((reset, restart), (restart, reset)):
        state = fold.fold(fold.HealthState(), of_place, device="0000:41:00.0")
        state = fold.fold(state, of_uuid, device=GPU)
        (latch,) = fold.renamed(state, {"0000:41:00.0": GPU}).active_faults(GPU)
        assert (latch.action, latch.first_seen, latch.last_seen) == (ActionClass.RESET_DEVICE, 3.0, 7.0)


CATALOG = catalog_file.builtin()
DOUBLE_BIT = xid(48, ActionClass.ASK_DRIVER, at=10.0)
CLEANUP = xid(43, ActionClass.RESTART_APP, at=10.5)
DOWN = finding(FindingKind.LINK_DOWN, "", ActionClass.REPLACE, at=10.0)
PORT_DOWN = finding(FindingKind.RDMA_PORT_DOWN, "", ActionClass.REPLACE, at=10.1)
UP = finding(FindingKind.FAULT_OVER, "LinkDown", ActionClass.NONE, at=20.0)
WORD = finding(FindingKind.CLEARED, "", ActionClass.NONE, at=99.0)
OF_GONE = finding(FindingKind.CLEARED, fold.GONE, ActionClass.NONE, at=99.0)
REMAP_FAILED = finding(FindingKind.ROW_REMAP_FAILED, "", ActionClass.REPLACE, at=10.0)
FABRIC_FAILED = finding(FindingKind.FABRIC_FAILED, "", ActionClass.RESET_DEVICE, at=10.0)


def held_after(*findings: Finding) -> set[str]:
    state = fold.HealthState(boot_id="boot-1")
    for item in findings:
        state = fold.fold(state, item, device=GPU, catalog=CATALOG)
    return {latch.reason for latch in state.active_faults(GPU)}


@pytest.mark.parametrize("order", [(DOUBLE_BIT, CLEANUP), (CLEANUP, DOUBLE_BIT)])
def test_cause_suppresses_its_effect_in_either_order(order: tuple[Finding, Finding]) -> None:
    assert held_after(*order) == {"Xid48"}


def test_finding_long_after_a_cause_is_not_its_effect() -> None:
    assert held_after(DOUBLE_BIT, xid(43, ActionClass.RESTART_APP, at=10.0 + fold.HOLD + 1)) == {"Xid48", "Xid43"}


def test_fault_long_before_a_cause_is_not_its_effect() -> None:
    late = dataclasses.replace(DOUBLE_BIT, observed_at=CLEANUP.observed_at + fold.HOLD + 1)
    assert held_after(CLEANUP, late) == {"Xid43", "Xid48"}


def test_more_severe_fault_is_never_suppressed() -> None:
    assert held_after(xid(94, ActionClass.RESTART_APP, at=10.0), xid(43, ActionClass.RESET_DEVICE, at=10.1)) == {
        "Xid94",
        "Xid43",
    }


def test_fault_with_an_end_of_its_own_is_never_suppressed() -> None:
    """Otherwise the end of the cause would hide a fault: the port may stay down when the link is up."""
    assert held_after(DOWN, PORT_DOWN, UP) == {"RdmaPortDown"}


def test_cancelled_fault_is_over() -> None:
    low_power = xid(163, ActionClass.OBSERVE, at=1.0)
    assert held_after(low_power, xid(162, ActionClass.NONE, at=2.0)) == set()


def test_clear_command_ends_all_but_currently_observed_faults() -> None:
    assert held_after(XID64, XID79, REMAP_FAILED, WORD) == {"RowRemapFailed"}
    assert held_after(DOWN, PORT_DOWN, WORD) == set(), "their source begins again"
    assert held_after(WORD, dataclasses.replace(XID79, observed_at=100.0)) == {"Xid79"}


def test_clear_command_ends_every_fault_of_a_device_that_is_gone() -> None:
    assert held_after(XID64, REMAP_FAILED, FABRIC_FAILED, OF_GONE) == set()


@pytest.mark.parametrize("reset", [BACK, DRIVER_NONE], ids=["back", "driver-none"])
def test_reset_leaves_faults_that_their_source_has_reported_and_still_observes(reset: Finding) -> None:
    """The source reports the beginning and the end only, so it is silent while the fault holds."""
    over = finding(FindingKind.FAULT_OVER, "FabricFailed", ActionClass.NONE, at=100.0)
    assert held_after(FABRIC_FAILED, DRIVER_RESET, XID48, reset) == {"FabricFailed"}
    assert held_after(FABRIC_FAILED, DRIVER_RESET, XID48, reset, over) == set()


EVERY_FINDING = [XID31, XID48, XID79, XID64, UNKNOWN, STUCK, INEFFECTIVE, LOST, DRIVER_RESET, DOUBLE_BIT, CLEANUP, DOWN]


@given(st.lists(st.sampled_from([*EVERY_FINDING, APP_GONE, BACK, UP, NOT_STUCK, DRIVER_NONE]), max_size=12))
def test_suppression_never_improves_the_verdict(findings: list[Finding]) -> None:
    """Suppression must not hide that a device needs an action."""
    plain, tidy = fold.HealthState(), fold.HealthState()
    raised = [item for item in findings if item in EVERY_FINDING]
    for item in raised:
        plain, tidy = fold.fold(plain, item, device=GPU), fold.fold(tidy, item, device=GPU, catalog=CATALOG)
    assert fold.verdict(tidy, GPU, answers=True).action is fold.verdict(plain, GPU, answers=True).action
