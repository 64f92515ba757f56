"""Run the five walks, each on the wired parts of the agent or the controller, with stand-ins only outside of them.

What stands in: the kernel's log, /proc, cgroup files and the hold at the first instruction; the container runtime and
the hub (both behind gRPC); the API server, whose client ends where it would send.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final
from unittest import mock

from hack import kmsg
from kubemend.agent.actuator.hold.cgroups import Cgroup
from kubemend.agent.actuator.hold.freezer import Freezer
from kubemend.agent.clients.cri.client import CriClient
from kubemend.agent.clients.journal.store import Store
from kubemend.agent.faults.finding_queue import FindingQueue
from kubemend.agent.health.catalog import catalog_file
from kubemend.agent.hub.inbox import Inbox
from kubemend.agent.model.rounds import StepResult
from kubemend.agent.model.workloads import ContainerId
from kubemend.agent.reporters.pod_conditions import PodConditionReporter
from kubemend.agent.restarts.slots import Slots
from kubemend.agent.sources import kernel_log
from kubemend.common.coordination import StepPhase
from kubemend.common.kube import client, informer, watch_protocol
from kubemend.common.kube.transport import Json, Request
from kubemend.common.pb.coordination.v1 import coordination_pb2 as pb
from kubemend.controller.jobset.children import naming
from kubemend.controller.jobsets import views
from tests import eventually
from tests.environments import pod_env, restarts, runtime
from tests.environments.findings import FindingEnv
from tests.environments.rounds import RoundEnv
from tests.environments.runtime import POD, TARGET
from tests.fakes import freezer, outside
from tests.fakes.hub import FakeHub, FakeStream
from tests.fakes.listing_api import ListingApi
from tests.fakes.proc_tree import ProcTree
from tests.unit.faults import replayed, test_pipeline
from tests.unit.hub.env import HubEnv
from tests.unit.jobsets import builders
from tests.unit.jobsets import env as jobsets
from tests.unit.sources import kernel_logs
from tests.walks.recording import Recorder

_PID: Final = 4242  # of every container of the stand-in runtime
_TURNS: Final = 10
_ROUND: Final = "default/gang-1"


class _Api(client.KubeClient):
    """A client of the API server that sends nothing."""

    def __init__(self) -> None:
        super().__init__(kubeconfig=None, deadlines=client.Deadlines())

    async def _call(self, request: Request, *, attempts: int = 4) -> Json:
        return {"metadata": {"resourceVersion": "2"}}


async def line_to_condition(recorder: Recorder, directory: Path) -> None:
    """A line of the kernel log becomes the condition of the pod that holds the GPU."""
    log, notes, catalog = replayed.ReplayedLog(read_at=lambda: 51.0), kernel_logs.Notes(), catalog_file.builtin()
    async with _store(directory) as store:
        reporter = PodConditionReporter(
            api=_Api(), look_up=lambda uid: findings.pods.pods().get(uid), slots=Slots(8), spacing=0.0
        )
        findings = test_pipeline.PipelineEnv(store=store, said=reporter, catalog=catalog)  # type: ignore[arg-type]
        findings.holders.hold(test_pipeline.TRAINER)
        source = kernel_log.KernelLogSource(
            Path("/dev/kmsg"),
            boot_id=kernel_logs.BOOT,
            watched_since=0.0,
            catalog=catalog,
            emit=findings.queue.submit,
            report=notes.report,
            cursors=notes,
            meter=notes,
            sysfs=Path("/nonexistent"),
            open_log=lambda _: log,
            offset=lambda: kernel_logs.BOOTED_AT,
        )
        async with test_pipeline.running(findings), _at_work(reporter.run(), source.run()):
            log.print(kmsg.record("a line of no interest", seq=0, usec=49_000_000))
            await notes.until(lambda: notes.records == 1)
            assert await reporter.flush(timeout=10)
            await _all_wait()
            recorder.expect(begin=replayed.ReplayedLog.read, end=_Api._call)
            xid = "NVRM: Xid (PCI:0000:41:00): 95, pid='<unknown>', name=<unknown>, Uncontained ECC error"
            log.print(kmsg.record(xid, seq=1, usec=50_000_000))
            await recorder.wait_ended()


async def fault_to_swap(recorder: Recorder, directory: Path) -> None:
    """A finding about a container's process has its container replaced: the runtime is asked to start the successor."""
    async with runtime.cri_env_in(directory) as cri_env, restarts.restarts_on(cri_env, directory) as env:
        await env.pod.pods.put(replace(env.pod.pods.pods()[POD.uid], annotations={"kubemend.io/restart": "InPlace"}))
        catalog = catalog_file.builtin()
        findings = FindingEnv(
            store=env.store,
            restarts=env.restarts,
            pods=env.pod.pods,
            catalog=catalog,
            classify=catalog.classify,
            events=cri_env.watch,  # type: ignore[arg-type]
        )
        findings.holders.hold(TARGET)
        findings.processes.add(_PID, container=cri_env.old)
        findings.find_runtime(env.restarts, runtime=cri_env.cri)
        tasks = findings.engine.run(), findings.conditions.run()
        async with _at_work(*tasks), env.kubelet():
            await _all_wait()
            recorder.expect(begin=FindingQueue.submit, end=CriClient.start_container)
            findings.queue.submit(test_pipeline.xid(pid=_PID, observed_at=restarts.NOW))
            await recorder.wait_ended()
            await env.said.wait_for(POD, "kubemend.io/InPlaceRestart", "Swapped")


