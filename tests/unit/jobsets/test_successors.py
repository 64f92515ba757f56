"""A JobSet after another of its name, or given to another controller; and Jobs that do not belong to it."""

import contextlib
import functools

from kubemend.common import aio
from kubemend.common.kube import client, errors, paths
from kubemend.controller.jobset.children import naming
from kubemend.controller.jobsets.running import JobSets
from tests import eventually
from tests.unit.jobsets import builders
from tests.unit.jobsets.env import JobSetEnv, Leader

MOUNTING = {"containers": [{"name": "main", "image": "i:1", "volumeMounts": [{"name": "data", "mountPath": "/d"}]}]}
STORAGE = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}
CLAIM = {"templates": [{"metadata": {"name": "data"}, "spec": STORAGE}]}


async def test_successor_recreates_objects_left_by_deleted_jobset(env: JobSetEnv, leader: Leader) -> None:
    """The garbage collector takes its time, and nothing else happens to a JobSet that waits for its pods."""
    async with leader.leading() as jobsets:
        await env.create(
            builders.jobset("train", builders.replicated(replicas=0, pod=MOUNTING), volumeClaimPolicies=[CLAIM])
        )
        await eventually.true(lambda: env.has_status("replicatedJobsStatus"))
        await env.api.delete(f"{env.all_jobsets}/train", options={"propagationPolicy": "Background"})
        made = await env.create(
            builders.jobset("train", builders.replicated(replicas=0, pod=MOUNTING), volumeClaimPolicies=[CLAIM])
        )
        uid = made["metadata"]["uid"]
        await eventually.true(lambda: env.has_status("replicatedJobsStatus"))

        async def is_settled() -> bool:
            return jobsets.is_settled(uid)

        for left in (f"{env.of('services')}/train", f"{env.of('persistentvolumeclaims')}/data-train"):
            await eventually.true(is_settled)
            assert not await owned(env, left, by=uid), "it is the former one's"
            await env.api.delete(left)
            with contextlib.suppress(errors.NotFoundError):  # a claim waits for the controller that protects it
                await env.api.patch(left, {"metadata": {"finalizers": None}}, content_type=client.Patch.MERGE)
            await eventually.true(functools.partial(owned, env, left, by=uid))


async def test_successor_creates_a_job_as_soon_as_its_predecessors_is_gone(env: JobSetEnv, leader: Leader) -> None:
    """Its tries fail until then, with waits of up to 30 s."""
    patient = Leader(leader.api, backoff=lambda: aio.Backoff(first=3600.0, limit=3600.0))
    async with patient.leading():
        await env.create(builders.jobset())
        former = await env.until_jobs(2)
        await env.api.delete(f"{env.all_jobsets}/train", options={"propagationPolicy": "Background"})
        made = await env.create(builders.jobset())
        refused = {"write": "CreateJob", "result": "conflict"}
        await eventually.true(lambda: patient.metric("kubemend_jobset_writes_total", **refused) == len(former))
        for name in former:
            await env.api.delete(f"{env.all_jobs}/{name}", options={"propagationPolicy": "Background"})
            await eventually.true(functools.partial(owned, env, f"{env.all_jobs}/{name}", by=made["metadata"]["uid"]))


async def test_jobset_given_to_another_controller_is_left_alone(env: JobSetEnv, leader: Leader) -> None:
    async with leader.leading() as jobsets:
        await env.create(builders.jobset())
        await env.until_jobs(2)
        await eventually.true(lambda: env.has_status("replicatedJobsStatus"))
        given = {"spec": {"managedBy": None}}
        await env.api.patch(f"{env.all_jobsets}/train", given, content_type=client.Patch.MERGE)

        async def is_others() -> bool:
            return jobsets.find(env.namespace, "train") is None

        await eventually.true(is_others)


async def test_foreign_jobset_is_restarted_in_place_until_it_is_disabled_or_gone(
    env: JobSetEnv, leader: Leader
) -> None:
    def elsewhere(jobsets: JobSets) -> bool:
        return jobsets.is_restarted_elsewhere(env.namespace, "train")

    policy = {"maxRestarts": 3, "restartStrategy": "InPlaceRestart"}
    async with leader.leading() as jobsets:
        await env.create(builders.jobset(managed_by="example.com/other", failurePolicy=policy))
        await eventually.true(lambda: elsewhere(jobsets))
        assert not jobsets.is_restarted_elsewhere("other", "train")
        disabled = {"metadata": {"annotations": {"jobset.sigs.k8s.io/disable-in-place-restart": "true"}}}
        await env.api.patch(f"{env.all_jobsets}/train", disabled, content_type=client.Patch.MERGE)
        await eventually.true(lambda: not elsewhere(jobsets))
        enabled = {"metadata": {"annotations": None}}
        await env.api.patch(f"{env.all_jobsets}/train", enabled, content_type=client.Patch.MERGE)
        await eventually.true(lambda: elsewhere(jobsets))
        await env.api.delete(f"{env.all_jobsets}/train")
        await eventually.true(lambda: not elsewhere(jobsets))


async def test_job_of_another_namespace_is_not_owned(env: JobSetEnv, leader: Leader) -> None:
    """Otherwise any user with its UID could make it fail, also with a Job that has failed already."""
    other = await env.api.create(paths.collection("namespaces"), {"metadata": {"generateName": "elsewhere-"}})
    elsewhere = JobSetEnv(env.server, env.api, namespace=other["metadata"]["name"])
    async with leader.leading() as jobsets:
        made = await env.create(builders.jobset())
        owner = {"kind": "JobSet", "name": "train", "uid": made["metadata"]["uid"], "controller": True}
        lent = (await env.until_jobs(2))["train-w-0"]
        meta = {"name": "train-w-0", "labels": lent["metadata"]["labels"]}
        meta["ownerReferences"] = [{"apiVersion": made["apiVersion"], **owner}]
        await elsewhere.api.create(
            elsewhere.all_jobs, {"metadata": meta, "spec": builders.replicated()["template"]["spec"]}
        )
        await elsewhere.ends("train-w-0", failed=True)
        for name in await env.jobs():
            await env.runs(name)
        await eventually.true(functools.partial(all_ready, env, 2))
        found = jobsets.find(env.namespace, "train")
        assert found is not None
        assert {each.uid for each in jobsets.observe(found).jobs} == {
            each["metadata"]["uid"] for each in (await env.jobs()).values()
        }
        assert not await env.has_condition("Failed")


async def all_ready(env: JobSetEnv, count: int) -> bool:
    """Return whether this many Jobs are ready."""
    return [each["ready"] for each in (await env.status()).get("replicatedJobsStatus", ())] == [count]


async def owned(env: JobSetEnv, path: str, *, by: str) -> bool:
    """Return whether an object exists with this owner."""
    whole, _, name = path.rpartition("/")
    found = await env.api.list(whole, params={"labelSelector": naming.JOBSET_NAME})
    owners = [each["metadata"]["ownerReferences"] for each in found.items if each["metadata"]["name"] == name]
    return [[each["uid"] for each in one] for one in owners] == [[by]]
