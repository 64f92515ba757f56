"""Provide a node for rounds on the real containerd: the agent's own parts, a hand-made API view of pods, no kubelet."""

import asyncio
import contextlib
import os
import sys
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from google.protobuf import json_format

from hack.devnode import patience
from hack.devnode.containerd import Containerd
from hack.devnode.layout import NodeLayout
from kubemend.agent.actuator.context import ActuatorContext
from kubemend.agent.actuator.hold.exec_hold import ExecHolds
from kubemend.agent.actuator.hold.freezer import Freezer
from kubemend.agent.actuator.hold.standby import Standbys
from kubemend.agent.actuator.host_files import HostFiles
from kubemend.agent.clients.cri.client import CriClient
from kubemend.agent.clients.cri.events import ContainerEvent, EventKind
from kubemend.agent.clients.journal.store import Store
from kubemend.agent.health.catalog import catalog_file
from kubemend.agent.model.rounds import Order, StepResult
from kubemend.agent.model.workloads import (
    Allocations,
    ContainerId,
    ContainerRole,
    ContainerSpec,
    ContainerState,
    ContainerSummary,
    PodRef,
    PodUid,
    PodView,
    RestartPolicy,
    SandboxId,
)
from kubemend.agent.restart import members
from kubemend.agent.restarts.recovery import Recovery
from kubemend.agent.restarts.scheduler import RestartScheduler
from kubemend.agent.rounds.participant import RoundParticipant
from kubemend.agent.rounds.round_records import Clocks, since_boot
from kubemend.agent.rounds.step_reports import NOT_STARTED
from kubemend.agent.sources.containers import ContainerWatch
from kubemend.agent.sources.processes import ProcFs
from kubemend.common import process
from kubemend.common.coordination import OrderKind, StepPhase
from kubemend.common.pb.runtime.v1 import api_pb2
from tests import eventually
from tests.devnode.pods import Pods, RunningPod, container
from tests.environments.node import NodeEnv
from tests.environments.restarts import dependencies
from tests.environments.swaps import mark_owner
from tests.fakes import outside

DEADLINE = 60.0
VOLUME = [{"name": "data", "mountPath": "/data"}]
SCRIPT = "read up idle < /proc/uptime; echo $up >> /data/runs; while :; do sleep 1; done"
"""Records, by the kernel's clock since boot, when its first instruction ran; /proc/uptime counts hundredths."""
TICK = 0.01
CGROUPS = Path("/sys/fs/cgroup")


_RELIST = 0.2


@dataclass
class Received:
    """The reported phase of a member. ``quiet`` is set while no restart acts."""

    quiet: asyncio.Event
    step_results: list[StepResult] = field(default_factory=list)

    def __call__(self, step_result: StepResult) -> None:
        if step_result.reason != NOT_STARTED:
            self.step_results.append(step_result)

    @property
    def phases(self) -> list[StepPhase]:
        return [step_result.phase for step_result in self.step_results]

    async def until(self, phase: StepPhase) -> StepResult:
        """Wait for the phase; the runtime learns a little later that the containers of a stopped member are dead."""
        await eventually.true(lambda: phase in self.phases, look_again=0.002)
        if phase is StepPhase.STOPPED:
            await eventually.true(self.quiet.is_set, look_again=0.002)
        return next(step_result for step_result in self.step_results if step_result.phase is phase)


