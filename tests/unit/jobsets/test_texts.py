"""A long text that is in each of a thousand Jobs is kept once."""

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from kubemend.controller.jobsets import texts
from kubemend.controller.jobsets.texts import Texts

_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.just("x" * 1000),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=10,
)


@given(value=_JSON)
def test_values_stay_equal(value: Any) -> None:
    known = Texts()
    known.shared("x" * 1000)
    assert known.shared(value) == value


def test_repeated_long_text_is_kept_once() -> None:
    known = Texts()
    template = json.dumps(
        {"metadata": {"annotations": {"notes": "x" * 250_000}}, "spec": {"tolerations": [{"key": "k"}]}}
    )
    first, second = (known.shared(json.loads(template)) for _ in range(2))
    assert first == second == json.loads(template)
    assert first["metadata"]["annotations"]["notes"] is second["metadata"]["annotations"]["notes"]


def test_latest_texts_are_kept() -> None:
    known = Texts()
    for number in range(1000):
        known.shared(f"{number:0100000}")
    assert 10 < len(known._known) <= texts._MOST // 100_000
    assert f"{999:0100000}" in known._known
