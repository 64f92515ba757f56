"""A JobSet after another: made anew under its name, or given to another controller. And Jobs that are none of its."""

import functools

from common.kube import client, paths
from controller.jobset import naming
from tests import eventually
from tests.unit.jobsets import rig
from tests.unit.jobsets.rig import Bench, Leader

SERVICES = paths.collection("services", namespace=rig.NAMESPACE)
CLAIMS = paths.collection("persistentvolumeclaims", namespace=rig.NAMESPACE)
MOUNTING = {"containers": [{"name": "main", "image": "i:1", "volumeMounts": [{"name": "data", "mountPath": "/d"}]}]}
CLAIM = {"templates": [{"metadata": {"name": "data"}, "spec": {"accessModes": ["ReadWriteMany"]}}]}


async def test_what_a_deleted_jobset_has_left_in_the_way_of_its_successor_is_made_anew_when_it_goes(
    bench: Bench, leader: Leader
) -> None:
    """The garbage collector takes its time, and nothing else happens to a JobSet that waits for its pods."""
    async with leader.leading() as jobsets:
        await bench.create(rig.jobset("train", rig.replicated(replicas=0, pod=MOUNTING), volumeClaimPolicies=[CLAIM]))
        await eventually.true(lambda: bench.has_status("replicatedJobsStatus"))
        await bench.api.delete(f"{rig.JOBSETS}/train", options={"propagationPolicy": "Background"})
        made = await bench.create(
            rig.jobset("train", rig.replicated(replicas=0, pod=MOUNTING), volumeClaimPolicies=[CLAIM])
        )
        uid = made["metadata"]["uid"]
        await eventually.true(lambda: bench.has_status("replicatedJobsStatus"))

        async def rests() -> bool:
            return jobsets.rests(uid)

        for left in (f"{SERVICES}/train", f"{CLAIMS}/data-train"):
            await eventually.true(rests)
            assert not await owned(bench, left, by=uid), "it is the former one's"
            await bench.api.delete(left)
            await eventually.true(functools.partial(owned, bench, left, by=uid))


async def test_a_jobset_that_is_given_to_another_controller_is_let_alone(bench: Bench, leader: Leader) -> None:
    async with leader.leading() as jobsets:
        await bench.create(rig.jobset())
        await bench.until_jobs(2)
        await eventually.true(lambda: bench.has_status("replicatedJobsStatus"))
        given = {"spec": {"managedBy": None}}
        await bench.api.patch(f"{rig.JOBSETS}/train", given, content_type=client.Patch.MERGE)

        async def is_others() -> bool:
            return jobsets.find(rig.NAMESPACE, "train") is None

        await eventually.true(is_others)


async def test_a_job_of_another_namespace_is_none_of_a_jobsets_though_it_says_so(bench: Bench, leader: Leader) -> None:
    """Whoever knows its UID could let it fail otherwise: also a Job that has failed already can be lent."""
    elsewhere = rig.Bench(bench.server, bench.api, namespace="elsewhere")
    async with leader.leading() as jobsets:
        made = await bench.create(rig.jobset())
        owner = {"kind": "JobSet", "name": "train", "uid": made["metadata"]["uid"], "controller": True}
        lent = (await bench.until_jobs(2))["train-w-0"]
        await elsewhere.api.create(paths.collection("namespaces"), {"metadata": {"name": "elsewhere"}})
        meta = {"name": "train-w-0", "labels": lent["metadata"]["labels"]}
        meta["ownerReferences"] = [{"apiVersion": made["apiVersion"], **owner}]
        await elsewhere.api.create(elsewhere.all_jobs, {"metadata": meta, "spec": rig.replicated()["template"]["spec"]})
        await elsewhere.ends("train-w-0", failed=True)
        for name in await bench.jobs():
            await bench.runs(name)
        await eventually.true(functools.partial(all_ready, bench, 2))
        found = jobsets.find(rig.NAMESPACE, "train")
        assert found is not None
        assert {each.uid for each in jobsets.world(found).jobs} == {
            each["metadata"]["uid"] for each in (await bench.jobs()).values()
        }
        assert not await bench.has_condition("Failed")


async def all_ready(bench: Bench, count: int) -> bool:
    """Whether so many Jobs are ready."""
    return [each["ready"] for each in (await bench.status()).get("replicatedJobsStatus", ())] == [count]


async def owned(bench: Bench, path: str, *, by: str) -> bool:
    """Whether something is there, and whose."""
    whole, _, name = path.rpartition("/")
    found = await bench.api.list(whole, params={"labelSelector": naming.JOBSET_NAME})
    owners = [each["metadata"]["ownerReferences"] for each in found.items if each["metadata"]["name"] == name]
    return [[each["uid"] for each in one] for one in owners] == [[by]]
