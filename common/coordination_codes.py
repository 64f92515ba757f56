"""Map the enums of ``common.coordination`` to those of protobuf's messages, and back, by their names. Pure.

A protobuf value without a counterpart is not set (``NONE``), or from a newer peer.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, TypeVar

from kubemend.common.coordination import FaultAnswer, FaultKind, OrderKind, StepPhase
from kubemend.common.pb.coordination.v1 import coordination_pb2 as pb

_Member = TypeVar("_Member")
_Code = TypeVar("_Code")

FAULT_KINDS: "Final[Mapping[FaultKind, pb.Fault.Kind.ValueType]]" = MappingProxyType(
    {member: pb.Fault.Kind.Value(member.name) for member in FaultKind}
)
FAULT_ANSWERS: "Final[Mapping[FaultAnswer, pb.FaultAnswer.Answer.ValueType]]" = MappingProxyType(
    {member: pb.FaultAnswer.Answer.Value(member.name) for member in FaultAnswer}
)
ORDER_KINDS: "Final[Mapping[OrderKind, pb.Order.Action.ValueType]]" = MappingProxyType(
    {member: pb.Order.Action.Value(member.name) for member in OrderKind}
)
STEP_PHASES: "Final[Mapping[StepPhase, pb.StepResult.Phase.ValueType]]" = MappingProxyType(
    {member: pb.StepResult.Phase.Value(member.name) for member in StepPhase}
)


def by_code(codes: Mapping[_Member, _Code]) -> Mapping[_Code, _Member]:
    """Return one of the mappings above in the other direction."""
    return MappingProxyType({code: member for member, code in codes.items()})
