"""What agents say, as the controller understands it."""

from common.pb.coordination.v1 import coordination_pb2 as pb
from controller.app import words
from tests.unit.controller import builders


def test_who_was_restarted_alone_is_told_so_to_people() -> None:
    told = pb.Fault(id="f", kind=pb.Fault.DEVICE, message="Xid 31", alone=True)
    fault = words.fault(told, gang=builders.GANG, now=builders.NOW)
    assert fault.alone
    assert fault.message == "Xid 31; the hub did not answer in time, so its agent has restarted it alone"
