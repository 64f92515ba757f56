"""One reconcile of a JobSet as a whole: its manager, the order of writes, and no repeated Events."""

from dataclasses import replace

import pytest

from kubemend.controller.jobset import children, decide
from kubemend.controller.jobset.plan import CreateClaim, CreateJob, CreateService, DeleteJob, Plan, ResumeJob
from kubemend.controller.jobset.spec.model import (
    ClaimPolicy,
    FailurePolicy,
    JobSet,
    Network,
    ReplicatedJobStatus,
    Status,
)
from tests.unit.jobset import builders


@pytest.mark.parametrize("manager", [None, "jobset.sigs.k8s.io/jobset-controller", "kueue.x-k8s.io/multikueue"])
def test_jobset_of_another_controller_is_ignored(manager: str | None) -> None:
    owner = builders.jobset(ttl_seconds=0)
    theirs = replace(owner, spec=replace(owner.spec, managed_by=manager))
    assert decide.decide(builders.observed(theirs, builders.failed("w-0"), has_service=False)) == Plan()


def test_jobset_being_deleted_is_ignored() -> None:
    owner = replace(builders.jobset(), deleting=True)
    assert decide.decide(builders.observed(owner, builders.failed("w-0"), has_service=False)) == Plan()


def test_new_jobset_gets_service_before_jobs() -> None:
    plan = decide.decide(builders.observed(builders.jobset(), has_service=False))
    assert [[type(write) for write in group] for group in plan.writes] == [[CreateService], [CreateJob, CreateJob]]
    assert builders.counts(plan) == {"w": ReplicatedJobStatus("w")}
    assert plan.events == ()


def test_replicated_jobs_are_created_in_order_of_spec() -> None:
    owner = builders.jobset(builders.replicated("b"), builders.replicated("a"))
    plan = decide.decide(builders.observed(owner))
    assert [[write.name for write in group if isinstance(write, CreateJob)] for group in plan.writes] == [
        ["js-b-0", "js-b-1"],
        ["js-a-0", "js-a-1"],
    ]


def test_no_service_without_dns_hostnames() -> None:
    owner = builders.jobset()
    network = Network(subdomain="js", dns_hostnames=False)
    plan = decide.decide(
        builders.observed(replace(owner, spec=replace(owner.spec, network=network)), has_service=False)
    )
    assert builders.names(plan, CreateService) == []


def claiming() -> JobSet:
    """Return a JobSet with two claims, both mounted."""
    mounts = [{"name": name, "mountPath": f"/{name}"} for name in ("data", "logs")]
    containers = [{"name": "main", "image": "train:1", "volumeMounts": mounts}]
    templates = tuple({"metadata": {"name": name}, "spec": {}} for name in ("data", "logs"))
    one = builders.replicated(template=builders.template(containers=containers))
    return builders.jobset(one, claim_policies=(ClaimPolicy(templates),))


def test_missing_claims_are_created_before_jobs() -> None:
    plan = decide.decide(builders.observed(claiming(), claims=frozenset({"data-js"})))
    assert builders.names(plan, CreateClaim) == ["logs-js"]
    assert [type(group[0]) for group in plan.writes] == [CreateClaim, CreateJob]


def test_existing_claims_are_kept() -> None:
    plan = decide.decide(builders.observed(claiming(), claims=frozenset({"data-js", "logs-js"})))
    assert builders.names(plan, CreateClaim) == []


def test_previous_jobs_are_deleted_before_creations() -> None:
    owner = builders.jobset(status=Status(restarts=1), failure=FailurePolicy(max_restarts=1))
    jobs = (builders.ready("w-0"), builders.job("w-1", attempt=1, suspended=True, template={}))
    plan = decide.decide(builders.observed(owner, *jobs, has_service=False))
    assert [type(group[0]) for group in plan.writes] == [DeleteJob, CreateService, ResumeJob]


def test_previous_jobs_are_deleted_when_a_failure_is_handled() -> None:
    owner = builders.jobset(status=Status(restarts=1), failure=FailurePolicy(max_restarts=1))
    plan = decide.decide(builders.observed(owner, builders.ready("w-0"), builders.failed("w-1", attempt=1)))
    assert [type(group[0]) for group in plan.writes] == [DeleteJob]
    assert plan.status is not None
    assert plan.status.restarts == 2


def test_deleted_job_is_recreated_once_gone() -> None:
    before = builders.settled(builders.jobset(), builders.ready("w-0"), builders.ready("w-1"))
    going = replace(before, jobs=(before.jobs[0], replace(before.jobs[1], deleting=True)))
    assert decide.decide(going).writes == ()
    assert builders.names(decide.decide(replace(before, jobs=before.jobs[:1])), CreateJob) == ["js-w-1"]


def test_settled_jobset_needs_nothing() -> None:
    before = builders.settled(builders.jobset(), builders.ready("w-0"), builders.ready("w-1"))
    assert decide.decide(before) == Plan()


def test_order_of_replicated_jobs_status_is_ignored() -> None:
    owner = builders.jobset(builders.replicated("a", replicas=1), builders.replicated("b", replicas=1))
    before = builders.settled(owner, builders.ready("a-0"), builders.ready("b-0"))
    status = before.jobset.status
    turned = replace(status, replicated_jobs=status.replicated_jobs[::-1])
    assert decide.decide(replace(before, jobset=replace(before.jobset, status=turned))) == Plan()


def test_order_of_jobs_is_ignored() -> None:
    owner = builders.jobset(builders.replicated(replicas=3), failure=FailurePolicy(max_restarts=1))
    jobs = (builders.failed("w-2"), builders.ready("w-0"), builders.failed("w-1"))
    assert decide.decide(builders.observed(owner, *jobs)) == decide.decide(builders.observed(owner, *reversed(jobs)))


def test_only_bodies_of_missing_jobs_are_built(monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[str] = []
    builder = children.JobBuilder

    class Watched(builder):  # type: ignore[misc, valid-type]
        def job(self, index: int, *, job_attempt: int | None = None) -> dict[str, object]:
            built.append(f"w-{index}")
            body: dict[str, object] = super().job(index, job_attempt=job_attempt)
            return body

    monkeypatch.setattr(children, "JobBuilder", Watched)
    owner = builders.jobset(builders.replicated(replicas=1000))
    jobs = tuple(builders.ready(f"w-{index}") for index in range(1000) if index != 7)
    decide.decide(builders.observed(owner, *jobs))
    assert built == ["w-7"]