async def stop_to_freeze(recorder: Recorder, directory: Path) -> None:
    """The hub orders a member to stop; its successor's cgroup is frozen."""
    async with _member(directory) as member:
        recorder.expect(begin=Inbox.receive, end=Cgroup.freeze)
        await member.stop()
        await recorder.wait_ended()
        await member.reports(StepPhase.STOPPED)
        await member.release()
        await member.reports(StepPhase.RUNNING)


async def release_to_thaw(recorder: Recorder, directory: Path) -> None:
    """The hub releases a member; its cgroup is thawed."""
    async with _member(directory) as member:
        await member.stop()
        await member.reports(StepPhase.STOPPED)
        recorder.expect(begin=Inbox.receive, end=Cgroup.thaw)
        await member.release()
        await recorder.wait_ended()
        await member.reports(StepPhase.RUNNING)


async def job_to_restart(recorder: Recorder, _: Path) -> None:
    """A Job of a JobSet fails; its Jobs are deleted, and the first one of the next attempt is created."""
    api = _Cluster()
    leader = jobsets.Leader(api)  # type: ignore[arg-type]
    async with leader.leading():
        api.add(views.JOBSETS, builders.jobset("train", failurePolicy={"maxRestarts": 1}))
        await eventually.true(lambda: len(api.jobs) == 2 and leader.jobsets.is_settled(api.jobset["metadata"]["uid"]))
        recorder.expect(begin=informer.Informer._take, end=_Cluster.create_next_attempt)
        api.fail("train-w-0")
        await recorder.wait_ended()


WALKS: Final[Mapping[str, Callable[[Recorder, Path], Awaitable[None]]]] = {
    "kernel log line to pod condition": line_to_condition,
    "fault to swap": fault_to_swap,
    "Stop to cgroup freeze": stop_to_freeze,
    "Release to thaw": release_to_thaw,
    "Job failed to JobSet restart": job_to_restart,
}


@dataclass
class _Member:
    """A member of gang rounds, and its agent's stream to the hub."""

    stream: FakeStream

    async def stop(self) -> None:
        order = pb.Order(pod=pb.Pod(namespace=POD.namespace, name=POD.name, uid=POD.uid))
        stop = pb.Stop(round=_ROUND, orders=[order], attempt=1, cause_code="Exit1", hold_seconds=30.0)
        await self.stream.say(stop=stop)

    async def release(self) -> None:
        await self.stream.say(release=pb.Release(round=_ROUND, pod_uids=[POD.uid]))

    async def reports(self, phase: StepPhase) -> None:
        expected = pb.StepResult.Phase.Value(phase.name)
        while (await self.stream.next("result")).phase != expected:
            pass


class _Reporting(RoundEnv):
    """A member whose states go to the hub."""

    def __init__(self, pod: pod_env.PodEnv, *, store: Store, freezer: Any) -> None:
        super().__init__(pod, store=store, freezer=freezer)
        self.report: Callable[[StepResult], None] = lambda _: None

    def _deliver(self, step_result: StepResult) -> None:
        self.report(step_result)


@dataclass
class _Holds:
    """Hold each container at its first instruction."""

    waiting: set[ContainerId] = field(default_factory=set)

    async def arm(self, container_id: ContainerId) -> Any:
        self.waiting.add(container_id)
        return freezer._Armed(self, container_id)  # type: ignore[arg-type]


class _Freezer(Freezer):
    """The agent's own freezer, with the fields of the fake one."""

    waiting: set[ContainerId]
    since_boot: Callable[[], float]


