"""Domains for Jobs that ask for one of their own, and tainted nodes."""

from typing import Any

from kubemend.common.components import ComponentState
from kubemend.common.kube import client, paths
from kubemend.controller.jobset.children import naming
from kubemend.controller.jobset.placement import device_taints, exclusive
from tests import eventually
from tests.unit.jobsets import places, rig
from tests.unit.jobsets.rig import Bench, Leader


async def test_each_job_gets_its_own_domain(bench: Bench, leader: Leader) -> None:
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


async def test_job_without_domain_waits_reports_and_gets_one_later(bench: Bench, leader: Leader) -> None:
    await places.node(bench, "node-a", rack="a")
    async with leader.leading():
        await bench.create(rig.jobset("train", annotations=places.EXCLUSIVE))
        for job in await bench.until_jobs(2):
            await places.pod_of(bench, job)
        await bench.until_event("AllHeld")
        assert not await places.is_let_go(bench, "train-w-0", "train-w-1")
        await places.node(bench, "node-b", rack="b")
        await eventually.true(lambda: places.is_let_go(bench, "train-w-0", "train-w-1"))


async def test_gated_pods_are_released_after_annotation_is_removed(bench: Bench, leader: Leader) -> None:
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


async def test_many_jobs_waiting_for_one_reason_give_one_event(bench: Bench, leader: Leader) -> None:
    async with leader.leading():
        await bench.create(rig.jobset("train", rig.replicated(replicas=3), annotations=places.EXCLUSIVE))
        for job in await bench.until_jobs(3):
            await places.pod_of(bench, job)

        async def all_reported() -> bool:
            return len(leader.jobsets._gates._reported) == 3

        await eventually.true(all_reported)
        await bench.until_event("NoDomain")
        notes = [note for reason, note in await bench.events() if reason == "NoDomain"]
        assert len(notes) < 3


async def test_failed_release_of_pod_is_retried(bench: Bench, leader: Leader) -> None:
    await places.node(bench, "node-a", rack="a")
    refused: dict[str, Any] = {"status": 403, "method": "PATCH", "path": "/pods/train-w-0-0"}
    bench.server.fail_next(1, **refused)
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
        assert exclusive.PLACEMENT not in pods["metadata"]["labels"]
        await eventually.true(lambda: leader.reports[-1].state is ComponentState.READY)


async def test_node_is_tainted_until_its_devices_are_healthy(bench: Bench, leader: Leader) -> None:
    await places.node(bench, "node-a")
    async with leader.leading() as jobsets:
        jobsets.left("node-a", code="Xid79", pod="uid-1")
        await eventually.true(lambda: places.is_kept_off(bench, "node-a"))
        (taint,) = (await bench.api.get(f"{paths.NODES}/node-a"))["spec"]["taints"]
        assert (taint["key"], taint["value"], taint["effect"]) == (device_taints.TAINT, "Xid79", "NoSchedule")


async def test_new_leader_removes_taint_of_healthy_node(bench: Bench, leader: Leader) -> None:
    await places.node(bench, "node-a", healthy="True")
    mine = {"key": device_taints.TAINT, "effect": device_taints.EFFECT, "timeAdded": rig.now()}
    others = {"key": "example.com/mine", "effect": "NoSchedule"}
    spec = {"spec": {"taints": [others, mine]}}
    await bench.api.patch(f"{paths.NODES}/node-a", spec, content_type=client.Patch.MERGE)
    leader.tainted = ["node-a"]
    async with leader.leading():
        await eventually.true(lambda: places.is_let_back(bench, "node-a"))
        taints = (await bench.api.get(f"{paths.NODES}/node-a"))["spec"]["taints"]
        assert [each["key"] for each in taints] == ["example.com/mine"]


async def test_node_changed_concurrently_is_still_tainted(bench: Bench, leader: Leader) -> None:
    await places.node(bench, "node-a")
    bench.server.fail_next(2, status=409, method="PATCH", path="/nodes/node-a")
    async with leader.leading() as jobsets:
        jobsets.left("node-a", code="Xid79", pod="uid-1")
        await eventually.true(lambda: places.is_kept_off(bench, "node-a"))


async def test_deleted_node_is_ignored(bench: Bench, leader: Leader) -> None:
    async with leader.leading() as jobsets:
        jobsets.left("node-a", code="Xid79", pod="uid-1")
        await eventually.true(lambda: not leader.jobsets._taints._faults)
