"""Whether claims that are there are what a JobSet asks for."""

from dataclasses import replace
from typing import Any

import pytest

from controller.jobset import claims, conditions, decide
from controller.jobset.plan import EventType
from tests.unit.jobset import worlds
from tests.unit.jobset.test_decide import claiming

ASKED: dict[str, Any] = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "2Gi"}}}

SNAPSHOT: dict[str, Any] = {"kind": "VolumeSnapshot", "name": "a"}


def differing(asked: dict[str, Any], there: dict[str, Any]) -> tuple[str, ...]:
    return claims.differences(claims.read({**ASKED, **asked}), claims.read({**ASKED, **there}))


@pytest.mark.parametrize(
    ("asked", "there", "field"),
    [
        ({}, {"accessModes": ["ReadWriteMany"]}, "accessModes"),
        ({"storageClassName": "fast"}, {"storageClassName": "slow"}, "storageClassName"),
        ({"storageClassName": ""}, {"storageClassName": "slow"}, "storageClassName"),
        ({}, {"volumeMode": "Block"}, "volumeMode"),
        ({"volumeName": "a"}, {"volumeName": "b"}, "volumeName"),
        ({}, {"resources": {"requests": {"storage": "1Gi"}}}, "resources.requests.storage"),
        ({"selector": {"matchLabels": {"a": "b"}}}, {}, "selector"),
        ({"dataSource": SNAPSHOT}, {}, "dataSource"),
    ],
)
def test_a_claim_of_another_spec_is_told_by_its_field(asked: dict[str, Any], there: dict[str, Any], field: str) -> None:
    assert differing(asked, there) == (field,)


@pytest.mark.parametrize(
    ("asked", "there"),
    [
        ({}, {"storageClassName": "standard", "volumeName": "pvc-1", "volumeMode": "Filesystem"}),
        ({}, {"resources": {"requests": {"storage": "3Gi"}}}),
        ({"resources": {"requests": {"storage": "2048Mi"}}}, {}),
        ({"accessModes": ["ReadWriteOnce", "ReadOnlyMany"]}, {"accessModes": ["ReadOnlyMany", "ReadWriteOnce"]}),
        (
            {"dataSource": SNAPSHOT},
            {"dataSource": SNAPSHOT, "dataSourceRef": SNAPSHOT},
        ),
    ],
)
def test_what_the_server_fills_in_and_what_has_grown_is_no_other_spec(
    asked: dict[str, Any], there: dict[str, Any]
) -> None:
    assert differing(asked, there) == ()


@pytest.mark.parametrize("spec", [None, [], "x", {"accessModes": 1, "resources": [], "selector": [1], "dataSource": 3}])
def test_any_spec_can_be_read(spec: object) -> None:
    assert claims.differences(claims.read({}), claims.read(spec)) == ()


def test_it_is_told_once_and_taken_back_when_it_is_right() -> None:
    asked = claims.names(claiming())
    right = {name: claims.read(spec) for name, spec in asked.items()}
    wrong = {name: replace(spec, mode="Block") for name, spec in right.items()}
    world = worlds.world(claiming(), claims=frozenset(asked), claim_specs=wrong)
    first = decide.decide(world)
    (event,) = [each for each in first.events if each.reason == claims.OTHER_SPEC]
    assert event.type is EventType.WARNING
    assert "claim data-js has another volumeMode; claim logs-js has another volumeMode" in event.message
    assert first.status is not None
    told = replace(world, jobset=replace(world.jobset, status=first.status))
    assert claims.OTHER_SPEC not in {each.reason for each in decide.decide(told).events}
    mended = decide.decide(replace(told, claim_specs=right))
    assert mended.status is not None
    assert conditions.is_true(mended.status, conditions.CLAIMS)


def test_one_that_always_was_right_says_nothing() -> None:
    asked = claims.names(claiming())
    right = {name: claims.read(spec) for name, spec in asked.items()}
    plan = decide.decide(worlds.world(claiming(), claims=frozenset(asked), claim_specs=right))
    assert plan.status is None or plan.status.condition(conditions.CLAIMS) is None