@dataclass
class Agent:
    """Represent one life of an agent's parts: it ends like a killed one, without a chance to clean up."""

    rounds: RoundParticipant
    restarts: RestartScheduler
    store: Store
    events: ContainerWatch
    runtime: CriClient
    tasks: list[asyncio.Task[Any]]
    received: dict[tuple[str, PodUid], Received]

    def order(self, order: Order) -> Received:
        """Have an order carried out."""
        reported = self.received[order.round, order.pod] = Received(self.restarts.quiet)
        work = self.rounds.handle_order(order, pod=PodRef("", "", order.pod))
        self.tasks.append(asyncio.create_task(work, name=f"order {order.pod}"))
        return reported

    async def stands(self, phase: StepPhase) -> None:
        """Wait until the only member reports that phase."""
        await eventually.true(lambda: [step_result.phase for step_result in self.rounds.step_results()] == [phase])

    async def nothing_is_open(self) -> None:
        """Wait until the journal has no open restart."""

        async def closed() -> bool:
            return await self.store.unfinished() == ()

        await eventually.true(closed)

    async def die(self) -> None:
        """End everything at once."""
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)


@dataclass
class RoundNode:
    """Manage pods in the shared containerd, and their agents."""

    containerd: Containerd
    made: Pods
    directory: Path
    views: outside.Pods = field(default_factory=outside.Pods)
    running: dict[PodUid, RunningPod] = field(default_factory=dict)

    async def pod(
        self, name: str, *, policy: RestartPolicy = RestartPolicy.ALWAYS, mains: Iterable[str] = ("main",)
    ) -> PodView:
        """Start a pod, and show it in the API view."""
        mains = tuple(mains)
        pod = await self.made.run(
            name=name,
            containers=[container(main, SCRIPT, volumeMounts=VOLUME) for main in mains],
            volumes=[{"name": "data", "emptyDir": {}}],
            restartPolicy=policy.value,
        )
        view = pod_view(
            name,
            uid=PodUid(pod.pod.uid),
            policy=policy,
            containers={main: ContainerId(pod.containers[main]) for main in mains},
        )
        self.running[view.ref.uid] = pod
        await self.views.put(view)
        await self.has_run(view, times=len(mains))
        return view

    def runs(self, pod: PodView) -> list[float]:
        """Return when containers of the pod began to run, in seconds since boot."""
        directory = self.containerd.node.pod_dir(pod.ref.uid) / "volumes" / "kubernetes.io~empty-dir" / "data"
        file = directory / "runs"
        return [float(line) for line in file.read_text().split()] if file.exists() else []

    async def has_run(self, pod: PodView, *, times: int) -> list[float]:
        await eventually.true(lambda: len(self.runs(pod)) >= times)
        return self.runs(pod)

    @contextlib.asynccontextmanager
    async def agent(self, *, can_hold: bool = True, later: float = 0.0) -> AsyncIterator[Agent]:
        """Start an agent; ``can_hold`` False: fanotify is unavailable. Its clock is ``later`` seconds ahead."""
        here = self.containerd.node
        async with agent(here, directory=self.directory, views=self.views, can_hold=can_hold, later=later) as made:
            yield made

    async def running_in(self, pod: PodView) -> list[ContainerSummary]:
        """Return the containers that run for the runtime, and have a process: it learns of a death a little later."""
        async with self._runtime() as cri:
            found = await cri.list_containers(pod_uid=pod.ref.uid, state=ContainerState.RUNNING)
        return [view for view in found if "populated 1" in self._cgroup_events(view.id)]

    async def only_runs(self, pod: PodView, container_id: ContainerId | None) -> None:
        """Wait until no other container of the pod runs."""
        wanted = [container_id] if container_id is not None else []

        async def so() -> bool:
            return [view.id for view in await self.running_in(pod)] == wanted

        await eventually.true(so)

    def is_frozen(self, container_id: ContainerId) -> bool:
        """Return whether the kernel has frozen a container that has not ended."""
        return "frozen 1" in self._cgroup_events(container_id)

    def can_run(self, container_id: ContainerId) -> bool:
        """Return whether a container has processes that may run; one that ended since the listing has none."""
        return {"populated 1", "frozen 0"} <= set(self._cgroup_events(container_id))

    def _cgroup_events(self, container_id: ContainerId) -> list[str]:
        """Return the lines of its ``cgroup.events``; empty once its cgroup is removed."""
        for directory, _, files in os.walk(CGROUPS):  # unlike rglob, it ignores cgroups that disappear during the walk
            if container_id in Path(directory).name and "cgroup.events" in files:
                with contextlib.suppress(OSError):
                    return (Path(directory) / "cgroup.events").read_text().splitlines()
        return []

    async def comes_to_stand(self, container_id: ContainerId) -> None:
        """Wait until the kernel has frozen a container: it reports that once its processes have left their waits."""
        await eventually.true(lambda: self.is_frozen(container_id))

    @contextlib.asynccontextmanager
    async def watching(self, pod: PodView) -> "AsyncIterator[asyncio.Queue[ContainerEvent]]":
        """Follow a pod's containers as an independent observer."""
        async with self._runtime() as cri:
            watch = ContainerWatch(cri, report=lambda _: None)
            work = asyncio.create_task(watch.run())
            async with watch.subscribe(pod.ref.uid) as events:
                yield events
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)

    @staticmethod
    async def until_event(events: "asyncio.Queue[ContainerEvent]", moment: str, *, old: ContainerId) -> None:
        """Wait for the old container's end, or for the creation or start of a new one."""
        wanted = {
            "old stopped": (EventKind.STOPPED, True),
            "created": (EventKind.CREATED, False),
            "started": (EventKind.STARTED, False),
        }[moment]
        async with asyncio.timeout(DEADLINE):
            while True:
                event = await events.get()
                if (event.kind, event.container.id == old) == wanted:
                    return

    @contextlib.asynccontextmanager
    async def mortal_agent(
        self, pod: PodView, *, switch: float | None = None, starts: bool = True
    ) -> AsyncIterator[asyncio.subprocess.Process]:
        """Run an agent in a process of its own, which carries out a round's order.

        ``switch``: its frozen containers are released this many seconds after its end. ``starts`` False: it waits
        before its first StartContainer, so that its end cannot come while containerd starts a container, which it
        would kill then.
        """
        (spec,) = pod.containers
        arguments = (self.containerd.node.name, self.directory, pod.ref.name, pod.ref.uid, pod.restart_policy.value)
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "tests.containerd.mortal_agent",
            *map(str, arguments),
            str(spec.container_id),
            "" if switch is None else str(switch),
            "" if starts else "before-start",
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        try:
            yield process
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()

    def forget_everything(self) -> None:
        """Replace the disk with the agent's state."""
        for file in self.directory.glob("state.db*"):
            file.unlink()

    async def kubelet_starts(self, pod: PodView, *, attempt: int) -> ContainerId:
        """Do what kubelet does before it has seen kubemend's successor: start the same container once more."""
        made = self.running[pod.ref.uid]
        async with self._runtime() as cri:
            info = await cri.container_status(ContainerId(made.containers["main"]))
            assert info.config is not None
            plain = {key: value for key, value in info.config.items() if key != "envs"}
            config = json_format.ParseDict(plain, api_pb2.ContainerConfig())
            config.metadata.attempt = attempt
            config.log_path = f"main/{attempt}.log"
            container_id = await cri.create_container(
                sandbox_id=SandboxId(made.sandbox_id), config=config, sandbox_config=made.sandbox
            )
            await cri.start_container(container_id)
        return container_id

    def _runtime(self) -> CriClient:
        return CriClient(str(self.containerd.node.containerd_socket), deadlines=patience.RUNTIME)


