"""What one look at a JobSet comes to: the order of upstream's reconcile, with our rounds in it. Pure.

Source: ``pkg/controllers/jobset_controller.go``. The order matters: a failure is looked at before a success, both
before anything is created, and what a restart leaves to be deleted goes in the next look, once the status says so.
Other than there, what a suspension stops goes before what is created.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from controller.jobset import (
    buckets,
    building,
    claims,
    conditions,
    counting,
    failure,
    in_place,
    model,
    naming,
    renewal,
    startup,
    success,
    suspension,
    ttl,
    validation,
    validity,
)
from controller.jobset.buckets import Buckets
from controller.jobset.draft import Draft
from controller.jobset.model import ChildJob, JobSet, ReplicatedJob, ReplicatedJobStatus, RestartStrategy
from controller.jobset.plan import CreateClaim, CreateJob, CreateService, DeleteJob, DeleteJobSet, Plan, World, Write

_JOBS_READY: Final = "JobsReady"
_JOBS_READY_MESSAGE: Final = "all jobs are ready"


def decide(world: World) -> Plan:
    """Return what is to be written and told; nothing for a JobSet that is being deleted, or is not ours."""
    jobset = world.jobset
    if jobset.deleting or jobset.spec.managed_by != model.MANAGED_BY:
        return Plan()
    draft = Draft(jobset.status, now=world.now)
    in_place.account(world, draft=draft)
    if conditions.is_finished(jobset.status):
        return _finished(world, draft)
    if problems := validation.problems(jobset):
        validity.refuse(problems, draft=draft)
        return _invalid(world, draft)
    validity.accept(draft)
    claims.say(world, draft=draft)
    return _unfinished(world, draft)


def _finished(world: World, draft: Draft) -> Plan:
    """Only what runs is deleted: how Jobs ended stays to be looked at until the JobSet goes."""
    jobset = world.jobset
    jobs = buckets.sort(draft.status, world.jobs)
    _count(jobset, jobs, draft)
    running = [job for job in (*jobs.active, *jobs.previous) if job.end is None]
    ends_at = ttl.ends_at(jobset, draft.status)
    if ends_at is None or ends_at > world.now:
        return draft.plan(_deletions(running), wake_at=ends_at)
    return draft.plan(_deletions(running), (DeleteJobSet(),))


def _invalid(world: World, draft: Draft) -> Plan:
    """Only what has to stop does: Kueue preempts by suspending, and waits until no Job is counted as active."""
    jobset = world.jobset
    if not jobset.spec.suspend:
        return draft.plan()
    jobs = buckets.sort(draft.status, world.jobs)
    _count(jobset, jobs, draft)
    return draft.plan(_stops(jobs, draft))


def _unfinished(world: World, draft: Draft) -> Plan:
    jobset = world.jobset
    apart = renewal.told_apart(jobset, buckets.sort(draft.status, world.jobs))
    jobs = apart.buckets
    counts = _count(jobset, jobs, draft)
    deletions = _deletions(jobs.previous)
    if not jobset.spec.suspend and counting.all_ready(jobset, counts):
        draft.say(conditions.RESTARTING, is_so=False, reason=_JOBS_READY, message=_JOBS_READY_MESSAGE)
    if jobs.failed:
        failure.answer(jobset, jobs, draft=draft)
        in_place.supersede(world, draft=draft)
        return draft.plan(deletions)
    if success.is_met(jobset.spec, jobs.successful):
        success.complete(draft)
        return draft.plan(deletions)
    creations = _creations(jobset, jobs, counts, draft)
    if jobset.spec.suspend:
        return draft.plan(_stops(jobs, draft), _needs(world), *creations)
    changed = suspension.resume(jobset, jobs, counts, draft=draft)
    if not jobs.previous:  # else the round would be turned down: it is asked for when all are there again
        changed += renewal.resets(jobset, apart.to_reset)
    in_place.end_if_spent(world, draft=draft)
    return draft.plan(deletions, _needs(world), *creations, *changed)


def _count(jobset: JobSet, jobs: Buckets, draft: Draft) -> tuple[ReplicatedJobStatus, ...]:
    """Bring replicatedJobsStatus up to date. Its order says nothing, so a new order alone is not written."""
    counts = counting.counted(jobset, jobs)
    if counts != tuple(sorted(draft.status.replicated_jobs, key=lambda each: each.name)):
        draft.change(replicated_jobs=counts)
    return counts


def _stops(jobs: Buckets, draft: Draft) -> tuple[Write, ...]:
    """Return what stops all that runs of a suspended JobSet.

    Unlike upstream's it comes before what is created, side by side: a quota that lets no Job be created, or a Job that
    cannot be deleted, must not keep the others running.
    """
    return (*_deletions(jobs.previous), *suspension.suspend(jobs, draft=draft))


def _deletions(jobs: Sequence[ChildJob]) -> tuple[Write, ...]:
    return tuple(DeleteJob(job.name, job.uid) for job in jobs if not job.deleting)


def _needs(world: World) -> tuple[Write, ...]:
    """What Jobs need to be there before them. Neither is mended or replaced once it is."""
    jobset = world.jobset
    needs: list[Write] = []
    if jobset.spec.network.dns_hostnames and not world.has_service:
        needs.append(CreateService(jobset.spec.network.subdomain, building.service(jobset)))
    if jobset.spec.claim_policies:
        named = ((str(body["metadata"]["name"]), body) for body in building.claims(jobset))
        needs += [CreateClaim(name, body) for name, body in named if name not in world.claims]
    return tuple(needs)


def _creations(
    jobset: JobSet, jobs: Buckets, counts: Sequence[ReplicatedJobStatus], draft: Draft
) -> tuple[tuple[Write, ...], ...]:
    """Return the creations, replicated Job after replicated Job. Suspended Jobs are all created, in no order.

    With BlockingRecreate none is while a Job of a former run is there.
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


def _missing(jobset: JobSet, replicated_job: ReplicatedJob, taken: frozenset[str], draft: Draft) -> Iterator[CreateJob]:
    """Yield the creations of Jobs that are not there; bodies are built for these alone, for there may be thousands."""
    names = {
        index: naming.job_name(jobset.name, replicated_job.name, index) for index in range(replicated_job.replicas)
    }
    missing = {index: name for index, name in names.items() if name not in taken}
    if not missing:
        return
    mould = building.Mould(jobset, replicated_job, attempt=draft.status.restarts)
    restarts = next(each.job_restarts for each in draft.status.replicated_jobs if each.name == replicated_job.name)
    for index, name in missing.items():
        job_attempt = restarts[index] if index < len(restarts) else 0
        yield CreateJob(name, mould.job(index, job_attempt=job_attempt))
