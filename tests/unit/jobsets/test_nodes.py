"""Domains for Jobs that want one for themselves, and nodes that nobody shall be put on."""

from common.kube import client, paths
from common.parts import PartState
from controller.jobset import keeping_off, naming
from controller.jobset.placement import marks
from tests import eventually
from tests.unit.jobsets import places, rig
from tests.unit.jobsets.rig import Bench, Leader


async def test_each_job_gets_a_domain_of_its_own_and_its_pods_go_there(bench: Bench, leader: Leader) -> None:
    for rack in "ab":
        await places.node(bench, f"node-{rack}", rack=rack)
    async with leader.leading():
        await bench.create(rig.jobset("train", annotations=places.EXCLUSIVE))
        for job in await bench.until_jobs(2):
            await places.pod_of(bench, job)
        await eventually.true(lambda: places.is_let_go(bench, "train-w-0", "train-w-1"))
        racks = {
            (await places.pod(bench, job))["spec"]["nodeSelector"][places.RACK] for job in ("train-w-0", "train-w-1")
        }
        assert racks == {"a", "b"}


async def test_a_job_without_a_domain_waits_says_so_and_goes_when_there_is_one(bench: Bench, leader: Leader) -> None:
    await places.node(bench, "node-a", rack="a")
    async with leader.leading():
        await bench.create(rig.jobset("train", annotations=places.EXCLUSIVE))
        for job in await bench.until_jobs(2):
            await places.pod_of(bench, job)
        await bench.until_event("AllHeld")
        assert not await places.is_let_go(bench, "train-w-0", "train-w-1")
        await places.node(bench, "node-b", rack="b")
        await eventually.true(lambda: places.is_let_go(bench, "train-w-0", "train-w-1"))


async def test_pods_of_jobs_that_were_made_exclusive_go_on_though_the_annotation_is_taken_off(
    bench: Bench, leader: Leader
) -> None:
    async with leader.leading():
        await bench.create(rig.jobset("train", annotations=places.EXCLUSIVE))
        jobs = await bench.until_jobs(2)
        taken_off = {"metadata": {"annotations": dict.fromkeys(places.EXCLUSIVE)}}
        await bench.api.patch(f"{bench.all_jobsets}/train", taken_off, content_type=client.Patch.MERGE)
        for job in jobs:
            await places.pod_of(bench, job)
        await bench.until_event("NoDomain")
        for rack in "ab":
            await places.node(bench, f"node-{rack}", rack=rack)
        await eventually.true(lambda: places.is_let_go(bench, "train-w-0", "train-w-1"))


async def test_of_many_jobs_that_wait_for_one_reason_people_are_told_once(bench: Bench, leader: Leader) -> None:
    async with leader.leading():
        await bench.create(rig.jobset("train", rig.replicated(replicas=3), annotations=places.EXCLUSIVE))
        for job in await bench.until_jobs(3):
            await places.pod_of(bench, job)

        async def all_told() -> bool:
            return len(leader.jobsets._gates._told) == 3

        await eventually.true(all_told)
        await bench.until_event("NoDomain")
        notes = [note for reason, note in await bench.events() if reason == "NoDomain"]
        assert len(notes) < 3


async def test_a_pod_that_could_not_be_let_go_is_tried_again(bench: Bench, leader: Leader) -> None:
    await places.node(bench, "node-a", rack="a")
    refused = {"status": 403, "method": "PATCH", "path": "/pods/train-w-0-0"}
    bench.server.handler.faults.fail_next(1, **refused)  # type: ignore[attr-defined]
    async with leader.leading():
        await bench.create(rig.jobset("train", rig.replicated(replicas=1), annotations=places.EXCLUSIVE))
        (job,) = await bench.until_jobs(1)
        await places.pod_of(bench, job)
        await eventually.true(lambda: places.is_let_go(bench, job))


async def test_pods_and_nodes_are_not_watched_for_others(bench: Bench, leader: Leader) -> None:
    async with leader.leading():
        await bench.create(rig.jobset("train"))
        await bench.create(rig.jobset("labelled", annotations={**places.EXCLUSIVE, naming.NODE_SELECTOR: "true"}))
        await bench.until_jobs(4)
        assert leader.jobsets._gates.needed == frozenset()
        pods = (await bench.jobs())["labelled-w-0"]["spec"]["template"]
        assert marks.PLACEMENT not in pods["metadata"]["labels"]
        await eventually.true(lambda: leader.reports[-1].state is PartState.READY)


async def test_a_node_is_kept_free_until_its_devices_are_found_healthy(bench: Bench, leader: Leader) -> None:
    await places.node(bench, "node-a")
    async with leader.leading() as jobsets:
        jobsets.left("node-a", code="Xid79", pod="uid-1")
        await eventually.true(lambda: places.is_kept_off(bench, "node-a"))
        (taint,) = (await bench.api.get(f"{paths.NODES}/node-a"))["spec"]["taints"]
        assert (taint["key"], taint["value"], taint["effect"]) == (keeping_off.TAINT, "Xid79", "NoSchedule")


async def test_a_new_leader_lifts_the_taint_of_a_node_that_is_whole_again(bench: Bench, leader: Leader) -> None:
    await places.node(bench, "node-a", healthy="True")
    mine = {"key": keeping_off.TAINT, "effect": keeping_off.EFFECT, "timeAdded": rig.now()}
    others = {"key": "example.com/mine", "effect": "NoSchedule"}
    spec = {"spec": {"taints": [others, mine]}}
    await bench.api.patch(f"{paths.NODES}/node-a", spec, content_type=client.Patch.MERGE)
    leader.tainted = ["node-a"]
    async with leader.leading():
        await eventually.true(lambda: places.is_let_back(bench, "node-a"))
        taints = (await bench.api.get(f"{paths.NODES}/node-a"))["spec"]["taints"]
        assert [each["key"] for each in taints] == ["example.com/mine"]


async def test_a_node_that_somebody_else_changes_at_the_same_time_is_tainted_all_the_same(
    bench: Bench, leader: Leader
) -> None:
    await places.node(bench, "node-a")
    bench.server.handler.faults.fail_next(2, status=409, method="PATCH", path="/nodes/node-a")  # type: ignore[attr-defined]
    async with leader.leading() as jobsets:
        jobsets.left("node-a", code="Xid79", pod="uid-1")
        await eventually.true(lambda: places.is_kept_off(bench, "node-a"))


async def test_a_node_that_is_gone_is_nobodys_worry(bench: Bench, leader: Leader) -> None:
    async with leader.leading() as jobsets:
        jobsets.left("node-a", code="Xid79", pod="uid-1")
        await eventually.true(lambda: not leader.jobsets._taints._faults)
