"""Rules about the success, failure and startup policies."""

import collections
from collections.abc import Iterable, Iterator

from kubemend.controller.jobset.spec.model import Action, FailurePolicy, FailureRule, Spec, StartupOrder
from kubemend.controller.jobset.spec.validation import limits
from kubemend.controller.jobset.spec.validation.problem import Problem

_RESTARTS_JOBS = frozenset({Action.RESTART_JOB, Action.RESTART_JOB_AND_IGNORE})
_RULES = "spec.failurePolicy.rules"


def sizes(spec: Spec) -> Iterator[Problem]:
    """Yield the problems of too many items."""
    rules = spec.failure.rules if spec.failure is not None else ()
    if len(rules) > limits.RULES:
        yield Problem(_RULES, "there are too many rules", f"keep to {limits.RULES} rules")
    if sum(len(pattern) + 1 for rule in rules for pattern in rule.patterns) > limits.PATTERNS_LENGTH:
        hint = f"keep all onJobFailureMessagePatterns to {limits.PATTERNS_LENGTH} characters together"
        yield Problem(_RULES, "their patterns are too long", hint)


def problems(spec: Spec) -> Iterator[Problem]:
    """Yield the problems of the policies."""
    names = frozenset(each.name for each in spec.replicated_jobs)
    if spec.startup is StartupOrder.IN_ORDER and any(each.depends_on for each in spec.replicated_jobs):
        message = "InOrder and dependsOn exclude each other"
        yield Problem("spec.startupPolicy", message, "use one of them to set the order of replicated Jobs")
    yield from _targets(spec.success.targets, "spec.successPolicy", names=names)
    if spec.failure is not None:
        yield from _failure(spec.failure, spec, names=names)


def _failure(policy: FailurePolicy, spec: Spec, *, names: frozenset[str]) -> Iterator[Problem]:
    called = collections.Counter(rule.name for rule in policy.rules)
    for index, rule in enumerate(policy.rules):
        path = f"{_RULES}[{index}]"
        yield from _name(rule.name, f"{path}.name", times=called[rule.name])
        yield from _reasons(rule, path)
        yield from _targets(rule.targets, path, names=names)
    if any(rule.action in _RESTARTS_JOBS for rule in policy.rules):
        for index, job in enumerate(spec.replicated_jobs):
            if job.replicas > limits.RESTARTED_JOBS:
                hint = f"keep to {limits.RESTARTED_JOBS} replicas, or restart the JobSet instead of single Jobs"
                yield Problem(
                    f"spec.replicatedJobs[{index}].replicas",
                    "there are too many replicas to count restarts of each",
                    hint,
                )


def _name(name: str, path: str, *, times: int) -> Iterator[Problem]:
    if len(name) > limits.RULE_NAME_LENGTH or not limits.RULE_NAME.fullmatch(name):
        hint = f"use at most {limits.RULE_NAME_LENGTH} letters, digits and '_,:', a letter first and none of ',:' last"
        yield Problem(path, f"{name[: limits.RULE_NAME_LENGTH]!r} cannot be part of a condition's reason", hint)
    if times > 1:
        yield Problem(path, "several rules have this name", "give each its own")


def _reasons(rule: FailureRule, path: str) -> Iterator[Problem]:
    for index, reason in enumerate(rule.reasons):
        if reason not in limits.REASONS:
            hint = f"write one of {', '.join(sorted(limits.REASONS))}"
            yield Problem(f"{path}.onJobFailureReasons[{index}]", f"{reason!r} is not a reason of a failed Job", hint)


def _targets(targets: Iterable[str], path: str, *, names: frozenset[str]) -> Iterator[Problem]:
    for index, target in enumerate(targets):
        if target not in names:
            message = f"there is no replicated Job {target!r}"
            yield Problem(f"{path}.targetReplicatedJobs[{index}]", message, "name one of spec.replicatedJobs")
