"""A JobSet after another of its name, or given to another controller; and Jobs that do not belong to it."""

import contextlib
import functools

from kubemend.common.kube import client, errors, paths
from kubemend.controller.jobset.children import naming
from tests import eventually
from tests.unit.jobsets import rig
from tests.unit.jobsets.rig import Bench, Leader

MOUNTING = {"containers": [{"name": "main", "image": "i:1", "volumeMounts": [{"name": "data", "mountPath": "/d"}]}]}
STORAGE = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}
CLAIM = {"templates": [{"metadata": {"name": "data"}, "spec": STORAGE}]}


async def test_successor_recreates_objects_left_by_deleted_jobset(bench: Bench, leader: Leader) -> None:
    """The garbage collector takes its time, and nothing else happens to a JobSet that waits for its pods."""
    async with leader.leading() as jobsets:
        await bench.create(rig.jobset("train", rig.replicated(replicas=0, pod=MOUNTING), volumeClaimPolicies=[CLAIM]))
        await eventually.true(lambda: bench.has_status("replicatedJobsStatus"))
        await bench.api.delete(f"{bench.all_jobsets}/train", options={"propagationPolicy": "Background"})
        made = await bench.create(
            rig.jobset("train", rig.replicated(replicas=0, pod=MOUNTING), volumeClaimPolicies=[CLAIM])
        )
        uid = made["metadata"]["uid"]
        await eventually.true(lambda: bench.has_status("replicatedJobsStatus"))

        async def is_settled() -> bool:
            return jobsets.is_settled(uid)

        for left in (f"{bench.of('services')}/train", f"{bench.of('persistentvolumeclaims')}/data-train"):
            await eventually.true(is_settled)
            assert not await owned(bench, left, by=uid), "it is the former one's"
            await bench.api.delete(left)
            with contextlib.suppress(errors.NotFoundError):  # a claim waits for the controller that protects it
                await bench.api.patch(left, {"metadata": {"finalizers": None}}, content_type=client.Patch.MERGE)
            await eventually.true(functools.partial(owned, bench, left, by=uid))


async def test_jobset_given_to_another_controller_is_left_alone(bench: Bench, leader: Leader) -> None:
    async with leader.leading() as jobsets:
        await bench.create(rig.jobset())
        await bench.until_jobs(2)
        await eventually.true(lambda: bench.has_status("replicatedJobsStatus"))
        given = {"spec": {"managedBy": None}}
        await bench.api.patch(f"{bench.all_jobsets}/train", given, content_type=client.Patch.MERGE)

        async def is_others() -> bool:
            return jobsets.find(bench.namespace, "train") is None

        await eventually.true(is_others)


async def test_job_of_another_namespace_is_not_owned(bench: Bench, leader: Leader) -> None:
    """Otherwise any user with its UID could make it fail, also with a Job that has failed already."""
    other = await bench.api.create(paths.collection("namespaces"), {"metadata": {"generateName": "elsewhere-"}})
    elsewhere = rig.Bench(bench.server, bench.api, namespace=other["metadata"]["name"])
    async with leader.leading() as jobsets:
        made = await bench.create(rig.jobset())
        owner = {"kind": "JobSet", "name": "train", "uid": made["metadata"]["uid"], "controller": True}
        lent = (await bench.until_jobs(2))["train-w-0"]
        meta = {"name": "train-w-0", "labels": lent["metadata"]["labels"]}
        meta["ownerReferences"] = [{"apiVersion": made["apiVersion"], **owner}]
        await elsewhere.api.create(elsewhere.all_jobs, {"metadata": meta, "spec": rig.replicated()["template"]["spec"]})
        await elsewhere.ends("train-w-0", failed=True)
        for name in await bench.jobs():
            await bench.runs(name)
        await eventually.true(functools.partial(all_ready, bench, 2))
        found = jobsets.find(bench.namespace, "train")
        assert found is not None
        assert {each.uid for each in jobsets.world(found).jobs} == {
            each["metadata"]["uid"] for each in (await bench.jobs()).values()
        }
        assert not await bench.has_condition("Failed")


async def all_ready(bench: Bench, count: int) -> bool:
    """Return whether this many Jobs are ready."""
    return [each["ready"] for each in (await bench.status()).get("replicatedJobsStatus", ())] == [count]


async def owned(bench: Bench, path: str, *, by: str) -> bool:
    """Return whether an object exists with this owner."""
    whole, _, name = path.rpartition("/")
    found = await bench.api.list(whole, params={"labelSelector": naming.JOBSET_NAME})
    owners = [each["metadata"]["ownerReferences"] for each in found.items if each["metadata"]["name"] == name]
    return [[each["uid"] for each in one] for one in owners] == [[by]]
