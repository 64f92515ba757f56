"""The controller's problems of a JobSet: the same that the API server refuses."""

import re
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from kubemend.controller.jobset.spec import reading, validation
from kubemend.controller.jobset.spec.fields import InvalidFieldError
from kubemend.controller.jobset.spec.validation import limits
from tests.unit.daemonset import manifests
from tests.unit.jobset import refused, refused_changes, test_reading, written

POLICY = manifests.REPOSITORY / "daemonset" / "jobset" / "policy.yaml"


def paths(obj: written.Json) -> list[str]:
    """Return the paths of the controller's problems."""
    try:
        return [each.path for each in validation.problems(reading.jobset(written.there(obj)))]
    except InvalidFieldError as error:
        return [error.where]


@pytest.mark.parametrize("case", refused.CASES, ids=lambda case: case.name)
def test_jobset_refused_by_api_server_has_problem_at_path(case: refused.Case) -> None:
    assert case.path in paths(case.refused)


@pytest.mark.parametrize("case", refused.CASES, ids=lambda case: case.name)
def test_allowed_jobset_has_no_problem(case: refused.Case) -> None:
    assert paths(case.allowed) == []


def test_problem_has_path_message_and_hint() -> None:
    (problem,) = validation.problems(reading.jobset(written.there(written.jobset(written.replicated(replicas=-1)))))
    assert str(problem) == "spec.replicatedJobs[0].replicas: cannot be negative; write 0 or more"


def test_all_problems_are_reported() -> None:
    worse = written.failing({"action": "RestartJob", "name": "1"}, jobs=(written.replicated("A", replicas=2000),))
    assert paths(worse) == [
        "spec.replicatedJobs[0].name",
        "spec.failurePolicy.rules[0].name",
        "spec.replicatedJobs[0].replicas",
    ]


def test_oversized_lists_are_not_traversed() -> None:
    """Traversing it would block everything for minutes; the sizes of the other lists are still reported."""
    jobs = tuple(written.replicated(f"W{index}") for index in range(20_000))
    rules = tuple({"action": "FailJobSet", "name": "1"} for _ in range(20_000))
    assert paths(written.failing(*rules, jobs=jobs)) == ["spec.replicatedJobs", "spec.failurePolicy.rules"]


def test_defaulted_rule_name_must_be_unique() -> None:
    """Only in the controller: the policy cannot use a rule's index."""
    assert paths(written.failing({"action": "FailJobSet"}, {"action": "FailJobSet", "name": "failurePolicyRule0"})) == [
        "spec.failurePolicy.rules[0].name",
        "spec.failurePolicy.rules[1].name",
    ]


@given(st.sampled_from(test_reading.places(test_reading.JOBSET)), test_reading.ANY_JSON)
def test_any_readable_jobset_can_be_validated(place: tuple[str | int, ...], other: Any) -> None:
    try:
        found = reading.jobset(test_reading.with_other(test_reading.JOBSET, place, other))
    except InvalidFieldError:
        return
    assert all(str(problem).startswith("spec.") for problem in validation.problems(found))


def test_limits_equal_those_of_policy() -> None:
    text = " ".join(POLICY.read_text().split())
    for bound in (
        f"size(variables.jobs) <= {limits.REPLICATED_JOBS}",
        f".sum() <= {limits.JOBS}",
        f"size(variables.rules) <= {limits.RULES}",
        f".sum() <= {limits.CLAIMS}",
        f".sum() <= {limits.PATTERNS_LENGTH}",
        f"j.?replicas.orValue(1) <= {limits.RESTARTED_JOBS}",
        f"size(r.name) <= {limits.RULE_NAME_LENGTH}",
        f"matches('^{limits.DNS_1035.pattern}$')",
        f"matches('^{limits.RULE_NAME.pattern}$')",
    ):
        assert bound in text
    (reasons,) = re.findall(r"reason in (\[.*?\])", text)
    assert set(yaml.safe_load(reasons)) == limits.REASONS


def test_every_policy_rule_has_a_case() -> None:
    policy = next(yaml.safe_load_all(POLICY.read_text()))
    answers = [*(case.answer for case in refused.BY_POLICY), *(change.answer for change in refused_changes.BY_POLICY)]
    unreported = [
        each["message"] for each in policy["spec"]["validations"] if not any(one in each["message"] for one in answers)
    ]
    assert unreported == []
