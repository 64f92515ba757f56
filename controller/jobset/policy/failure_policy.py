"""Apply the failure policy to failed Jobs. Pure. Source: upstream's failure_policy.go, and its KEP-262."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from kubemend.controller.jobset import conditions
from kubemend.controller.jobset.children.buckets import Buckets
from kubemend.controller.jobset.plan import EventType
from kubemend.controller.jobset.spec import patterns
from kubemend.controller.jobset.spec.model import (
    Action,
    ChildJob,
    FailurePolicy,
    FailureRule,
    JobSet,
    ReplicatedJob,
    ReplicatedJobStatus,
    Status,
)
from kubemend.controller.jobset.status_builder import StatusBuilder

FAILED_JOBS: Final = "FailedJobs"
REACHED_MAX_RESTARTS: Final = "ReachedMaxRestarts"
REACHED_MAX_RESTARTS_MESSAGE: Final = "jobset failed due to reaching max number of restarts"

_FAILED_JOBS_MESSAGE: Final = "jobset failed due to one or more job failures"
_DEFAULT_POLICY: Final = "DefaultFailurePolicy"
_JOBSET_FAILED: Final = "JobSetFailed"
_OF_A_JOB: Final = frozenset({Action.RESTART_JOB, Action.RESTART_JOB_AND_IGNORE})
_IGNORING: Final = frozenset({Action.RESTART_JOBSET_AND_IGNORE, Action.RESTART_JOB_AND_IGNORE})


def apply(jobset: JobSet, jobs: Buckets, *, draft: StatusBuilder) -> None:
    """Apply the policy to the failed Jobs of this run (at least one): one action per reconcile."""
    failed = jobs.failed
    policy = jobset.spec.failure
    if policy is None:
        fail(draft, reason=FAILED_JOBS, message=_named(_FAILED_JOBS_MESSAGE, first(failed)))
        return
    _warn_of_invalid(policy, draft)
    rule, job = match(policy, failed)
    action = Action.RESTART_JOBSET if rule is None else rule.action
    message = _named(f"applying {action.value} failure policy action", job)
    if action is Action.FAIL_JOBSET:
        fail(draft, reason=_reason(action), message=message)
    elif action not in _IGNORING and counted_restarts(draft.status) >= policy.max_restarts:
        fail(draft, reason=REACHED_MAX_RESTARTS, message=_named(REACHED_MAX_RESTARTS_MESSAGE, job))
    else:
        _restart(jobset, job, jobs=jobs, action=action, rule=rule, message=message, draft=draft)


def match(policy: FailurePolicy, failed: Sequence[ChildJob]) -> tuple[FailureRule | None, ChildJob]:
    """Return the first rule that any of these Jobs matches, and the one of those that failed first.

    If no rule matches: None, and the Job that failed first of all.
    """
    for rule in policy.rules:
        met = [job for job in failed if _meets(job, rule)]
        if met:
            return rule, first(met)
    return None, first(failed)


def first(failed: Sequence[ChildJob]) -> ChildJob:
    """Return the Job that failed first. Upstream leaves a tie to chance; here the names decide."""
    return min(failed, key=lambda job: (job.end.at if job.end is not None else 0.0, job.name))


def fail(draft: StatusBuilder, *, reason: str, message: str) -> None:
    """Set the conditions of a failed JobSet."""
    draft.set_condition(conditions.FAILED, is_so=True, reason=reason, message=message, event=EventType.WARNING)
    draft.set_condition(conditions.RESTARTING, is_so=False, reason=_JOBSET_FAILED, message="jobset failed")
    draft.change(terminal_state=conditions.FAILED)
    draft.count("failed")


def counted_restarts(status: Status) -> int:
    """Return the restarts that count against ``maxRestarts``: of the JobSet and of single Jobs."""
    return status.restarts_counted + sum(sum(each.job_restarts_counted) for each in status.replicated_jobs)


def _meets(job: ChildJob, rule: FailureRule) -> bool:
    """Return whether a failed Job matches a rule. A Job without the label of its replicated Job matches none."""
    if job.end is None or not job.replicated_job:
        return False
    if rule.reasons and job.end.reason not in rule.reasons:
        return False
    if rule.targets and job.replicated_job not in rule.targets:
        return False
    return not rule.patterns or patterns.any_matches(rule.patterns, job.end.message)


def _restart(
    jobset: JobSet,
    job: ChildJob,
    *,
    jobs: Buckets,
    action: Action,
    rule: FailureRule | None,
    message: str,
    draft: StatusBuilder,
) -> None:
    if action in _OF_A_JOB and (one := _replicated_job(jobset, job)) is not None:
        _restart_job(one, job, counts=action not in _IGNORING, draft=draft)
    else:
        _restart_all(jobs, counts=action not in _IGNORING, rule=rule, message=message, draft=draft)
    draft.add_event(EventType.WARNING, reason=_reason(action), message=message)


def _replicated_job(jobset: JobSet, job: ChildJob) -> ReplicatedJob | None:
    """Return the replicated Job to which a Job belongs; None if its labels do not have that, or not its attempt.

    Then it cannot be restarted alone, so all Jobs are. Upstream returns an error, indefinitely. For one without its
    attempt upstream never notices that it was restarted, and restarts it again and again.
    """
    if job.job_attempt is None:
        return None
    found = (each for each in jobset.spec.replicated_jobs if each.name == job.replicated_job)
    return next((each for each in found if job.index is not None and job.index < each.replicas), None)


def _restart_all(jobs: Buckets, *, counts: bool, rule: FailureRule | None, message: str, draft: StatusBuilder) -> None:
    """Begin a run with a number above every Job's: a status that was lost or restored may have too low a count."""
    status = draft.status
    newest = max((job.attempt or 0 for job in jobs.of_this_run), default=0)
    restarts = max(status.restarts, newest) + 1
    draft.change(restarts=restarts, restarts_counted=status.restarts_counted + counts)
    reason = _DEFAULT_POLICY if rule is None else f"FailurePolicy_{rule.name}"
    draft.set_condition(conditions.RESTARTING, is_so=True, reason=reason, message=message, event=EventType.WARNING)
    draft.count("restarted")


