"""JSON that is nested deeper than Python reads."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubemend.common.kube import safe_json, watch_protocol

DEEPEST = 9_000
"""The API server accepts ten thousand levels."""


def nested(levels: int) -> bytes:
    """Lists and objects within each other, with text that contains brackets."""
    half = levels // 2
    return rb'{"before": "]}\\", "deep": ' + b'[{"a\\"[": ' * half + b"1" + b"}]" * half + rb', "after": ["[{"]}'


def test_too_deep_values_are_null_and_all_else_is_read() -> None:
    found = safe_json.loads(nested(DEEPEST))
    assert (found["before"], found["after"]) == ("]}\\", ["[{"])
    levels = 1
    inner: Any = found["deep"]
    while inner is not None:
        inner = inner[0] if isinstance(inner, list) else inner['a"[']
        levels += 1
    assert levels == safe_json.MOST


def test_each_of_several_is_cut_for_itself() -> None:
    many = b"[" + b",".join([nested(DEEPEST), b"7", nested(DEEPEST), nested(4)]) + b"]"
    first, number, second, shallow = safe_json.loads(many)
    assert number == 7
    assert first == second
    assert shallow == json.loads(nested(4))


@pytest.mark.parametrize("text", [b"[" * DEEPEST, b"]" * DEEPEST, nested(DEEPEST)[:-1], b"{", b""])
def test_invalid_json_is_a_value_error_at_any_depth(text: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        safe_json.loads(text)


@given(
    st.recursive(
        st.none() | st.text() | st.integers(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
    )
)
def test_shallow_json_is_read_as_by_python(value: Any) -> None:
    text = json.dumps(value).encode()
    assert safe_json.loads(text) == value
    assert b"".join(safe_json._shallow(text)) == text


def test_an_event_of_a_watch_may_be_of_a_deep_object() -> None:
    event = watch_protocol.parse(
        b'{"type": "ADDED", "object": {"metadata": {"name": "x"}, "spec": %s}}' % nested(DEEPEST)
    )
    assert isinstance(event, watch_protocol.WatchEvent)
    assert event.object["metadata"] == {"name": "x"}
