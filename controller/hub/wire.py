"""Serialize messages once for thousands of agents.

protobuf merges two serialized messages, one after the other, into one message. So the common part of what many agents
receive is serialized once.
"""

from kubemend.common.pb.coordination.v1 import coordination_pb2 as pb


def encode(message: pb.HubMessage) -> bytes:
    """Return a message, or a part of one, as ``Session.send`` takes it: parts may be added together."""
    return message.SerializeToString()


def stamp(epoch: int) -> bytes:
    """Return the bytes that set the epoch of a serialized message when they are appended: the last value applies."""
    return pb.HubMessage(epoch=epoch).SerializeToString()
