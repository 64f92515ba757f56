"""The fold: findings that are no evidence against a fault."""

import dataclasses

import pytest

from kubemend.agent.model.actions import ActionClass
from kubemend.agent.model.findings import Finding, FindingKind
from tests.unit.health.test_fold import (
    AER_FATAL,
    DRIVER_RESET,
    GPU,
    NIC_FATAL,
    NIC_LOST,
    NIC_THERE,
    RECOMMENDS_UNKNOWN,
    UNKNOWN,
    finding,
    folded,
)


def test_requirement_of_the_driver_does_not_permit_a_new_process() -> None:
    faults = folded(UNKNOWN, dataclasses.replace(AER_FATAL, observed_at=2.0), DRIVER_RESET).active_faults(GPU)
    assert {fault.reason: fault.action for fault in faults} == {
        "Xid999": ActionClass.ASK_DRIVER,
        "AerFatal": ActionClass.ASK_DRIVER,
        "RecoveryAction1": ActionClass.RESET_DEVICE,
    }


def test_recommendation_that_is_not_known_replaces_the_one_before() -> None:
    later = dataclasses.replace(RECOMMENDS_UNKNOWN, observed_at=60.0)
    assert [fault.reason for fault in folded(DRIVER_RESET, later).active_faults(GPU)] == ["RecoveryAction5"]


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(finding(FindingKind.NIC_HOT, "", ActionClass.OBSERVE, at=99.0), id="another-fault"),
        pytest.param(dataclasses.replace(NIC_THERE, code="LinkDown"), id="the-end-of-another-fault"),
    ],
)
def test_only_the_return_of_a_lost_nic_ends_its_other_faults(other: Finding) -> None:
    lost = folded(NIC_FATAL, NIC_LOST, other)
    assert {"NicFatal", "NicLost"} <= {fault.reason for fault in lost.active_faults(GPU)}
    returned = folded(NIC_FATAL, NIC_LOST, other, NIC_THERE)
    assert {"NicFatal", "NicLost"}.isdisjoint(fault.reason for fault in returned.active_faults(GPU))
