"""Which bytes are valid messages of an agent: any bytes are either accepted or refused."""

import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubemend.common.coordination import PROTOCOL
from kubemend.common.pb.coordination.v1 import coordination_pb2 as pb
from kubemend.controller.hub import messages
from kubemend.controller.hub.messages import Limits
from kubemend.controller.hub.refusals import Reason, RefusedError
from tests.unit.controller.hub import words

_LIMITS = Limits()
_FEW = Limits(message_bytes=4096, results=2, samples=2, seconds=2, text=64)


def _parse(message: pb.AgentMessage, limits: Limits = _LIMITS) -> pb.AgentMessage:
    return messages.parse(message.SerializeToString(), limits=limits)


def _refusal(message: pb.AgentMessage, limits: Limits = _LIMITS) -> Reason:
    with pytest.raises(RefusedError) as refused:
        _parse(message, limits)
    return refused.value.reason


@pytest.mark.parametrize("message", words.ALL.values(), ids=words.ALL)
def test_valid_messages_are_accepted_unchanged(message: pb.AgentMessage) -> None:
    assert _parse(message) == message


def test_too_many_bytes_are_refused_before_parsing() -> None:
    with pytest.raises(RefusedError) as refused:
        messages.parse(b"\xff" * 5000, limits=_FEW)
    assert refused.value.reason is Reason.OVERSIZED


@pytest.mark.parametrize(
    "message",
    [
        words.hello("a", "b", "c"),
        words.samples("a", "b", "c"),
        pb.AgentMessage(
            result=pb.StepResult(
                round="train/x", pod=words.pod(), phase=pb.StepResult.STOPPED, seconds={"a": 1, "b": 1, "c": 1}
            )
        ),
    ],
    ids=["results", "samples", "seconds"],
)
def test_too_long_list_is_refused(message: pb.AgentMessage) -> None:
    assert _refusal(message, _FEW) is Reason.TOO_MANY


def test_round_that_is_not_valid_is_refused_each_time_and_between_valid_ones() -> None:
    valid, broken = words.result(), words.result()
    broken.result.round = "train/llm-1/x"
    for _ in range(2):
        assert _parse(valid) == valid
        assert _refusal(broken) is Reason.MALFORMED


def test_too_long_text_is_refused() -> None:
    message = words.fault()
    message.fault.message = "x" * 65
    assert _refusal(message, _FEW) is Reason.OVERSIZED


def _spoil(change: Callable[[pb.AgentMessage], object], name: str) -> pb.AgentMessage:
    message = pb.AgentMessage()
    message.CopyFrom(words.ALL[name])
    change(message)
    return message


def _set(path: str, value: object) -> Callable[[pb.AgentMessage], object]:
    *way, last = path.split(".")

    def change(message: pb.AgentMessage) -> None:
        target: object = message
        for step in way:
            target = target[int(step)] if step.isdigit() else getattr(target, step)  # type: ignore[index]
        setattr(target, last, value)

    return change


@pytest.mark.parametrize(
    ("name", "path", "value"),
    [
        ("hello", "hello.node", ""),
        ("hello", "hello.node", "Node_1"),
        ("hello", "hello.results.0.pod.uid", "../etc"),
        ("hello", "hello.results.0.pod.uid", ""),
        ("hello", "hello.results.0.pod.namespace", "train/x"),
        ("hello", "hello.results.0.pod.name", "x" * 254),
        ("hello", "hello.results.0.round", "no-namespace"),
        ("fault", "fault.id", ""),
        ("fault", "fault.id", "x" * 129),
        ("fault", "fault.gang", ""),
        ("fault", "fault.gang", "JobSet/llm"),
        ("fault", "fault.gang", "other/JobSet/llm"),
        ("fault", "fault.gang", "train/JobSet/a b"),
        ("fault", "fault.container", "Trainer!"),
        ("fault", "fault.code", "two words"),
        ("fault", "fault.age_seconds", -1.0),
        ("fault", "fault.age_seconds", math.nan),
        ("fault", "fault.age_seconds", math.inf),
        ("fault", "fault.age_seconds", 1e300),
        ("result", "result.round", "train/llm-1/x"),
        ("result", "result.reason", "no text"),
        ("result", "result.unheld_seconds", math.nan),
        ("result", "result.unheld_seconds", 1e10),
        ("samples", "samples.devices.0.clock", math.nan),
        ("samples", "samples.devices.0.device", ""),
        ("samples", "samples.devices.0.pod_uid", ""),
    ],
)
def test_impossible_value_is_malformed(name: str, path: str, value: object) -> None:
    assert _refusal(_spoil(_set(path, value), name)) is Reason.MALFORMED


@pytest.mark.parametrize(("name", "path"), [("result", "result.phase"), ("fault", "fault.kind")])
def test_newer_agents_message_is_ignored_and_stream_continues(name: str, path: str) -> None:
    with pytest.raises(RefusedError) as refused:
        _parse(_spoil(_set(path, 77), name))
    assert refused.value.reason is Reason.UNKNOWN_MESSAGE
    assert not refused.value.ends_stream


@pytest.mark.parametrize("data", [b"", b"\xfa\x01\x00"], ids=["nothing", "an unknown body"])
def test_message_without_known_body_is_ignored(data: bytes) -> None:
    with pytest.raises(RefusedError) as refused:
        messages.parse(data, limits=_LIMITS)
    assert refused.value.reason is Reason.UNKNOWN_MESSAGE


def test_result_without_phase_is_ignored() -> None:
    assert _refusal(_spoil(_set("result.phase", pb.StepResult.NONE), "result")) is Reason.UNKNOWN_MESSAGE


def test_too_old_protocol_is_refused_with_hint() -> None:
    with pytest.raises(RefusedError, match="Upgrade the agent") as refused:
        _parse(_spoil(_set("hello.protocol", messages.OLDEST - 1), "hello"))
    assert refused.value.reason is Reason.OTHER_VERSION
    assert refused.value.ends_stream


def test_newer_protocol_is_accepted() -> None:
    message = _spoil(_set("hello.protocol", PROTOCOL + 1), "hello")
    assert _parse(message) == message


def test_hello_of_other_node_is_refused() -> None:
    with pytest.raises(RefusedError) as refused:
        messages.hello_of(words.hello(node="node-2"), node="node-1")
    assert refused.value.reason is Reason.WRONG_NODE


def test_stream_must_begin_with_hello() -> None:
    with pytest.raises(RefusedError) as refused:
        messages.hello_of(words.fault(), node="node-1")
    assert refused.value.reason is Reason.MALFORMED


@given(st.binary(max_size=512))
def test_any_bytes_are_a_message_or_refused(data: bytes) -> None:
    _parses_or_refuses(data)


@given(
    st.sampled_from(sorted(words.ALL)),
    st.lists(st.tuples(st.integers(min_value=0), st.binary(max_size=8)), min_size=1, max_size=6),
)
def test_any_mutated_message_is_a_message_or_refused(name: str, blows: list[tuple[int, bytes]]) -> None:
    data = bytearray(words.ALL[name].SerializeToString())
    for where, what in blows:
        at = where % (len(data) + 1)
        data[at : at + max(1, len(what))] = what
    _parses_or_refuses(bytes(data))


def _parses_or_refuses(data: bytes) -> None:
    try:
        message = messages.parse(data, limits=_LIMITS)
    except RefusedError:
        return
    assert message.WhichOneof("body") is not None
    assert messages.parse(message.SerializeToString(), limits=_LIMITS).WhichOneof("body") == message.WhichOneof("body")
