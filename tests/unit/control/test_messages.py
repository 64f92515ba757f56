"""Requests in their encoded form: valid ones round trip, all others are refused in one line."""

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubemend.agent.control import messages
from kubemend.agent.restart.intents import Strategy
from kubemend.agent.restart.overrides import RestartOverrides

NAMES = st.text("abc-.0", min_size=1)
ASKED = st.builds(
    RestartOverrides,
    strategy=st.none() | st.sampled_from(Strategy),
    containers=st.frozensets(NAMES),
    grace_seconds=st.none() | st.floats(0, 3600),
)
REQUESTS = st.builds(
    messages.RestartRequest,
    namespace=NAMES,
    pod=NAMES,
    asked=ASKED,
    reason=st.text(max_size=256).filter(str.isprintable),
)


@given(REQUESTS)
def test_request_round_trips_through_json(request: messages.RestartRequest) -> None:
    assert messages.parse(json.dumps(request.to_json()).encode()) == request


def test_optional_fields_may_be_omitted() -> None:
    assert messages.parse(b'{"namespace": "n", "pod": "p"}') == messages.RestartRequest(namespace="n", pod="p")


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"pod": ""}, "pod"),
        ({"pod": None}, "pod"),
        ({"namespace": 7}, "namespace"),
        ({"containers": "trainer"}, "containers"),
        ({"containers": [1]}, "containers"),
        ({"strategy": "quick"}, "auto, process, swap, rerun, reset, rules"),
        ({"strategy": ["swap"]}, "strategy"),
        ({"grace_seconds": -1}, "grace_seconds"),
        ({"grace_seconds": 3601}, "grace_seconds"),
        ({"grace_seconds": 10**400}, "grace_seconds"),
        ({"grace_seconds": True}, "grace_seconds"),
        ({"grace_seconds": "10s"}, "grace_seconds"),
        ({"grace_seconds": float("inf")}, "grace_seconds"),
        ({"grace_seconds": float("nan")}, "grace_seconds"),
        ({"reason": "two\nlines"}, "reason"),
        ({"reason": "x" * 257}, "reason"),
        ({"reason": 1}, "reason"),
        ({"force": True}, "unknown fields force"),
    ],
)
def test_invalid_field_is_named(changes: dict[str, Any], named: str) -> None:
    body = json.dumps({"namespace": "n", "pod": "p"} | changes).encode()
    with pytest.raises(messages.BadRequestError, match=named) as error:
        messages.parse(body)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("body", [b"", b"restart!", b"\xff", b"[]", b"1", b'{"pod": ', b"[" * 100_000])
def test_invalid_body_is_refused(body: bytes) -> None:
    with pytest.raises(messages.BadRequestError):
        messages.parse(body)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


FIELDS = dict.fromkeys(("namespace", "pod", "containers", "strategy", "grace_seconds", "reason"), JSON)


@given(st.fixed_dictionaries({}, optional=FIELDS))
def test_any_json_is_parsed_or_refused(fields: dict[str, Any]) -> None:
    with contextlib.suppress(messages.BadRequestError):
        assert isinstance(messages.parse(json.dumps(fields).encode()), messages.RestartRequest)