def _restart_job(replicated_job: ReplicatedJob, job: ChildJob, *, counts: bool, draft: StatusBuilder) -> None:
    draft.change(
        replicated_jobs=tuple(
            each if each.name != replicated_job.name else _one_more(each, replicated_job, job=job, counts=counts)
            for each in draft.status.replicated_jobs
        )
    )
    draft.count("restarted_job")


def _one_more(
    status: ReplicatedJobStatus, replicated_job: ReplicatedJob, *, job: ChildJob, counts: bool
) -> ReplicatedJobStatus:
    assert job.index is not None, job.name
    restarts = _padded(status.job_restarts, replicated_job)
    restarts[job.index] = max(restarts[job.index], job.job_attempt or 0) + 1
    status = replace(status, job_restarts=tuple(restarts))
    if not counts:
        return status
    counted = _padded(status.job_restarts_counted, replicated_job)
    counted[job.index] += 1
    return replace(status, job_restarts_counted=tuple(counted))


def _padded(numbers: Sequence[int], replicated_job: ReplicatedJob) -> list[int]:
    return [*numbers, *[0] * (replicated_job.replicas - len(numbers))]


def _warn_of_invalid(policy: FailurePolicy, draft: StatusBuilder) -> None:
    for rule in policy.rules:
        for pattern in patterns.invalid(rule.patterns):
            draft.warn(
                f"rule {rule.name}: {pattern[:80]!r} is not a valid RE2 pattern and matches nothing. Fix the pattern"
            )


def _reason(action: Action) -> str:
    return f"{action.value}FailurePolicyAction"


def _named(message: str, job: ChildJob) -> str:
    return f"{message} {conditions.FIRST_FAILED_JOB.format(job.name)}"
