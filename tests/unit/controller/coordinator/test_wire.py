"""Agents' messages converted to the controller's values."""

from kubemend.common.pb.coordination.v1 import coordination_pb2 as pb
from kubemend.controller.coordinator import wire
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
