"""The ClusterRole for JobSets allows the controller's requests, and nothing else."""

import asyncio
import typing
from collections.abc import AsyncGenerator
from typing import Any, Final

from prometheus_client import CollectorRegistry

from kubemend.agent.doctor.api_rights import Right
from kubemend.common import gangs
from kubemend.common.kube import client, errors, paths, watch_protocol
from kubemend.common.kube.transport import Json, Request
from kubemend.controller.jobset import plan
from kubemend.controller.jobset.children import naming
from kubemend.controller.jobset.placement import choosing, exclusive
from kubemend.controller.jobsets.events import Events, JobSetRef
from kubemend.controller.jobsets.metrics import JobSetMetrics
from kubemend.controller.jobsets.placement_reconciler import PlacementReconciler, Wanted
from kubemend.controller.jobsets.statuses import StatusWriter
from kubemend.controller.jobsets.taints import Taints
from kubemend.controller.jobsets.views import Views
from kubemend.controller.jobsets.writes import Writer
from tests import eventually
from tests.unit.daemonset import controller_manifests, roles
from tests.unit.jobset import builders
from tests.unit.reporters.running import started

WRITES: Final[tuple[plan.Write, ...]] = (
    plan.CreateJob("js-w-0", {}),
    plan.DeleteJob("js-w-0", "uid"),
    plan.SuspendJob("js-w-0", "uid"),
    plan.ResumeJob("js-w-0", "uid", clear_start=True, template={}, annotations={}),
    plan.AnnotateJob("js-w-0", "uid", {}),
    plan.CreateService("js", {}),
    plan.CreateClaim("data-js", {}),
    plan.RequestRestart("js-reset-1", {}),
    plan.DeleteJobSet(),
)
NODE: Final = {
    "metadata": {"name": "n", "uid": "uid-n", "creationTimestamp": "2026-01-01T00:00:00Z", "labels": {"rack": "a"}},
    "status": {"conditions": [{"type": "Ready", "status": "True"}], "allocatable": {"pods": "10"}},
}
POD: Final = {
    "metadata": {
        "namespace": "team",
        "name": "js-w-0-0",
        "uid": "uid-p",
        "labels": {gangs.JOB_NAME: "js-w-0", naming.JOB_KEY: naming.job_key("team", "js-w-0")},
        "annotations": {naming.EXCLUSIVE_TOPOLOGY: "rack"},
    },
    "spec": {"schedulingGates": [exclusive.GATE_ENTRY]},
}
ASKED_BY_THE_SERVER: Final = {Right("update", "jobsets", "jobset.x-k8s.io", "finalizers")}
"""Admission requires it where an owner is named that blocks a deletion (``controller.jobset.children.naming``)."""


class Recorder(client.KubeClient):
    """An API server that refuses each write as too late, and records the requests.

    So all requests occur that a write can lead to.
    """

    def __init__(self, **items: list[Json]) -> None:
        super().__init__(kubeconfig=None, deadlines=client.Deadlines())
        self.asked: set[Right] = set()
        self.watched: set[str] = set()
        self._items = items

    async def _call(self, request: Request, *, attempts: int = 4) -> Json:
        target = request.target
        self._note(target)
        if target.verb == "get":
            return {"metadata": {"namespace": target.namespace, "name": target.name, "uid": "another"}}
        raise errors.AlreadyExistsError(f"cannot {target}")

    async def _page(self, request: Request, project: client.Project) -> client.Listing:
        self._note(request.target)
        return client.Listing([*map(project, self._items.get(request.target.resource, []))], "1")

    async def watch(self, path: str, **options: Any) -> AsyncGenerator[watch_protocol.WatchEvent, None]:
        target = paths.describe("GET", path, watch=True)
        self._note(target)
        self.watched.add(target.resource)
        await asyncio.Event().wait()
        yield watch_protocol.WatchEvent(watch_protocol.EventType.BOOKMARK, {})

    def has_been_asked(self, verb: str, resource: str) -> bool:
        return any((each.verb, each.resource) == (verb, resource) for each in self.asked)

    def _note(self, target: paths.Target) -> None:
        self.asked.add(Right(target.verb, target.resource, target.group, target.subresource))


def ignore(*_: Any) -> None:
    """Record the Events."""


async def asked_for() -> set[Right]:
    """Return the requests of running JobSets, with all outcomes."""
    api, jobset, metrics = Recorder(nodes=[NODE], pods=[POD]), builders.jobset(), JobSetMetrics(CollectorRegistry())
    views = Views(api=api, report=ignore, changed=ignore, jobset_changed=ignore)
    async with started(views):
        await views.wait_synced()
        writer = Writer(api=api, views=views, metrics=metrics, parallel=1)
        for write in WRITES:
            await writer.write(jobset, [[write]])
        await StatusWriter(api=api, views=views, metrics=metrics).write(jobset, {})
        await eventually.true(lambda: len(api.watched) == len(views._watches))
    events = Events(api=api, instance="one")
    events.record(JobSetRef("team", "js", "uid-js"), plan.Event(plan.EventType.NORMAL, "Started", "it"))
    async with started(events):
        await eventually.true(lambda: api.has_been_asked("create", "events"))
    taints = Taints(api=api, tainted=tuple)
    taints.fault("n", code="Xid79", pod="uid-p")
    async with started(taints):
        await eventually.true(lambda: api.has_been_asked("patch", "nodes"))
    wanted = Wanted(choosing.seeker("team", builders.job("w-0")), "uid-js")
    gates = PlacementReconciler(api=api, wanted=lambda: [wanted], report_waiting=ignore, report=ignore)
    gates.need("uid-js", needed=True)
    async with started(gates):
        await eventually.true(lambda: api.has_been_asked("patch", "pods") and {"pods", "nodes"} <= api.watched)
    return api.asked


async def test_role_for_jobsets_allows_exactly_the_requests() -> None:
    assert {type(each) for each in WRITES} == set(typing.get_args(plan.Write))
    own = roles.rights(controller_manifests.one("ClusterRole", name="kubemend-jobsets"))
    always = roles.rights(controller_manifests.one("ClusterRole", name="kubemend-controller"))
    asked = await asked_for()
    assert Right("get", "jobs", "batch") in asked
    assert asked - always == own - ASKED_BY_THE_SERVER
    assert own >= ASKED_BY_THE_SERVER
