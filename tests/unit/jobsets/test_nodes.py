"""Domains for Jobs that ask for one of their own, and tainted nodes."""

from dataclasses import replace
from typing import Any

import pytest

from kubemend.common.components import ComponentState
from kubemend.common.kube import client, errors, paths
from kubemend.controller.jobset.children import naming
from kubemend.controller.jobset.placement import device_taints, exclusive
from kubemend.controller.jobset.placement.model import Assignment, Domain, Pod
from kubemend.controller.jobsets import placement_reconciler
from tests import eventually
from tests.unit.jobsets import builders, places
from tests.unit.jobsets.env import JobSetEnv, Leader


async def test_each_job_gets_its_own_domain(env: JobSetEnv, leader: Leader) -> None:
    for rack in "ab":
        await places.node(env, f"node-{rack}", rack=rack)
    async with leader.leading():
        await env.create(builders.jobset("train", annotations=places.EXCLUSIVE))
        for job in await env.until_jobs(2):
            await places.pod_of(env, job)
        await eventually.true(lambda: places.is_released(env, "train-w-0", "train-w-1"))
        racks = {
            (await places.pod(env, job))["spec"]["nodeSelector"][places.RACK] for job in ("train-w-0", "train-w-1")
        }
        assert racks == {"a", "b"}


async def test_job_without_domain_waits_reports_and_gets_one_later(env: JobSetEnv, leader: Leader) -> None:
    await places.node(env, "node-a", rack="a")
    async with leader.leading():
        await env.create(builders.jobset("train", annotations=places.EXCLUSIVE))
        for job in await env.until_jobs(2):
            await places.pod_of(env, job)
        await env.until_event("AllHeld")
        assert not await places.is_released(env, "train-w-0", "train-w-1")
        await places.node(env, "node-b", rack="b")
        await eventually.true(lambda: places.is_released(env, "train-w-0", "train-w-1"))


async def test_gated_pods_are_released_after_annotation_is_removed(env: JobSetEnv, leader: Leader) -> None:
    async with leader.leading():
        await env.create(builders.jobset("train", annotations=places.EXCLUSIVE))
        jobs = await env.until_jobs(2)
        taken_off = {"metadata": {"annotations": dict.fromkeys(places.EXCLUSIVE)}}
        await env.api.patch(f"{env.all_jobsets}/train", taken_off, content_type=client.Patch.MERGE)
        for job in jobs:
            await places.pod_of(env, job)
        await env.until_event("NoDomain")
        for rack in "ab":
            await places.node(env, f"node-{rack}", rack=rack)
        await eventually.true(lambda: places.is_released(env, "train-w-0", "train-w-1"))


async def test_many_jobs_waiting_for_one_reason_give_one_event(env: JobSetEnv, leader: Leader) -> None:
    async with leader.leading():
        await env.create(builders.jobset("train", builders.replicated(replicas=3), annotations=places.EXCLUSIVE))
        for job in await env.until_jobs(3):
            await places.pod_of(env, job)

        async def all_reported() -> bool:
            return len(leader.jobsets._gates._reported) == 3

        await eventually.true(all_reported)
        await env.until_event("NoDomain")
        notes = [note for reason, note in await env.events() if reason == "NoDomain"]
        assert len(notes) < 3


async def test_failed_release_of_pod_is_retried(env: JobSetEnv, leader: Leader) -> None:
    await places.node(env, "node-a", rack="a")
    refused: dict[str, Any] = {"status": 403, "method": "PATCH", "path": "/pods/train-w-0-0"}
    env.server.fail_next(1, **refused)
    async with leader.leading():
        await env.create(builders.jobset("train", builders.replicated(replicas=1), annotations=places.EXCLUSIVE))
        (job,) = await env.until_jobs(1)
        await places.pod_of(env, job)
        await eventually.true(lambda: places.is_released(env, job))


async def test_refused_release_is_not_repeated_at_each_change_of_any_pod(
    env: JobSetEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A policy may refuse changes of pods: thousands would be tried five times a second while others change."""
    tried: list[str] = []

    async def refuse(path: str, body: Any, **_: Any) -> Any:
        tried.append(body["metadata"]["resourceVersion"])
        raise errors.ForbiddenError("a policy refuses it")

    monkeypatch.setattr(env.api, "patch", refuse)
    board = placement_reconciler._Board(api=env.api, report=lambda _: None, news=lambda: None)
    pod = Pod("team", "train-w-0-0", "uid-1", "job", places.RACK, gates=(exclusive.GATE,), resource_version="1")
    for each in (pod, pod, pod, replace(pod, resource_version="2")):
        await board.release([Assignment("job", Domain(places.RACK, "a"), (each,))])
    assert tried == ["1", "2"]


async def test_pods_and_nodes_are_not_watched_for_others(env: JobSetEnv, leader: Leader) -> None:
    async with leader.leading():
        await env.create(builders.jobset("train"))
        await env.create(builders.jobset("labelled", annotations={**places.EXCLUSIVE, naming.NODE_SELECTOR: "true"}))
        await env.until_jobs(4)
        assert leader.jobsets._gates.needed == frozenset()
        pods = (await env.jobs())["labelled-w-0"]["spec"]["template"]
        assert exclusive.PLACEMENT not in pods["metadata"]["labels"]
        await eventually.true(lambda: leader.reports[-1].state is ComponentState.READY)


async def test_node_is_tainted_until_its_devices_are_healthy(env: JobSetEnv, leader: Leader) -> None:
    await places.node(env, "node-a")
    async with leader.leading() as jobsets:
        jobsets.left("node-a", code="Xid79", pod="uid-1")
        await eventually.true(lambda: places.is_kept_off(env, "node-a"))
        (taint,) = (await env.api.get(f"{paths.NODES}/node-a"))["spec"]["taints"]
        assert (taint["key"], taint["value"], taint["effect"]) == (device_taints.TAINT, "Xid79", "NoSchedule")


async def test_new_leader_removes_taint_of_healthy_node(env: JobSetEnv, leader: Leader) -> None:
    await places.node(env, "node-a", healthy="True")
    added_at = builders.now(ago=device_taints.SETTLED + 1.0)
    mine = {"key": device_taints.TAINT, "effect": device_taints.EFFECT, "timeAdded": added_at}
    others = {"key": "example.com/mine", "effect": "NoSchedule"}
    spec = {"spec": {"taints": [others, mine]}}
    await env.api.patch(f"{paths.NODES}/node-a", spec, content_type=client.Patch.MERGE)
    leader.tainted = ["node-a"]
    async with leader.leading():
        await eventually.true(lambda: places.is_let_back(env, "node-a"))
        taints = (await env.api.get(f"{paths.NODES}/node-a"))["spec"]["taints"]
        assert [each["key"] for each in taints] == ["example.com/mine"]


async def test_node_changed_concurrently_is_still_tainted(env: JobSetEnv, leader: Leader) -> None:
    await places.node(env, "node-a")
    env.server.fail_next(2, status=409, method="PATCH", path="/nodes/node-a")
    async with leader.leading() as jobsets:
        jobsets.left("node-a", code="Xid79", pod="uid-1")
        await eventually.true(lambda: places.is_kept_off(env, "node-a"))


async def test_deleted_node_is_ignored(env: JobSetEnv, leader: Leader) -> None:
    async with leader.leading() as jobsets:
        jobsets.left("node-a", code="Xid79", pod="uid-1")
        await eventually.true(lambda: not leader.jobsets._taints._faults)