@contextlib.asynccontextmanager
async def agent(
    node: NodeLayout, *, directory: Path, views: outside.Pods, can_hold: bool = True, later: float = 0.0
) -> AsyncIterator[Agent]:
    """Run an agent's parts on the node, with their state in a directory; kubelet's status is kept in ``views``."""
    socket = str(node.containerd_socket)
    store = await Store.open(directory / "state.db")
    env = NodeEnv(store=store, boot_id="this", catalog=catalog_file.builtin())
    env.holders.allocations = Allocations(known=True)
    processes = ProcFs()
    holds = ExecHolds(socket_path=socket, proc=processes.root)
    owner = mark_owner(node, directory=directory)
    standbys = Standbys(holds=holds, proc=processes.root, cgroup_root=processes.cgroup_root, owner=owner)
    async with CriClient(socket, deadlines=patience.RUNTIME) as cri:
        events = ContainerWatch(cri, report=lambda _: None)
        tools = ActuatorContext(
            runtime=cri,
            events=events,
            files=HostFiles(symlink_dir=node.container_log_links),
            standbys=standbys if can_hold else None,
        )
        everything = dependencies(tools, runtime=cri, events=events, pods=views, processes=processes)
        restarts = RestartScheduler(
            dependencies=everything, store=store, metrics=env.metrics, now=time.time, can_hold=can_hold
        )
        received: dict[tuple[str, PodUid], Received] = {}

        def deliver(step_result: StepResult) -> None:
            reported = received.get((step_result.round, step_result.pod.uid))
            if reported is not None:  # else a resumed member reports before its order is repeated, which reports again
                reported(step_result)

        rounds = RoundParticipant(
            dependencies=everything,
            store=store,
            restarts=restarts,
            freezer=Freezer(
                runtime=cri,
                holds=holds if can_hold else None,
                processes=processes,
                proc=processes.root,
                cgroup_root=processes.cgroup_root,
                owner=owner,
            ),
            device_facts=env.facts(),
            clocks=Clocks(now=time.time, since_boot=lambda: since_boot() + later, boot="this"),
            metrics=env.metrics,
            on_result=deliver,
        )
        held = await rounds.load()
        works = (events.run(), rounds.run(), _kubelet(events, views))
        with process.raised_priority():
            tasks = [asyncio.create_task(work) for work in works]
            agent = Agent(rounds, restarts, store, events, cri, tasks=tasks, received=received)
            try:
                await eventually.true(lambda: bool(events.containers()))
                await Recovery(dependencies=everything, store=store, now=time.time, spared=held).run()
                yield agent
            finally:
                await agent.die()
                await store.close()


