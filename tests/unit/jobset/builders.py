"""JobSets, Jobs and rounds for tests of decisions, and the observed after a decision is applied."""

import copy
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from kubemend.controller.jobset import decide
from kubemend.controller.jobset.plan import (
    AnnotateJob,
    CreateClaim,
    CreateJob,
    CreateService,
    DeleteJob,
    ObservedState,
    Plan,
    ResumeJob,
    SuspendJob,
    Write,
)
from kubemend.controller.jobset.policy import template_changes
from kubemend.controller.jobset.spec import model, reading
from kubemend.controller.jobset.spec.model import (
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

NOW: Final = 1_700_000_000.0
CREATED: Final = NOW - 1000.0
IN_PLACE: Final = FailurePolicy(max_restarts=3, strategy=RestartStrategy.IN_PLACE)
RESTARTING: Final = "RestartingJobSet"


def template(**pod: Any) -> dict[str, Any]:
    """Return a JobTemplateSpec that any strategy allows: a Job of one pod."""
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
    """Return a replicated Job."""
    return replace(ReplicatedJob(name=name, replicas=replicas, template=template()), **changes_)


def jobset(*replicated_jobs: ReplicatedJob, status: Status | None = None, **spec: Any) -> JobSet:
    """Return a managed JobSet, ``js``; keywords are fields of its spec."""
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
    """Return a Job of the JobSet's first run, by its name without the JobSet's: ``w-0``."""
    replicated_job, _, index = name.rpartition("-")
    values: dict[str, Any] = {
        "replicated_job": replicated_job,
        "index": int(index),
        "attempt": 0,
        "job_attempt": 0,
        "completions": 1,
        **fields,
    }
    return ChildJob(name=f"js-{name}", uid=f"uid-{name}", **values)


def ready(name: str, **fields: Any) -> ChildJob:
    """Return a Job whose pod runs and is ready."""
    return job(name, **{"active": 1, "ready": 1, "started": True, **fields})


def succeeded(name: str, **fields: Any) -> ChildJob:
    """Return a completed Job."""
    return job(name, **{"succeeded": 1, "started": True, "end": JobEnd(failed=False, at=NOW - 1), **fields})


def failed(
    name: str, reason: str = "BackoffLimitExceeded", message: str = "", at: float = NOW - 1, **fields: Any
) -> ChildJob:
    """Return a failed Job."""
    end = JobEnd(failed=True, reason=reason, message=message, at=at)
    return job(name, **{"failed": 1, "started": True, "end": end, **fields})


def rule(action: Action, name: str = "r", **fields: Any) -> FailureRule:
    """Return a rule of a failure policy."""
    return FailureRule(name=name, action=action, **fields)


def depends(on: str, status: DependencyStatus = DependencyStatus.READY) -> tuple[Dependency, ...]:
    """Return ``dependsOn`` with one item."""
    return (Dependency(on, status),)


def condition(
    kind: str, *, status: bool = True, reason: str = "R", message: str = "m", since: float = 5.0
) -> Condition:
    """Return an existing condition."""
    return Condition(kind, status=status, reason=reason, message=message, since=since)


def round_(attempt: int, **fields: Any) -> RoundView:
    """Return a round caused by a fault, after which all members ran again."""
    values: dict[str, Any] = {
        "counted": True,
        "started_at": NOW - 60 + attempt,
        "ended_at": NOW - 59 + attempt,
        "restarted": True,
        "seconds": 0.412,
        **fields,
    }
    return RoundView(name=f"js-{attempt}-abcd", attempt=attempt, **values)


def under_way(attempt: int, **fields: Any) -> RoundView:
    """Return a round under way."""
    return round_(attempt, **{"ended_at": None, "restarted": False, "seconds": 0.0, **fields})


def observed(owner: JobSet, *jobs: ChildJob, **fields: Any) -> ObservedState:
    """Return a observed in which the Service exists already."""
    return ObservedState(jobset=owner, jobs=jobs, **{"now": NOW, "has_service": True, **fields})


def settled(owner: JobSet, *jobs: ChildJob, **fields: Any) -> ObservedState:
    """Return a observed with an up-to-date status and Jobs created from the templates."""
    made = {each.name: str(template_changes.made_of(each)) for each in owner.spec.replicated_jobs}
    marked = tuple(replace(each, made_of=made.get(each.replicated_job, "")) for each in jobs)
    return carried_out(observed(owner, *marked, **fields))


def carried_out(before: ObservedState, *, most: int = 20) -> ObservedState:
    """Decide and apply until nothing is left to do; deleted Jobs disappear at once."""
    for _ in range(most):
        plan = decide.decide(before)
        if not plan.writes and plan.status is None:
            return before
        before = applied(before, plan)
    raise AssertionError(f"still something to do after {most} reconciles: {plan}")


def with_spec(before: ObservedState, **spec: Any) -> ObservedState:
    """Return the observed after a change of the JobSet's spec."""
    owner = before.jobset
    changed = replace(owner, spec=replace(owner.spec, **spec), generation=owner.generation + 1)
    return replace(before, jobset=changed)


def applied(before: ObservedState, plan: Plan) -> ObservedState:
    """Return the observed after the plan is applied."""
    after = before
    if plan.status is not None:
        after = replace(after, jobset=replace(after.jobset, status=plan.status))
    for group in plan.writes:
        for write in group:
            after = _written(after, write)
    return after


def _written(before: ObservedState, write: Write) -> ObservedState:
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


def _changed(before: ObservedState, name: str, **fields: Any) -> ObservedState:
    jobs = tuple(replace(each, **fields) if each.name == name else each for each in before.jobs)
    return replace(before, jobs=jobs)


def _created(body: Mapping[str, Any]) -> ChildJob:
    whole = copy.deepcopy(dict(body))
    whole["metadata"]["uid"] = (
        f"uid-{whole['metadata']['name']}-{whole['metadata']['labels']['jobset.sigs.k8s.io/restart-attempt']}"
    )
    return reading.job(whole)


def names(plan: Plan, kind: type[Any]) -> list[str]:
    """Return the names in the plan's writes of a kind, in their order."""
    return [write.name for group in plan.writes for write in group if isinstance(write, kind)]


def events(plan: Plan) -> list[tuple[str, str, str]]:
    """Return the plan's Events."""
    return [(each.type.value, each.reason, each.message) for each in plan.events]


def new_condition(plan: Plan, kind: str) -> tuple[bool, str, str] | None:
    """Return a condition in the plan's new status: its status, reason and message."""
    assert plan.status is not None, "the status does not change"
    found = plan.status.condition(kind)
    return None if found is None else (found.status, found.reason, found.message)


def counts(plan: Plan) -> dict[str, ReplicatedJobStatus]:
    """Return the plan's replicatedJobsStatus by name."""
    assert plan.status is not None, "the status does not change"
    return {each.name: each for each in plan.status.replicated_jobs}


def in_order(*replicated_jobs: ReplicatedJob, **spec: Any) -> JobSet:
    """Return a JobSet whose replicated Jobs start one after another."""
    return jobset(*replicated_jobs, startup=StartupOrder.IN_ORDER, **spec)


def names_of(jobs: Iterable[ChildJob]) -> list[str]:
    """Return the Jobs' names."""
    return [each.name for each in jobs]
