"""Map the enums of ``common.coordination`` to those of protobuf's messages, and back, by their names. Pure.

A protobuf value without a counterpart is not set (``NONE``), or from a newer peer.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, TypeVar

from kubemend.common.coordination import FaultAnswer, FaultKind, OrderKind, StepPhase
from kubemend.common.pb.coordination.v1 import coordination_pb2 as pb

_Word = TypeVar("_Word")
_Code = TypeVar("_Code")

FAULT_KINDS: "Final[Mapping[FaultKind, pb.Fault.Kind.ValueType]]" = MappingProxyType(
    {word: pb.Fault.Kind.Value(word.name) for word in FaultKind}
)
FAULT_ANSWERS: "Final[Mapping[FaultAnswer, pb.FaultAnswer.Answer.ValueType]]" = MappingProxyType(
    {word: pb.FaultAnswer.Answer.Value(word.name) for word in FaultAnswer}
)
ORDER_KINDS: "Final[Mapping[OrderKind, pb.Order.Action.ValueType]]" = MappingProxyType(
    {word: pb.Order.Action.Value(word.name) for word in OrderKind}
)
STEP_PHASES: "Final[Mapping[StepPhase, pb.StepResult.Phase.ValueType]]" = MappingProxyType(
    {word: pb.StepResult.Phase.Value(word.name) for word in StepPhase}
)


def by_code(codes: Mapping[_Word, _Code]) -> Mapping[_Code, _Word]:
    """Return one of the mappings above in the other direction."""
    return MappingProxyType({code: word for word, code in codes.items()})