async def _kubelet(events: ContainerWatch, views: outside.Pods) -> None:
    """Show the running containers in the pods' status, as kubelet does."""
    async with events.subscribe() as changes:
        while True:
            for pod in list(views.pods().values()):
                mine = members.newest(view for view in events.containers() if view.ref.pod.uid == pod.ref.uid)
                specs = tuple(_shown(spec, mine.get(spec.name)) for spec in pod.containers)
                if specs != pod.containers:
                    await views.put(replace(pod, containers=specs))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_RELIST):
                    await changes.get()


def pod_view(name: str, *, uid: PodUid, policy: RestartPolicy, containers: Mapping[str, ContainerId]) -> PodView:
    """Return a pod as the API shows it: opted in, with these main containers running."""
    specs = (
        ContainerSpec(name=main, role=ContainerRole.MAIN, container_id=container_id, running=True)
        for main, container_id in containers.items()
    )
    return PodView(
        ref=PodRef("default", name, uid),
        phase="Running",
        restart_policy=policy,
        containers=tuple(specs),
        annotations={"kubemend.io/restart": "InPlace"},
    )


def order(pod: PodView, *, number: int = 1, kind: OrderKind = OrderKind.RESTART, hold_seconds: float = 600.0) -> Order:
    """Return an order of a round. Its hold lasts longer than a busy machine needs for any test."""
    return Order(
        round=f"default/gang-{number}",
        attempt=number,
        pod=pod.ref.uid,
        kind=kind,
        cause_code="Exit",
        cause_message="trainer-0 exited with 1",
        hold_seconds=hold_seconds,
    )


def _shown(spec: ContainerSpec, view: ContainerSummary | None) -> ContainerSpec:
    running = view is not None and view.state is ContainerState.RUNNING
    return replace(spec, container_id=view.id if view is not None else None, running=running)
