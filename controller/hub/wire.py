"""Messages as bytes. Two serialized messages one after the other are one message (protobuf merges them), so what
thousands of agents are told alike is serialized once.
"""

from common.pb.coordination.v1 import coordination_pb2 as pb


def encode(message: pb.HubMessage) -> bytes:
    """Return a message, or a part of one, as ``Session.send`` takes it: parts may be added together."""
    return message.SerializeToString()


def stamp(epoch: int) -> bytes:
    """Return what puts the epoch on a serialized message when it is added to its end: the last value holds."""
    return pb.HubMessage(epoch=epoch).SerializeToString()
