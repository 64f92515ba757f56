"""JobSets, Jobs and rounds for tests of the decisions, and what a decision makes of a world once it is carried out."""

import copy
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from controller.jobset import changes, decide, model, reading
from controller.jobset.model import (
    Action,
    ChildJob,
    Condition,
    Dependency,
    DependencyStatus,
    FailurePolicy,
    FailureRule,
    JobEnd,
    JobSet,
    Network,
    ReplicatedJob,
    ReplicatedJobStatus,
    RestartStrategy,
    RoundView,
    Spec,
    StartupOrder,
    Status,
)
from controller.jobset.plan import (
    AnnotateJob,
    CreateClaim,
    CreateJob,
    CreateService,
    DeleteJob,
    Plan,
    ResumeJob,
    SuspendJob,
    World,
    Write,
)

NOW: Final = 1_700_000_000.0
CREATED: Final = NOW - 1000.0
IN_PLACE: Final = FailurePolicy(max_restarts=3, strategy=RestartStrategy.IN_PLACE)
RESTARTING: Final = "RestartingJobSet"


def template(**pod: Any) -> dict[str, Any]:
    """A JobTemplateSpec that any strategy allows: a Job of one pod."""
    spec = {"restartPolicy": "OnFailure", "containers": [{"name": "main", "image": "train:1"}], **pod}
    return {
        "spec": {
            "parallelism": 1,
            "completions": 1,
            "completionMode": "Indexed",
            "backoffLimit": 2**31 - 1,
            "podReplacementPolicy": "Failed",
            "template": {"spec": spec},
        }
    }


def replicated(name: str = "w", replicas: int = 2, **changes_: Any) -> ReplicatedJob:
    """A replicated Job."""
    return replace(ReplicatedJob(name=name, replicas=replicas, template=template()), **changes_)


def jobset(*replicated_jobs: ReplicatedJob, status: Status | None = None, **spec: Any) -> JobSet:
    """A JobSet of ours, ``js``; keywords are fields of its spec."""
    return JobSet(
        namespace="team",
        name="js",
        uid="uid-js",
        spec=Spec(
            replicated_jobs=replicated_jobs or (replicated(),),
            network=Network(subdomain="js"),
            managed_by=model.MANAGED_BY,
            **spec,
        ),
        status=status or Status(),
        generation=1,
        created_at=CREATED,
    )


def job(name: str, **fields: Any) -> ChildJob:
    """A Job of the JobSet's first run, by its name without the JobSet's: ``w-0``."""
    replicated_job, _, index = name.rpartition("-")
    told: dict[str, Any] = {
        "replicated_job": replicated_job,
        "index": int(index),
        "attempt": 0,
        "job_attempt": 0,
        "completions": 1,
        **fields,
    }
    return ChildJob(name=f"js-{name}", uid=f"uid-{name}", **told)


def ready(name: str, **fields: Any) -> ChildJob:
    """A Job whose pod runs and is ready."""
    return job(name, **{"active": 1, "ready": 1, "started": True, **fields})


def succeeded(name: str, **fields: Any) -> ChildJob:
    """A Job that completed."""
    return job(name, **{"succeeded": 1, "started": True, "end": JobEnd(failed=False, at=NOW - 1), **fields})


def failed(
    name: str, reason: str = "BackoffLimitExceeded", message: str = "", at: float = NOW - 1, **fields: Any
) -> ChildJob:
    """A Job that failed."""
    end = JobEnd(failed=True, reason=reason, message=message, at=at)
    return job(name, **{"failed": 1, "started": True, "end": end, **fields})


def rule(action: Action, name: str = "r", **fields: Any) -> FailureRule:
    """A rule of a failure policy."""
    return FailureRule(name=name, action=action, **fields)


def depends(on: str, status: DependencyStatus = DependencyStatus.READY) -> tuple[Dependency, ...]:
    """``dependsOn`` with one item."""
    return (Dependency(on, status),)


def condition(
    kind: str, *, status: bool = True, reason: str = "R", message: str = "m", since: float = 5.0
) -> Condition:
    """A condition that has been there."""
    return Condition(kind, status=status, reason=reason, message=message, since=since)


def round_(attempt: int, **fields: Any) -> RoundView:
    """A round that a fault caused and in which all ran again."""
    told: dict[str, Any] = {
        "counted": True,
        "started_at": NOW - 60 + attempt,
        "ended_at": NOW - 59 + attempt,
        "restarted": True,
        "seconds": 0.412,
        **fields,
    }
    return RoundView(name=f"js-{attempt}-abcd", attempt=attempt, **told)


