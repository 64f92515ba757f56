"""EvictionRequests as values."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubemend.common.kube import informer
from kubemend.controller.watches import evictions
from kubemend.controller.watches.evictions import Target

ANSWER: dict[str, Any] = {
    "metadata": {
        "name": "drain-6xgp7",
        "namespace": "default",
        "uid": "783ce9a3-431c-4898-bfee-2240d2fadb54",
        "generation": 1,
    },
    "spec": {
        "target": {"pod": {"name": "plain", "uid": "d66e4782-7bb2-4536-9b6a-447bb85e2343"}},
        "requester": "acme.io/drain",
        "intent": "Eviction",
    },
    "status": {},
}
"""What kube-apiserver 1.37.2 answered."""
POD = Target("default", "d66e4782-7bb2-4536-9b6a-447bb85e2343")  # type: ignore[arg-type]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(st.sampled_from(["pod", "uid", "type", "status", "conditions", "x"]), inner, max_size=3)
    ),
    max_leaves=8,
)


def request(**changes: Any) -> dict[str, Any]:
    return {**ANSWER, **changes}


def conditions(**statuses: str) -> dict[str, Any]:
    return {"conditions": [{"type": kind, "status": status} for kind, status in statuses.items()]}


@pytest.mark.parametrize(
    ("changes", "pod"),
    [
        ({}, POD),
        ({"status": None}, POD),
        ({"metadata": {**ANSWER["metadata"], "deletionTimestamp": "2026-12-01T15:00:00Z"}}, None),
        ({"status": conditions(Failed="False", TargetEvicted="Unknown")}, POD),
        ({"status": conditions(Unheard="True")}, POD),
        ({"status": conditions(Failed="True", TargetEvicted="False")}, None),
        ({"status": conditions(TargetEvicted="True")}, None),
        ({"spec": {**ANSWER["spec"], "intent": "Withdrawn"}}, None),
        ({"spec": {**ANSWER["spec"], "target": {"claim": {}}}}, None),
        ({"spec": {**ANSWER["spec"], "target": {}}}, None),
    ],
)
def test_request_names_its_pod_until_it_is_withdrawn_or_over(changes: dict[str, Any], pod: Target | None) -> None:
    assert evictions.target(request(**changes)) == pod


@given(JSON, JSON, JSON)
def test_any_object_is_read_or_invalid(spec: Any, target: Any, status: Any) -> None:
    for each in (spec, {"intent": "Eviction", "target": target}):
        try:
            evictions.target(request(spec=each, status=status))
        except informer.INVALID:
            continue
