"""Changes of JobSets that are refused, each with one that is allowed: by the API server, which has old and new."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from tests.unit.jobset.written import IN_ORDER, Json, changed, claiming, depending, in_place, jobset, replicated


@dataclass(frozen=True)
class Change:
    """An update of ``before`` that is refused, and one that is allowed."""

    name: str
    before: Json
    refused: Json
    allowed: Json
    answer: str


def _template(obj: Json, **spec: Any) -> Json:
    return changed(obj, lambda given: given["replicatedJobs"][0]["template"]["spec"].update(spec))


def _image(obj: Json) -> Json:
    return _template(obj, template={"spec": {"containers": [{"name": "main", "image": "trainer:2"}]}})


def _job(obj: Json, **more: Any) -> Json:
    return changed(obj, lambda spec: spec["replicatedJobs"][-1].update(more))


_TWO = depending(("a", None), ("b", "a"))

BY_POLICY: Final[tuple[Change, ...]] = (
    Change(
        "another manager",
        jobset(),
        jobset(managed_by="kueue.x-k8s.io/multikueue"),
        changed(jobset(), lambda spec: spec.update(suspend=True)),
        "spec.managedBy is fixed",
    ),
    Change(
        "no manager",
        jobset(),
        jobset(managed_by=None),
        changed(jobset(), lambda spec: spec.update(ttlSecondsAfterFinished=9)),
        "spec.managedBy is fixed",
    ),
    Change("becomes kubemend's", jobset(managed_by=None), jobset(), jobset(managed_by="a.io/b"), "managedBy is fixed"),
    Change(
        "one more", jobset(replicated("a")), jobset(replicated("a"), replicated("b")), _image(jobset(replicated("a"))),
        "only templates can be changed",
    ),
    Change(
        "another order", jobset(replicated("a"), replicated("b")), jobset(replicated("b"), replicated("a")),
        _template(jobset(replicated("a"), replicated("b")), backoffLimit=3), "only templates can be changed",
    ),
    Change(
        "more replicas", jobset(), _job(jobset(), replicas=2), _job(jobset(), replicas=1),
        "only templates can be changed",
    ),
    Change(
        "another group", jobset(), _job(jobset(), groupName="big"), _job(jobset(), groupName="default"),
        "only templates can be changed",
    ),
    Change(
        "its dependency is removed", _TWO, depending(("a", None), ("b", None)), _image(_TWO),
        "only templates can be changed",
    ),
    Change(
        "an invalid template", in_place(), _template(in_place(), completions=3),
        _template(in_place(), completions=3, parallelism=3), "run all at once",
    ),
)  # fmt: skip
"""Refused by ``daemonset/jobset/policy.yaml``; templates may be changed."""


def _fixed(**spec: Any) -> Callable[..., Change]:
    def make(name: str, **other: Any) -> Change:
        return Change(name, jobset(**spec), jobset(**other), _image(jobset(**spec)), "Value is immutable")

    return make


BY_DEFINITION: Final[tuple[Change, ...]] = (
    _fixed(network={"subdomain": "a"})("another network", network={"subdomain": "b"}),
    _fixed(successPolicy={"operator": "All"})("another success policy", successPolicy={"operator": "Any"}),
    _fixed(failurePolicy={"maxRestarts": 1})("another failure policy", failurePolicy={"maxRestarts": 2}),
    _fixed(startupPolicy=IN_ORDER)("another order", startupPolicy={"startupPolicyOrder": "AnyOrder"}),
    Change(
        "other claims", claiming("data"), changed(claiming("data"), lambda spec: spec.update(volumeClaimPolicies=[])),
        changed(claiming("data"), lambda spec: spec.update(suspend=True)), "Value is immutable",
    ),
    Change(
        "another dependency", _TWO,
        _job(_TWO, dependsOn=[{"name": "a", "status": "Complete"}]), _image(_TWO), "Value is immutable",
    ),
)  # fmt: skip
"""Refused by rules in CEL of ``daemonset/jobset/crd.yaml``, for JobSets of all controllers."""
