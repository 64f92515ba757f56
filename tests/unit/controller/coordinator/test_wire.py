"""Agents' messages converted to the controller's values."""

import pytest

from kubemend.common.pb.coordination.v1 import coordination_pb2 as pb
from kubemend.controller.coordinator import wire
from kubemend.controller.hub import messages
from kubemend.controller.model.rounds import RoundRef
from tests.unit.controller import builders


def test_fault_of_container_restarted_alone_has_it_in_message() -> None:
    reported = pb.Fault(id="f", kind=pb.Fault.DEVICE, message="Xid 31", alone=True)
    fault = wire.fault(reported, member=builders.member(0), now=builders.NOW)
    assert fault.alone
    assert fault.message == "Xid 31; the hub did not answer in time, so its agent restarted the container alone"


def test_texts_of_agents_are_one_line_without_control_characters() -> None:
    """A hung program's thread chooses its name, and its agent may be an attacker's: people read both in Restarts."""
    reported = pb.Fault(id="f", kind=pb.Fault.HANG, message="threads: 1 S; \x1b[2Jx\ny waits")
    result = pb.StepResult(round="a/b", phase=pb.StepResult.FAILED, detail="\x1b]0;title\x07no")

    step = wire.step_result(result)

    assert wire.fault(reported, member=builders.member(0), now=builders.NOW).message == "threads: 1 S;  [2Jx y waits"
    assert step is not None
    assert step.detail == " ]0;title no"


@pytest.mark.parametrize("name", ["please", "a" * 253, "a" * 243 + ".a-" + "a" * 7])
def test_id_of_a_requested_round_is_its_own_and_valid_in_a_result(name: str) -> None:
    ref = RoundRef("team", name, builders.GANG, 1)
    first, second = (
        wire.round_id(ref, request_uid=uid)
        for uid in ("00f0c7a1-3b0e-4b53-9e9a-1f0a6f2f4d11", "a1b2c3d4-3b0e-4b53-9e9a-1f0a6f2f4d11")
    )
    assert first != second
    pod = pb.Pod(namespace="team", name="train-0", uid="00f0c7a1-3b0e-4b53-9e9a-1f0a6f2f4d11")
    result = pb.AgentMessage(result=pb.StepResult(round=first, pod=pod, phase=pb.StepResult.RUNNING))
    assert messages.parse(result.SerializeToString(), limits=messages.Limits()) == result
