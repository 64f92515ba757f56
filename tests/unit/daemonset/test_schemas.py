"""All installed objects fit the API: existing fields, of their types, and none missing."""

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from tests.unit.daemonset import manifests, schemas

OF_OTHERS = "monitoring.coreos.com/"

ALL: dict[str, Callable[[], list[manifests.Json]]] = {
    **{"+".join(variant) or "base": partial(manifests.render, variant) for variant in manifests.VARIANTS},
    **{directory.name: partial(manifests.build, directory) for directory in manifests.INSTALLATIONS},
}


@pytest.mark.parametrize("rendered", ALL.values(), ids=ALL.keys())
def test_every_object_fits_its_schema(rendered: Callable[[], list[manifests.Json]]) -> None:
    ours = [obj for obj in rendered() if not obj["apiVersion"].startswith(OF_OTHERS)]
    assert ours
    assert [obj["kind"] for obj in ours if not schemas.is_known(obj)] == []
    assert [problem for problem in map(schemas.problems, ours) if problem] == []


@pytest.mark.parametrize(
    ("place", "value", "problem"),
    [
        ("spec.maxUnavailable", 1, "Extra inputs are not permitted"),
        ("spec.template.spec.hostPID", "yes", "Input should be a valid boolean"),
        ("spec.template.spec.containers.0.ports.0.containerPort", "9464", "Input should be a valid integer"),
        ("spec.template.spec.containers.0.env", {"A": "b"}, "Input should be a valid list"),
        ("spec.template.spec.nodeSelector.kubernetes", True, "Input should be a valid string"),
        ("spec.selector", None, "Field required"),
    ],
)
def test_invalid_object_is_found(place: str, value: Any, problem: str) -> None:
    wrong = copy.deepcopy(manifests.one("DaemonSet"))
    *way, last = (int(step) if step.isdecimal() else step for step in place.split("."))
    at: Any = wrong
    for step in way:
        at = at[step]
    if value is None:
        del at[last]
    else:
        at[last] = value
    assert f"{place}\n  {problem}" in schemas.problems(wrong)