@contextlib.asynccontextmanager
async def _member(directory: Path) -> AsyncIterator[_Member]:
    """Connect a member to a hub. All its containers have one process and one cgroup, of plain files without marks."""
    async with _store(directory) as store, runtime.cri_env_in(directory) as cri_env, pod_env.made(cri_env) as pod:
        tree, processes, holds = ProcTree(directory / "node"), outside.Processes(), _Holds()
        tree.run(cri_env.old, pid=_PID)
        (tree.group(cri_env.old) / "cgroup.freeze").touch()
        processes.add(_PID, container=cri_env.old)
        made = _Freezer(
            runtime=cri_env.cri,
            holds=holds,  # type: ignore[arg-type]
            processes=processes,  # type: ignore[arg-type]
            proc=tree.proc,
            cgroup_root=tree.cgroups,
            owner="node-1 /run/cri.sock",
        )
        made.waiting = holds.waiting
        env = _Reporting(pod, store=store, freezer=made)
        await env.annotate(restart="InPlace")
        side = HubEnv(directory=directory, store=store, pods=pod.pods)
        with mock.patch.object(Cgroup, "put_mark"):
            async with side.replica() as hub, _connected(env, hub=hub, side=side) as stream:
                yield _Member(stream)


@contextlib.asynccontextmanager
async def _connected(env: _Reporting, *, hub: FakeHub, side: HubEnv) -> AsyncIterator[FakeStream]:
    agent = side.agent(hub)
    env.report = agent.report_result
    await env.start()
    cri_env = env.pod.cri_env
    async with _at_work(agent.run(rounds=env.rounds, containers=cri_env.watch, runtime=cri_env.cri)):
        stream, _ = await hub.welcomed()
        yield stream
        await env.die()


class _Cluster(ListingApi):
    """An API server with one JobSet, whose objects change as the controller writes them."""

    def __init__(self) -> None:
        super().__init__()
        self.jobset: Json = {}
        self.jobs: dict[str, Json] = {}
        self._changes: dict[str, asyncio.Queue[tuple[watch_protocol.EventType, Json]]] = {}
        self._version = 1

    def add(self, path: str, obj: Json) -> None:
        self._send(path, watch_protocol.EventType.ADDED, self._stored(obj))

    def fail(self, name: str) -> None:
        """Have the Job controller end a Job."""
        condition = {"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded", "message": ""}
        job = self._stored({**self.jobs[name], "status": {"failed": 1, "conditions": [condition]}})
        self._send(views.JOBS, watch_protocol.EventType.MODIFIED, job)

    def create_next_attempt(self) -> None:
        """A Job of the next attempt is created."""

    async def watch(self, path: str, **options: Any) -> AsyncGenerator[watch_protocol.WatchEvent, None]:
        changes = self._changes.setdefault(path, asyncio.Queue())
        while True:
            kind, obj = await changes.get()
            yield watch_protocol.WatchEvent(kind, options["project"](obj), obj["metadata"]["resourceVersion"])

    async def create(self, path: str, body: Json) -> Json:
        made = self._stored(body)
        if path.endswith("/jobs"):
            if body["metadata"]["labels"][naming.RESTART_ATTEMPT] == "1":
                self.create_next_attempt()
            self.jobs[made["metadata"]["name"]] = made
        return made

    async def update(self, path: str, body: Json, *, attempts: int = 4) -> Json:
        return self._stored({**self.jobset, "status": body["status"]})

    async def delete(self, path: str, *, options: Json | None = None) -> Json:
        return {"kind": "Status"}

    def _stored(self, obj: Json) -> Json:
        self._version += 1
        about = {
            "namespace": "default",
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "uid": f"uid-{self._version}",
            **obj["metadata"],
            "resourceVersion": str(self._version),
        }
        stored = {**obj, "metadata": about}
        if obj.get("kind") == "JobSet":
            self.jobset = stored
        return stored

    def _send(self, path: str, kind: watch_protocol.EventType, obj: Json) -> None:
        self._changes.setdefault(path, asyncio.Queue()).put_nowait((kind, obj))


@contextlib.asynccontextmanager
async def _store(directory: Path) -> AsyncIterator[Store]:
    store = await Store.open(directory / "state.db")
    try:
        yield store
    finally:
        await store.close()


async def _all_wait() -> None:
    """Let tasks that have just been made begin to wait."""
    for _ in range(_TURNS):
        await asyncio.sleep(0)


@contextlib.asynccontextmanager
async def _at_work(*works: Any) -> AsyncIterator[None]:
    """Run these for the length of the block."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
