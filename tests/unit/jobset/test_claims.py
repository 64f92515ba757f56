"""Compare existing claims with those that a JobSet asks for."""

from dataclasses import replace
from typing import Any

import pytest

from kubemend.controller.jobset import conditions, decide
from kubemend.controller.jobset.children import volume_claims
from kubemend.controller.jobset.plan import EventType
from tests.unit.jobset import builders
from tests.unit.jobset.test_decide import claiming

ASKED: dict[str, Any] = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "2Gi"}}}

SNAPSHOT: dict[str, Any] = {"kind": "VolumeSnapshot", "name": "a"}
EVERYTHING: dict[str, Any] = {
    "storageClassName": "fast",
    "volumeName": "pvc-1",
    "selector": {"matchLabels": {"a": "b"}},
    "dataSource": SNAPSHOT,
}


def differing(asked: dict[str, Any], there: dict[str, Any]) -> tuple[str, ...]:
    return volume_claims.differences(volume_claims.read({**ASKED, **asked}), volume_claims.read({**ASKED, **there}))


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
        ({"dataSource": SNAPSHOT}, {"dataSource": {**SNAPSHOT, "name": "b"}}, "dataSource"),
        ({"dataSource": SNAPSHOT}, {"dataSource": {**SNAPSHOT, "kind": "PersistentVolumeClaim"}}, "dataSource"),
    ],
)
def test_different_claim_is_reported_by_field(asked: dict[str, Any], there: dict[str, Any], field: str) -> None:
    assert differing(asked, there) == (field,)


@pytest.mark.parametrize(
    ("asked", "there"),
    [
        ({}, {"storageClassName": "standard", "volumeName": "pvc-1", "volumeMode": "Filesystem"}),
        (EVERYTHING, EVERYTHING),
        ({}, EVERYTHING),
        ({"resources": {}}, {}),
        ({}, {"resources": {}}),
        ({}, {"resources": {"requests": {"storage": "3Gi"}}}),
        ({"dataSourceRef": SNAPSHOT}, {"dataSource": SNAPSHOT, "dataSourceRef": SNAPSHOT}),
        ({"resources": {"requests": {"storage": "2048Mi"}}}, {}),
        ({"accessModes": ["ReadWriteOnce", "ReadOnlyMany"]}, {"accessModes": ["ReadOnlyMany", "ReadWriteOnce"]}),
        (
            {"dataSource": SNAPSHOT},
            {"dataSource": SNAPSHOT, "dataSourceRef": SNAPSHOT},
        ),
    ],
)
def test_defaulted_and_grown_claim_does_not_differ(asked: dict[str, Any], there: dict[str, Any]) -> None:
    assert differing(asked, there) == ()


@pytest.mark.parametrize("spec", [None, [], "x", {"accessModes": 1, "resources": [], "selector": [1], "dataSource": 3}])
def test_any_spec_can_be_read(spec: object) -> None:
    assert volume_claims.differences(volume_claims.read({}), volume_claims.read(spec)) == ()


def test_difference_is_reported_once_and_reverted_when_fixed() -> None:
    asked = volume_claims.names(claiming())
    right = {name: volume_claims.read(spec) for name, spec in asked.items()}
    wrong = {name: replace(spec, mode="Block") for name, spec in right.items()}
    observed = builders.observed(claiming(), claims=frozenset(asked), claim_specs=wrong)
    first = decide.decide(observed)
    (event,) = [each for each in first.events if each.reason == volume_claims.OTHER_SPEC]
    assert event.type is EventType.WARNING
    assert "claim data-js differs in volumeMode; claim logs-js differs in volumeMode" in event.message
    assert first.status is not None
    reported = replace(observed, jobset=replace(observed.jobset, status=first.status))
    assert volume_claims.OTHER_SPEC not in {each.reason for each in decide.decide(reported).events}
    fixed = decide.decide(replace(reported, claim_specs=right))
    assert fixed.status is not None
    assert conditions.is_true(fixed.status, conditions.CLAIMS)


def test_matching_claim_gets_no_condition() -> None:
    asked = volume_claims.names(claiming())
    right = {name: volume_claims.read(spec) for name, spec in asked.items()}
    plan = decide.decide(builders.observed(claiming(), claims=frozenset(asked), claim_specs=right))
    assert plan.status is None or plan.status.condition(conditions.CLAIMS) is None
