"""Turn the verdicts of a pod's devices into an answer that NVRx reads."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubemend.agent.devices import health_answer, pod_conditions
from kubemend.agent.devices.health_answer import Answer, Undetermined
from kubemend.agent.model.actions import ActionClass
from kubemend.agent.model.verdicts import Health, Verdict

GOOD = Verdict("GPU-0", Health.HEALTHY, ActionClass.NONE, "Healthy", "answers")
SLOW = Verdict("GPU-1", Health.DEGRADED, ActionClass.OBSERVE, "Throttled", "hot for 3 min")
CRASHED = Verdict("GPU-2", Health.DEGRADED, ActionClass.RESTART_APP, "Xid31", "Xid 31")
OPEN = Verdict("GPU-3", Health.UNKNOWN, ActionClass.ASK_DRIVER, "Xid95", "Xid 95")
BROKEN = Verdict("GPU-4", Health.UNHEALTHY, ActionClass.RESET_DEVICE, "Xid48", "Xid 48", since=900.0)
UNKNOWN = Verdict("GPU-5", Health.UNKNOWN, ActionClass.NONE, "NotProven", "the driver could not be queried")
DOWN = Verdict("0000:18:00.0", Health.UNHEALTHY, ActionClass.REPLACE, "LinkDown", "no carrier", since=930.0)
JUST_DOWN = Verdict("0000:19:00.0", Health.UNHEALTHY, ActionClass.REPLACE, "LinkDown", "no carrier", since=940.0)
ALL = (GOOD, SLOW, CRASHED, OPEN, BROKEN, UNKNOWN, DOWN, JUST_DOWN)
FAILING = {OPEN.device, BROKEN.device, DOWN.device}


def nvrx_joins(answer: Answer) -> bool:
    """Return what NVRx's ``NodeHealthCheck`` concludes from an answer."""
    if not answer.success:
        return False
    try:
        fails = json.loads(answer.output).get("fail_count")
    except json.JSONDecodeError:
        return False
    return bool(fails == 0)


def determined(*own: Verdict, near: tuple[Verdict, ...] = ()) -> tuple[Answer, dict[str, Any]]:
    found = health_answer.of(own, near=near, all_known=True, returning={JUST_DOWN.device})
    assert isinstance(found, Answer)
    return found, json.loads(found.output)


@pytest.mark.parametrize(
    ("own", "failed"),
    [
        pytest.param([GOOD], [], id="healthy"),
        pytest.param([GOOD, SLOW, CRASHED], [], id="degraded-devices-work"),
        pytest.param([GOOD, BROKEN], ["GPU-4 Xid48"], id="unhealthy"),
        pytest.param([OPEN], ["GPU-3 Xid95"], id="only-the-driver-can-decide"),
        pytest.param([UNKNOWN, BROKEN], ["GPU-4 Xid48"], id="a-known-fault-beside-an-unknown-state"),
        pytest.param([GOOD, DOWN], ["0000:18:00.0 LinkDown"], id="a-lost-link"),
        pytest.param([GOOD, JUST_DOWN], [], id="a-link-that-may-come-back"),
    ],
)
def test_check_fails_for_devices_that_must_not_be_used(own: list[Verdict], failed: list[str]) -> None:
    answer, output = determined(*own)
    assert (output["fail_count"], output["failed_checks"]) == (len(failed), failed)
    assert (answer.success, answer.exit_code, bool(answer.error)) == ((False, 2, True) if failed else (True, 0, False))


def test_answer_has_each_device_with_its_verdict() -> None:
    answer, output = determined(GOOD, BROKEN)
    assert [device["device"] for device in output["devices"]] == ["GPU-0", "GPU-4"]
    assert output["devices"][1] == {
        "device": "GPU-4",
        "health": "Unhealthy",
        "action": "ResetDevice",
        "reason": "Xid48",
        "message": "Xid 48",
        "since": 900.0,
    }
    assert answer.error == "GPU-4: Xid 48"


def test_fault_of_a_nic_nearby_is_listed_and_does_not_fail_the_check() -> None:
    answer, output = determined(GOOD, near=(DOWN, SLOW, UNKNOWN))
    assert answer.success
    assert [device["device"] for device in output["devices"]] == ["GPU-0", "0000:18:00.0", "GPU-1"]


@pytest.mark.parametrize(
    ("own", "all_known", "reason"),
    [
        pytest.param([GOOD, UNKNOWN], True, "GPU-5: the driver could not be queried", id="a-device-is-unknown"),
        pytest.param([], True, "no GPU and no NIC", id="no-device"),
        pytest.param([GOOD], False, "cannot be matched", id="a-hidden-gpu"),
    ],
)
def test_unknown_state_is_no_answer(own: list[Verdict], all_known: bool, reason: str) -> None:
    found = health_answer.of(own, all_known=all_known, returning={JUST_DOWN.device})
    assert isinstance(found, Undetermined)
    assert reason in found.reason


def test_text_of_a_message_is_short_and_valid_unicode() -> None:
    hostile = Verdict("GPU-4", Health.UNHEALTHY, ActionClass.REPLACE, "Xid79", "\udcff\0" * 10_000)
    answer, output = determined(hostile)
    assert len(answer.error.encode()) < 1000
    assert len(output["devices"][0]["message"].encode()) < 1000


@given(
    own=st.lists(st.sampled_from(ALL), unique=True),
    near=st.lists(st.sampled_from(ALL), unique=True).map(tuple),
    all_known=st.booleans(),
)
def test_nvrx_joins_only_with_devices_that_are_all_known_and_usable(
    own: list[Verdict], near: tuple[Verdict, ...], all_known: bool
) -> None:
    found = health_answer.of(own, near=near, all_known=all_known, returning={JUST_DOWN.device})
    fails = any(verdict.device in FAILING for verdict in own)
    proven = bool(own) and all_known and UNKNOWN not in own
    if isinstance(found, Undetermined):
        assert not fails
        assert not proven
    else:
        assert nvrx_joins(found) is not fails
        assert fails or proven
        named = {device["device"] for device in json.loads(found.output)["devices"]}
        assert named <= {verdict.device for verdict in (*own, *near)}


@given(own=st.lists(st.sampled_from(ALL), min_size=1, unique=True))
def test_pod_with_device_failure_fails_the_check(own: list[Verdict]) -> None:
    _, failure = pod_conditions.for_devices(own, returning={JUST_DOWN.device})
    found = health_answer.of(own, all_known=True, returning={JUST_DOWN.device})
    if failure.status.value == "True":
        assert isinstance(found, Answer)
        assert not nvrx_joins(found)
