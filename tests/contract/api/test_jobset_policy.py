"""The admission policy for our JobSets on a real API server: each rule refuses with its own message, and no more."""

import re
from typing import Any

import pytest

from kubemend.common.kube import client, errors
from tests import eventually
from tests.contract.api import jobsets
from tests.unit.jobset import refused, refused_changes, written
from tests.unit.jobset.refused import Case
from tests.unit.jobset.refused_changes import Change
from tests.unit.jobset.written import jobset

Json = dict[str, Any]

INVALID = refused.BY_POLICY[0].refused


@pytest.fixture(autouse=True)
async def policy(api: client.KubeClient) -> None:
    """Definition and policy are in force."""
    await jobsets.install(api)
    await jobsets.install_policy(api)


@pytest.mark.parametrize("case", refused.BY_POLICY, ids=lambda case: case.name)
async def test_invalid_jobset_is_refused_with_the_rules_message(
    api: client.KubeClient, namespace: str, case: Case
) -> None:
    with pytest.raises(errors.InvalidError, match=re.escape(case.answer)) as refusal:
        await api.create(jobsets.collection(namespace), case.refused)
    assert refusal.value.status == 422
    await api.create(jobsets.collection(namespace), case.allowed)


@pytest.mark.parametrize("case", refused.BY_POLICY, ids=lambda case: case.name)
async def test_foreign_jobset_is_not_checked(api: client.KubeClient, namespace: str, case: Case) -> None:
    await api.create(jobsets.collection(namespace), jobsets.others(case.refused))


@pytest.mark.parametrize("manager", ["jobset.sigs.k8s.io/jobset-controller", "kueue.x-k8s.io/multikueue"])
async def test_jobset_of_another_manager_is_not_checked(api: client.KubeClient, namespace: str, manager: str) -> None:
    theirs = written.changed(INVALID, lambda spec: spec.update(managedBy=manager))
    made = await api.create(jobsets.collection(namespace), theirs)
    await update(api, made, written.changed(theirs, lambda spec: spec["replicatedJobs"].pop()))


@pytest.mark.parametrize("change", refused_changes.BY_POLICY, ids=lambda change: change.name)
async def test_change_is_refused_with_the_rules_message(api: client.KubeClient, namespace: str, change: Change) -> None:
    made = await api.create(jobsets.collection(namespace), change.before)
    with pytest.raises(errors.InvalidError, match=re.escape(change.answer)):
        await update(api, made, change.refused)
    await update(api, made, change.allowed)


async def test_a_generated_name_counts(api: client.KubeClient, namespace: str) -> None:
    for length, fits in ((48, True), (49, False)):  # LETTERS, five random ones, -workers-0
        obj = jobset()
        obj["metadata"] = {"generateName": written.LETTERS[:length]}
        if fits:
            await api.create(jobsets.collection(namespace), obj)
        else:
            with pytest.raises(errors.InvalidError, match="Jobs are called"):
                await api.create(jobsets.collection(namespace), obj)


async def test_jobset_older_than_a_rule_can_be_labelled_and_deleted(api: client.KubeClient, namespace: str) -> None:
    path = f"{jobsets.collection(namespace)}/{INVALID['metadata']['name']}"
    await _slip_in(api, namespace, INVALID)
    for metadata in ({"labels": {"a": "b"}, "finalizers": ["example.com/wait"]}, {"finalizers": None}):
        await api.patch(path, {"metadata": metadata}, content_type=client.Patch.MERGE)
    written = await api.patch_status(path, {"status": {"restarts": 0}}, content_type=client.Patch.MERGE)
    assert written["status"] == {"restarts": 0}
    with pytest.raises(errors.InvalidError, match="keep to 200"):
        await api.patch(path, {"spec": {"suspend": True}}, content_type=client.Patch.MERGE)
    await api.delete(path)
    with pytest.raises(errors.NotFoundError):
        await api.get(path)


async def test_largest_allowed_stays_within_the_cost_of_expressions(api: client.KubeClient, namespace: str) -> None:
    await api.create(jobsets.collection(namespace), _largest())


async def test_largest_refused_gets_the_reason(api: client.KubeClient, namespace: str) -> None:
    largest = _largest()
    largest["spec"]["failurePolicy"]["rules"] *= 20
    largest["spec"]["replicatedJobs"] += [written.replicated(f"more-{index}") for index in range(2000)]
    with pytest.raises(errors.InvalidError, match="keep to 200"):
        await api.create(jobsets.collection(namespace), largest)


async def update(api: client.KubeClient, made: Json, obj: Json) -> Json:
    """Replace an object that has not changed since."""
    version = {"resourceVersion": made["metadata"]["resourceVersion"], "namespace": made["metadata"]["namespace"]}
    body = {**obj, "metadata": {**obj["metadata"], **version}}
    return await api.update(f"{jobsets.collection(version['namespace'])}/{made['metadata']['name']}", body)


async def _slip_in(api: client.KubeClient, namespace: str, obj: Json) -> None:
    """Create an object that the policy refuses, as if the policy was not in force yet."""
    await jobsets.lift_policy(api)

    async def taken() -> bool:
        try:
            await api.create(jobsets.collection(namespace), obj)
        except errors.InvalidError:
            return False
        return True

    await eventually.true(taken)
    await jobsets.install_policy(api)


def _largest() -> Json:
    """Every list at its maximum: each job depends on five, each rule is about all, all claims are mounted."""
    names = [f"w{index:03}" for index in range(200)]
    claims = [f"claim-{index}" for index in range(50)]
    mounts = [{"name": each, "mountPath": f"/{each}"} for each in claims]
    pod = {"containers": [{"name": "main", "image": "trainer", "volumeMounts": mounts}]}
    jobs = [
        written.replicated(
            name,
            replicas=100,
            dependsOn=[{"name": each, "status": "Ready"} for each in names[max(0, index - 5) : index]],
            pod=pod if index == 199 else {"volumes": [{"name": f"v{each}", "emptyDir": {}} for each in range(5)]},
        )
        for index, name in enumerate(names)
    ]
    rules = [
        {"action": "RestartJob", "name": f"rule_{index}", "targetReplicatedJobs": names[:5]} for index in range(100)
    ]
    return jobset(
        *jobs,
        failurePolicy={"rules": rules},
        successPolicy={"operator": "All", "targetReplicatedJobs": names},
        volumeClaimPolicies=[{"templates": [{"metadata": {"name": each}, "spec": {}} for each in claims]}],
    )
