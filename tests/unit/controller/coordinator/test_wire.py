"""Agents' messages converted to the controller's values."""

from kubemend.common.pb.coordination.v1 import coordination_pb2 as pb
from kubemend.controller.coordinator import wire
from tests.unit.controller import builders


def test_fault_of_container_restarted_alone_has_it_in_message() -> None:
    reported = pb.Fault(id="f", kind=pb.Fault.DEVICE, message="Xid 31", alone=True)
    fault = wire.fault(reported, member=builders.member(0), now=builders.NOW)
    assert fault.alone
    assert fault.message == "Xid 31; the hub did not answer in time, so its agent restarted the container alone"