def under_way(attempt: int, **fields: Any) -> RoundView:
    """A round that is on."""
    return round_(attempt, **{"ended_at": None, "restarted": False, "seconds": 0.0, **fields})


def world(owner: JobSet, *jobs: ChildJob, **fields: Any) -> World:
    """A world in which the Service is there already."""
    return World(jobset=owner, jobs=jobs, **{"now": NOW, "has_service": True, **fields})


def settled(owner: JobSet, *jobs: ChildJob, **fields: Any) -> World:
    """A world whose status already tells what is to be seen, with Jobs that were made of the templates."""
    made = {each.name: str(changes.made_of(each)) for each in owner.spec.replicated_jobs}
    marked = tuple(replace(each, made_of=made.get(each.replicated_job, "")) for each in jobs)
    return carried_out(world(owner, *marked, **fields))


def carried_out(before: World, *, most: int = 20) -> World:
    """Decide and do what was decided until nothing is left to do; Jobs that are deleted are gone at once."""
    for _ in range(most):
        plan = decide.decide(before)
        if not plan.writes and plan.status is None:
            return before
        before = applied(before, plan)
    raise AssertionError(f"still something to do after {most} looks: {plan}")


def with_spec(before: World, **spec: Any) -> World:
    """The world after somebody has changed the JobSet's spec."""
    owner = before.jobset
    changed = replace(owner, spec=replace(owner.spec, **spec), generation=owner.generation + 1)
    return replace(before, jobset=changed)


def applied(before: World, plan: Plan) -> World:
    """The world once the plan is carried out."""
    after = before
    if plan.status is not None:
        after = replace(after, jobset=replace(after.jobset, status=plan.status))
    for group in plan.writes:
        for write in group:
            after = _written(after, write)
    return after


def _written(before: World, write: Write) -> World:
    match write:
        case CreateJob(name, body):
            assert name not in {each.name for each in before.jobs}, f"{name} is there already"
            return replace(before, jobs=(*before.jobs, _created(body)))
        case DeleteJob(name, uid):
            assert any(each.name == name and each.uid == uid for each in before.jobs), f"{name} is not there"
            return replace(before, jobs=tuple(each for each in before.jobs if each.name != name))
        case SuspendJob(name):
            stopped = {"suspended": True, "active": 0, "ready": 0, "template": {}}
            return _changed(before, name, **stopped)
        case ResumeJob(name):
            return _changed(before, name, suspended=False, template=None)
        case AnnotateJob(name, _, annotations):
            return _changed(before, name, made_of=annotations["kubemend.io/made-of"])
        case CreateService():
            return replace(before, has_service=True)
        case CreateClaim(name):
            return replace(before, claims=before.claims | {name})
    return before


def _changed(before: World, name: str, **fields: Any) -> World:
    jobs = tuple(replace(each, **fields) if each.name == name else each for each in before.jobs)
    return replace(before, jobs=jobs)


def _created(body: Mapping[str, Any]) -> ChildJob:
    whole = copy.deepcopy(dict(body))
    whole["metadata"]["uid"] = (
        f"uid-{whole['metadata']['name']}-{whole['metadata']['labels']['jobset.sigs.k8s.io/restart-attempt']}"
    )
    return reading.job(whole)


def names(plan: Plan, kind: type[Any]) -> list[str]:
    """The names in the plan's writes of a kind, in their order."""
    return [write.name for group in plan.writes for write in group if isinstance(write, kind)]


def told(plan: Plan) -> list[tuple[str, str, str]]:
    """The plan's events."""
    return [(each.type.value, each.reason, each.message) for each in plan.events]


def said(plan: Plan, kind: str) -> tuple[bool, str, str] | None:
    """What the plan's new status says in a condition: its status, reason and message."""
    assert plan.status is not None, "the status does not change"
    found = plan.status.condition(kind)
    return None if found is None else (found.status, found.reason, found.message)


def counts(plan: Plan) -> dict[str, ReplicatedJobStatus]:
    """The plan's replicatedJobsStatus by name."""
    assert plan.status is not None, "the status does not change"
    return {each.name: each for each in plan.status.replicated_jobs}


def in_order(*replicated_jobs: ReplicatedJob, **spec: Any) -> JobSet:
    """A JobSet whose replicated Jobs start one after another."""
    return jobset(*replicated_jobs, startup=StartupOrder.IN_ORDER, **spec)


def names_of(jobs: Iterable[ChildJob]) -> list[str]:
    """The Jobs' names."""
    return [each.name for each in jobs]
