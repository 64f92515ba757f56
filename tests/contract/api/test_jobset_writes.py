"""Other writes for JobSets than their Jobs: an API server accepts them as intended."""

import functools
import time

from kubemend.common.kube import client, paths
from kubemend.controller.jobset.children import naming
from kubemend.controller.jobset.placement import device_taints
from kubemend.controller.jobset.plan import Event, EventType
from kubemend.controller.jobsets import events
from kubemend.controller.jobsets.events import JobSetRef, PendingEvent
from tests import eventually
from tests.unit.jobsets import builders, places
from tests.unit.jobsets.conftest import env, leader
from tests.unit.jobsets.env import JobSetEnv, Leader, background

__all__ = ["env", "leader"]


async def test_a_gated_pod_goes_to_its_jobs_domain(env: JobSetEnv, leader: Leader, node: str) -> None:
    topology = f"example.com/{node}"
    await places.node(env, node)
    # A real server taints new nodes as not ready, and no controller removes that here.
    labelled = {"metadata": {"labels": {topology: "a"}}, "spec": {"taints": None}}
    await env.api.patch(f"{paths.NODES}/{node}", labelled, content_type=client.Patch.MERGE)
    async with leader.leading():
        await env.create(
            builders.jobset("train", builders.replicated("w", 1), annotations={naming.EXCLUSIVE_TOPOLOGY: topology})
        )
        await env.until_jobs(1)
        await places.pod_of(env, "train-w-0")
        await eventually.true(lambda: places.is_released(env, "train-w-0"))
        assert (await places.pod(env, "train-w-0"))["spec"]["nodeSelector"] == {topology: "a"}


async def test_reserved_node_keeps_its_other_taints(env: JobSetEnv, leader: Leader, node: str) -> None:
    await places.node(env, node)
    other = {"key": "example.com/mine", "effect": "NoSchedule"}
    await env.api.patch(f"{paths.NODES}/{node}", {"spec": {"taints": [other]}}, content_type=client.Patch.MERGE)
    async with leader.leading() as jobsets:
        jobsets.left(node, code="Xid79", pod="uid-1")
        await eventually.true(lambda: places.is_kept_off(env, node))
        taints = (await env.api.get(f"{paths.NODES}/{node}"))["spec"]["taints"]
        assert {"example.com/mine", device_taints.TAINT} <= {each["key"] for each in taints}


async def test_status_without_a_spec_is_accepted_and_keeps_the_spec(env: JobSetEnv, leader: Leader) -> None:
    created = await env.create(builders.jobset())
    async with leader.leading():
        await env.until_jobs(2)
        await eventually.true(lambda: env.has_status("replicatedJobsStatus"))
    assert (await env.jobset())["spec"] == created["spec"]


async def test_longest_event_is_accepted(env: JobSetEnv) -> None:
    event = Event(EventType.WARNING, "R" * 200, "ü" * 5000)
    pending = PendingEvent(JobSetRef(env.namespace, "train", "uid-1"), event, at=time.time())
    made = await env.api.create(env.all_events, events.body(pending, instance="one"))
    assert (len(made["reason"]), len(made["note"].encode())) == (events.MAX_REASON, events.MAX_NOTE - 1)


async def test_repeated_failure_is_counted_in_its_event(env: JobSetEnv) -> None:
    moment = [time.time()]
    about, failed = (
        JobSetRef(env.namespace, "train", "uid-1"),
        Event(EventType.WARNING, "JobCreationFailed", "no room"),
    )

    async def counted(times: int) -> bool:
        (found,) = (await env.api.list(env.all_events)).items or [{}]
        return bool((found.get("series") or {}).get("count", 1 if found else 0) == times)

    for times, instance in ((2, "one"), (3, "two")):  # the second one does not know the count so far
        recorder = events.Events(api=env.api, instance=instance, clock=lambda: moment[0])
        async with background(recorder.run):
            if instance == "one":
                recorder.record(about, failed)
                await eventually.true(functools.partial(counted, 1))
            moment[0] += 61.0
            recorder.record(about, failed)
            await eventually.true(functools.partial(counted, times))


async def test_late_status_conflicts_and_is_decided_again(env: JobSetEnv, leader: Leader) -> None:
    async with leader.leading():
        await env.create(builders.jobset())
        await env.until_jobs(2)
        await eventually.true(lambda: env.has_status("replicatedJobsStatus"))
        late = leader.api.hold_back("/apis/jobset.x-k8s.io/v1alpha2/jobsets")
        change = {"metadata": {"labels": {"x": "y"}}}
        await env.api.patch(f"{env.all_jobsets}/train", change, content_type=client.Patch.MERGE)
        for name in await env.jobs():
            await env.job_status(name, active=1, ready=1, startTime=builders.now())

        async def two_ready() -> bool:
            (counted,) = (await env.status())["replicatedJobsStatus"]
            return bool(counted["ready"] == 2)

        await eventually.true(two_ready)
        assert leader.metric("kubemend_jobset_writes_total", write="status", result="conflict") >= 1
        late.set()
