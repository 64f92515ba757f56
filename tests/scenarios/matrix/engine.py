"""Run the agent's restart code in this process, between the proxy and the node's API: all but the sources of faults."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hack.devnode import node
from kubemend.agent.actuator import progress
from kubemend.agent.actuator.context import ActuatorContext
from kubemend.agent.actuator.hold.exec_hold import ExecHolds, HoldError
from kubemend.agent.actuator.hold.standby import Standbys
from kubemend.agent.actuator.host_files import HostFiles
from kubemend.agent.clients.cri.client import CriClient, Deadlines
from kubemend.agent.clients.journal.store import Store
from kubemend.agent.model.workloads import ContainerRef
from kubemend.agent.restart import admission, verification
from kubemend.agent.restarts.requests import Request
from kubemend.agent.restarts.scheduler import Limits, RestartScheduler
from kubemend.agent.restarts.verifier import Timeouts
from kubemend.agent.sources.containers import ContainerWatch
from kubemend.agent.sources.pods import PodWatch
from kubemend.agent.sources.processes import ProcFs
from kubemend.common import budgets
from kubemend.common.kube.client import KubeClient
from tests.environments.node import metrics
from tests.environments.restarts import dependencies

# A call that is held at its place must not exceed its timeout in the meantime.
_DEADLINES = Deadlines(read=60.0, change=120.0, margin=120.0)
# Kubelet is held until the slowest restart of a batch has acted.
_VERIFICATION = Timeouts(kubelet=120.0, pod=120.0)
_NO_STORM = budgets.Window(limit=1_000_000, seconds=1.0)  # a matrix has this many restarts in a row
_PROC, _CGROUPS = Path("/proc"), Path("/sys/fs/cgroup")


@dataclass(slots=True)
class ProgressRecorder:
    """Follow one restart. ``acted`` is set when all calls have been made, or none will be."""

    decision: admission.Decision | None = None
    report: progress.Reported | None = None
    acted: asyncio.Event = field(default_factory=asyncio.Event)

    def notify(self, event: progress.Event) -> None:
        """Process an event."""
        if isinstance(event, progress.Decided):
            self.decision = event.decision
        if isinstance(event, progress.Reported):
            self.report = event
            self.acted.set()

    @property
    def checks(self) -> Sequence[verification.Check]:
        """Return what the agent itself has verified."""
        return self.report.checks if self.report is not None and self.report.settled else ()


@dataclass(frozen=True, slots=True)
class Engine:
    """Restart pods on request. ``can_hold``: whether a container can be held at its first instruction here."""

    restarts: RestartScheduler
    events: ContainerWatch
    pods: PodWatch
    can_hold: bool

    async def restart(self, target: ContainerRef, followed: ProgressRecorder) -> None:
        """Carry one restart out, as for a fault of this very moment."""
        cause = admission.Cause(code="Matrix", message="a cell of the matrix", happened_at=time.time())
        try:
            await self.restarts.submit(
                Request(target=target, cause=lambda: cause, devices=frozenset(), followed=followed)
            )
        finally:
            followed.acted.set()


@contextlib.asynccontextmanager
async def running(
    dev: node.DevNode, *, cri_socket: Path, api: KubeClient, state: Path, side_by_side: int
) -> AsyncIterator[Engine]:
    """Run restarts that reach the runtime at ``cri_socket``, for ``side_by_side`` pods at once."""
    store = await Store.open(state)
    async with CriClient(str(cri_socket), deadlines=_DEADLINES) as cri, contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(store.close)
        standbys = await standby(dev, cri)
        events = ContainerWatch(cri, report=lambda _: None)
        pods = PodWatch(api=api, node_name=dev.name, report=lambda _: None)
        for work in (events.run(), pods.run()):
            stack.push_async_callback(_ended, asyncio.create_task(work))
        files = HostFiles(symlink_dir=dev.layout.container_log_links)
        tools = ActuatorContext(
            runtime=cri,
            events=events,
            files=files,
            time_limit=300.0,
            standbys=standbys,
            kubelet_creates=pods.kubelet_creates,
        )
        parts = dependencies(tools, runtime=cri, events=events, pods=pods, processes=ProcFs())
        restarts = RestartScheduler(
            dependencies=parts,
            store=store,
            metrics=metrics(),
            now=time.time,
            can_hold=standbys is not None,
            limits=Limits(parallel_pods=2 * side_by_side),  # one namespace never has all of them
            storm=_NO_STORM,
        )
        restarts._executor._conclusions._verifier._timeouts = _VERIFICATION
        yield Engine(restarts=restarts, events=events, pods=pods, can_hold=standbys is not None)


async def standby(dev: node.DevNode, cri: CriClient) -> Standbys | None:
    """Return the hold mechanism for successors at their first instruction, where this machine supports it."""
    holds = ExecHolds(socket_path=str(dev.layout.containerd_socket), proc=_PROC, roots=cri)
    found = Standbys(holds=holds, proc=_PROC, cgroup_root=_CGROUPS)
    try:
        await found.check()
    except HoldError:
        return None
    return found


async def _ended(task: "asyncio.Task[None]") -> None:
    task.cancel()
    await asyncio.wait({task})
