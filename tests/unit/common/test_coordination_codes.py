"""Each member of the protocol's enums has a value of protobuf's enum, by name; each value but NONE has a member."""

import enum
from collections.abc import Mapping

import pytest
from google.protobuf.internal.enum_type_wrapper import EnumTypeWrapper

from kubemend.common import coordination_codes
from kubemend.common.pb.coordination.v1 import coordination_pb2 as pb

PAIRS = [
    pytest.param(coordination_codes.FAULT_KINDS, pb.Fault.Kind, id="kinds of faults"),
    pytest.param(coordination_codes.FAULT_ANSWERS, pb.FaultAnswer.Answer, id="answers"),
    pytest.param(coordination_codes.ORDER_KINDS, pb.Order.Action, id="orders"),
    pytest.param(coordination_codes.STEP_PHASES, pb.StepResult.Phase, id="phases"),
]


@pytest.mark.parametrize(("codes", "values"), PAIRS)
def test_codes_every_value_of_the_protocol_has_its_name(
    codes: Mapping[enum.Enum, int], values: EnumTypeWrapper
) -> None:
    assert {word.name: code for word, code in codes.items()} == {
        name: value for name, value in values.items() if name != "NONE"
    }


def test_by_code_returns_the_names_by_their_values() -> None:
    words = coordination_codes.by_code(coordination_codes.ORDER_KINDS)
    assert {code: word.name for code, word in words.items()} == {pb.Order.RESTART: "RESTART", pb.Order.HOLD: "HOLD"}
