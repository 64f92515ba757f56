"""Reconcile one JobSet: the order of upstream's reconcile, with kubemend's rounds in it. Pure.

Source: ``pkg/controllers/jobset_controller.go``. The order matters: a failure is handled before a success, and both
before anything is created. The Jobs that a restart makes obsolete are deleted in the next reconcile, once the status
has the restart. Unlike upstream, suspending comes before creating.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from kubemend.controller.jobset import children, conditions
from kubemend.controller.jobset.children import buckets, naming, volume_claims
from kubemend.controller.jobset.children.buckets import Buckets
from kubemend.controller.jobset.plan import (
    CreateClaim,
    CreateJob,
    CreateService,
    DeleteJob,
    DeleteJobSet,
    ObservedState,
    Plan,
    Write,
)
from kubemend.controller.jobset.policy import (
    failure_policy,
    in_place,
    startup,
    success,
    suspension,
    template_drift,
)
from kubemend.controller.jobset.spec import model, validation
from kubemend.controller.jobset.spec.model import (
    ChildJob,
    JobSet,
    ReplicatedJob,
    ReplicatedJobStatus,
    RestartStrategy,
    Status,
)
from kubemend.controller.jobset.status_builder import StatusBuilder

_JOBS_READY: Final = "JobsReady"
_JOBS_READY_MESSAGE: Final = "all jobs are ready"


def decide(observed: ObservedState) -> Plan:
    """Return the writes, status and Events; nothing for a JobSet that is being deleted or has another ``managedBy``."""
    jobset = observed.jobset
    if jobset.deleting or jobset.spec.managed_by != model.MANAGED_BY:
        return Plan()
    draft = StatusBuilder(jobset.status, now=observed.now)
    in_place.account(observed, draft=draft)
    if conditions.is_finished(jobset.status):
        return _finished(observed, draft)
    if problems := validation.problems(jobset):
        validation.refuse(problems, draft=draft)
        return _invalid(observed, draft)
    validation.accept(draft)
    volume_claims.set_condition(observed, draft=draft)
    return _unfinished(observed, draft)


def _finished(observed: ObservedState, draft: StatusBuilder) -> Plan:
    """Delete only running Jobs. Finished ones stay for inspection until the JobSet is deleted."""
    jobset = observed.jobset
    jobs = buckets.sort(draft.status, observed.jobs)
    _count(jobset, jobs, draft)
    running = [job for job in (*jobs.active, *jobs.previous) if job.end is None]
    ends_at = _ttl_ends_at(jobset, draft.status)
    if ends_at is None or ends_at > observed.now:
        return draft.plan(_deletions(running), wake_at=ends_at)
    return draft.plan(_deletions(running), (DeleteJobSet(),))


def _ttl_ends_at(jobset: JobSet, status: Status) -> float | None:
    """Return the Unix time at which ``ttlSecondsAfterFinished`` is over; None without one.

    A JobSet without the time at which it finished is kept: upstream's reconcile (``ttl_after_finished.go``) fails on it
    indefinitely.
    """
    end = conditions.finished(status)
    if jobset.spec.ttl_seconds is None or end is None or not end.since:
        return None
    return end.since + jobset.spec.ttl_seconds


def _invalid(observed: ObservedState, draft: StatusBuilder) -> Plan:
    """Only suspend. Kueue preempts by suspending, and waits until no Job is counted as active."""
    jobset = observed.jobset
    if not jobset.spec.suspend:
        return draft.plan()
    jobs = buckets.sort(draft.status, observed.jobs)
    _count(jobset, jobs, draft)
    return draft.plan(_stops(jobs, draft))


def _unfinished(observed: ObservedState, draft: StatusBuilder) -> Plan:
    jobset = observed.jobset
    apart = template_drift.partition(jobset, buckets.sort(draft.status, observed.jobs))
    jobs = apart.buckets
    counts = _count(jobset, jobs, draft)
    deletions = _deletions(jobs.previous)
    if not jobset.spec.suspend and buckets.all_ready(jobset, counts):
        draft.set_condition(conditions.RESTARTING, is_so=False, reason=_JOBS_READY, message=_JOBS_READY_MESSAGE)
    if jobs.failed:
        failure_policy.apply(jobset, jobs, draft=draft)
        in_place.supersede(observed, draft=draft)
        return draft.plan(deletions)
    if success.is_met(jobset.spec, jobs.successful):
        success.complete(draft)
        return draft.plan(deletions)
    creations = _creations(jobset, jobs, counts, draft)
    if jobset.spec.suspend:
        return draft.plan(_stops(jobs, draft), _needs(observed), *creations)
    changed = suspension.resume(jobset, jobs, counts, draft=draft)
    if not jobs.previous:  # else the round would be refused: request it when all Jobs exist again
        changed += template_drift.resets(jobset, apart.to_reset)
    in_place.end_if_spent(observed, draft=draft)
    return draft.plan(deletions, _needs(observed), *creations, *changed)


def _count(jobset: JobSet, jobs: Buckets, draft: StatusBuilder) -> tuple[ReplicatedJobStatus, ...]:
    """Bring replicatedJobsStatus up to date. Its order has no meaning, so a new order alone is not written."""
    counts = buckets.counted(jobset, jobs)
    if counts != tuple(sorted(draft.status.replicated_jobs, key=lambda each: each.name)):
        draft.change(replicated_jobs=counts)
    return counts


def _stops(jobs: Buckets, draft: StatusBuilder) -> tuple[Write, ...]:
    """Return the writes that stop all running Jobs of a suspended JobSet.

    Unlike upstream's, they come before the creations and are concurrent. A quota that lets no Job be created, or a Job
    that cannot be deleted, must not keep the others running.
    """
    return (*_deletions(jobs.previous), *suspension.suspend(jobs, draft=draft))


def _deletions(jobs: Sequence[ChildJob]) -> tuple[Write, ...]:
    return tuple(DeleteJob(job.name, job.uid) for job in jobs if not job.deleting)


def _needs(observed: ObservedState) -> tuple[Write, ...]:
    """Return the creations that Jobs depend on. Existing objects are neither fixed nor replaced."""
    jobset = observed.jobset
    needs: list[Write] = []
    if jobset.spec.network.dns_hostnames and not observed.has_service:
        needs.append(CreateService(jobset.spec.network.subdomain, children.service(jobset)))
    if jobset.spec.claim_policies:
        named = ((str(body["metadata"]["name"]), body) for body in children.claims(jobset))
        needs += [CreateClaim(name, body) for name, body in named if name not in observed.claims]
    return tuple(needs)


def _creations(
    jobset: JobSet, jobs: Buckets, counts: Sequence[ReplicatedJobStatus], draft: StatusBuilder
) -> tuple[tuple[Write, ...], ...]:
    """Return the creations, one replicated Job after another. Suspended Jobs are all created, in no order.

    With BlockingRecreate none is created while a Job of a previous run exists.
    """
    in_order = startup.is_in_order(jobset) and not jobset.spec.suspend
    turn = startup.turn(jobset, counts, in_order=in_order)
    if turn.waits:
        startup.in_progress(draft)
    elif in_order:
        startup.completed(draft)
    if jobs.previous and _blocks(jobset):
        return ()
    taken = jobs.names
    return tuple(tuple(_missing(jobset, each, taken, draft)) for each in turn.now)


def _blocks(jobset: JobSet) -> bool:
    policy = jobset.spec.failure
    return policy is not None and policy.strategy is RestartStrategy.BLOCKING_RECREATE


def _missing(
    jobset: JobSet, replicated_job: ReplicatedJob, taken: frozenset[str], draft: StatusBuilder
) -> Iterator[CreateJob]:
    """Yield the creations of missing Jobs; bodies are built for these only, because there may be thousands."""
    names = {
        index: naming.job_name(jobset.name, replicated_job.name, index) for index in range(replicated_job.replicas)
    }
    missing = {index: name for index, name in names.items() if name not in taken}
    if not missing:
        return
    builder = children.JobBuilder(jobset, replicated_job, attempt=draft.status.restarts)
    restarts = next(each.job_restarts for each in draft.status.replicated_jobs if each.name == replicated_job.name)
    for index, name in missing.items():
        job_attempt = restarts[index] if index < len(restarts) else 0
        yield CreateJob(name, builder.job(index, job_attempt=job_attempt))
