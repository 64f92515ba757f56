"""Members of gang rounds on the fake runtime, and the agent that they belong to, which can die and come back."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from kubemend.agent.actuator.device_proof import Prover
from kubemend.agent.actuator.device_release import open_gates
from kubemend.agent.clients.journal.store import Store
from kubemend.agent.health.catalog import catalog_file
from kubemend.agent.health.state.heartbeat import Mark, Poll
from kubemend.agent.health.state.next_step import FileCheck
from kubemend.agent.model.actions import ActionClass
from kubemend.agent.model.devices import DeviceLocator
from kubemend.agent.model.findings import Finding, FindingKind, Source
from kubemend.agent.model.rounds import Order, StepResult
from kubemend.agent.model.workloads import (
    Allocations,
    ContainerId,
    ContainerRef,
    ContainerState,
    ContainerSummary,
    PodUid,
)
from kubemend.agent.restart import admission
from kubemend.agent.restarts.next_step_timer import NextStepTimer
from kubemend.agent.restarts.recovery import Recovery
from kubemend.agent.restarts.scheduler import RestartScheduler
from kubemend.agent.restarts.verifier import Timeouts
from kubemend.agent.rounds import step_reports
from kubemend.agent.rounds.order_resolver import NodePolicy
from kubemend.agent.rounds.participant import RoundParticipant
from kubemend.agent.rounds.round_records import Clocks
from kubemend.common.coordination import FaultAnswer, FaultKind, OrderKind, StepPhase
from tests import eventually
from tests.environments import pod_env
from tests.environments.node import NodeEnv
from tests.environments.pod_env import PodEnv
from tests.environments.restarts import NOW, dependencies
from tests.environments.runtime import POD, CriEnv
from tests.fakes import outside
from tests.fakes.freezer import Freezer
from tests.fakes.launchers import Launchers

DEADLINE = 60.0
MAINS = {"trainer", "logger"}


@dataclass
class Received:
    """The member's states, as they were reported.

    ``deaths`` are those of members whose successor has not started; ``starts`` report a start that is under way.
    """

    settled: Callable[[], bool]
    step_results: "asyncio.Queue[StepResult]" = field(default_factory=asyncio.Queue)
    deaths: "asyncio.Queue[StepResult]" = field(default_factory=asyncio.Queue)
    starts: "asyncio.Queue[StepResult]" = field(default_factory=asyncio.Queue)

    def put(self, step_result: StepResult) -> None:
        apart = {step_reports.NOT_STARTED: self.deaths, "Starting": self.starts}
        is_stopped = step_result.phase is StepPhase.STOPPED
        (apart.get(step_result.reason, self.step_results) if is_stopped else self.step_results).put_nowait(step_result)

    async def next(self) -> StepResult:
        """Return the next state, except deaths and starts; one that has stopped is held then."""
        async with asyncio.timeout(DEADLINE):
            step_result = await self.step_results.get()
            if step_result.phase is StepPhase.STOPPED:
                await eventually.true(self.settled)
            return step_result

    async def death(self) -> StepResult:
        async with asyncio.timeout(DEADLINE):
            return await self.deaths.get()

    async def start(self) -> StepResult:
        async with asyncio.timeout(DEADLINE):
            return await self.starts.get()


@dataclass
class Gangs:
    """Reports what the test sets, and records the queries."""

    answer: FaultAnswer = FaultAnswer.ALONE
    asked: list[tuple[ContainerRef, FaultKind]] = field(default_factory=list)

    async def report_fault(self, target: ContainerRef, cause: admission.Cause, *, kind: FaultKind) -> FaultAnswer:
        self.asked.append((target, kind))
        return self.answer

    async def device_lost(self, target: ContainerRef, cause: admission.Cause) -> FaultAnswer:
        return await self.report_fault(target, cause, kind=FaultKind.DEVICE)


class RoundEnv:
    """One pod on the runtime, and the components of an agent, which can die and come back."""

    def __init__(self, pod: PodEnv, *, store: Store, freezer: Freezer) -> None:
        self.pod = pod
        self.store = store
        self.freezer = freezer
        self.gangs = Gangs()
        self.said = outside.Conditions()
        self.owners = outside.Owners()
        self.since_boot = 100.0
        freezer.since_boot = lambda: self.since_boot
        self.boot = "this"
        self.bounds = NodePolicy()
        self.launchers = Launchers()
        self.gates = open_gates()
        self.prover: Prover | None = None
        self.holders = outside.Holders(Allocations(known=True))
        self.tasks: list[asyncio.Task[Any]] = []
        self.received: dict[tuple[str, PodUid], Received] = {}

    async def start(self) -> None:
        """Start an agent; it resumes what a previous one left."""
        node = NodeEnv(store=self.store, boot_id="b", catalog=catalog_file.builtin(), holders=self.holders)
        everything = dependencies(
            replace(self.pod.cri_env.tools(), launchers=self.launchers, gates=self.gates),
            runtime=self.pod.cri_env.cri,
            events=self.pod.cri_env.watch,
            pods=self.pod.pods,
            owners=self.owners,
            reporter=self.said,
            launchers=self.launchers,
            prover=self.prover,
            device_facts=node.facts(),
        )
        self.registry, metrics = node.registry, node.metrics
        self.verdict_store, self.devices = node.verdict_store, node.devices
        self.next_steps = NextStepTimer(metrics=metrics)
        self.restarts = RestartScheduler(
            dependencies=everything,
            store=self.store,
            metrics=metrics,
            now=lambda: NOW,
            can_hold=True,
            next_steps=self.next_steps,
            gangs=self.gangs,
        )
        self.rounds = RoundParticipant(
            dependencies=everything,
            store=self.store,
            restarts=self.restarts,
            freezer=self.freezer,
            device_facts=node.facts(),
            clocks=Clocks(now=lambda: NOW, since_boot=lambda: self.since_boot, boot=self.boot),
            metrics=metrics,
            on_result=self._deliver,
            bounds=self.bounds,
        )
        self.held = await self.rounds.load()
        self.tasks.append(asyncio.create_task(self.rounds.run(), name="rounds"))
        at_once = Timeouts(kubelet=0.0, pod=0.0)  # no test acts as kubelet
        await Recovery(
            dependencies=everything, store=self.store, now=lambda: NOW, timeouts=at_once, spared=self.held
        ).run()

    def order(self, **changes: Any) -> Received:
        """Carry out an order. The newest order of a round receives the member's states."""
        reported, made = Received(self._is_settled), order(**changes)
        self.received[made.round, made.pod] = reported
        work = self.rounds.handle_order(made, pod=replace(POD, uid=made.pod))
        self.tasks.append(asyncio.create_task(work, name="order"))
        return reported

    def needs_reset(self) -> None:
        """Let the node's GPU need a reset."""
        xid = Finding(
            source=Source.KERNEL_LOG,
            kind=FindingKind.XID,
            code="48",
            device=DeviceLocator(uuid=outside.GPU.uuid),
            action=ActionClass.RESET_DEVICE,
            observed_at=NOW,
        )
        self.verdict_store.apply(xid, inventory=self.devices.inventory)

    def _deliver(self, step_result: StepResult) -> None:
        if (reported := self.received.get((step_result.round, step_result.pod.uid))) is not None:
            reported.put(step_result)

    def _is_settled(self) -> bool:
        """Return whether no restart acts: a member is reported as stopped before its restart has ended."""
        return self.restarts.quiet.is_set()

    async def exits(self, name: str, *, code: int) -> None:
        """End a container by itself; the agent receives the event."""
        self.pod.cri_env.server.runtime.exit(self.pod.old[name], exit_code=code)
        await eventually.true(
            lambda: any(
                view.id == self.pod.old[name] and view.state is ContainerState.EXITED
                for view in self.pod.cri_env.watch.containers()
            )
        )

    async def stands(self, phase: StepPhase) -> None:
        """Wait until the only member reaches the phase."""
        await eventually.true(lambda: [step_result.phase for step_result in self.rounds.step_results()] == [phase])

    async def die(self) -> None:
        """Kill the agent without cleanup. Containers on exec hold run: the kernel has no process to ask."""
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        self.tasks.clear()
        self.freezer.waiting.clear()

    async def annotate(self, **annotations: str) -> None:
        wishes = {f"kubemend.io/{key}": text for key, text in annotations.items()}
        await self.pod.pods.put(replace(self.pod.pods.pods()[POD.uid], annotations=wishes))

    async def is_written_off(self) -> bool:
        """Return whether the record on disk shows that nothing is held."""
        return all(record.released for record in await self.store.records())

    def touches(self, container: ContainerSummary) -> float | None:
        """Touch a container's heartbeat file, and check it; return how many next steps have been observed."""
        at, unix = time.monotonic(), time.time()
        mark = Mark(device=1, inode=1, modified=0, changed=int(unix * 1e9))
        poll = Poll(began=at, ended=at, slept=time.clock_gettime(time.CLOCK_BOOTTIME) - at, result=mark)
        self.next_steps.polled(container, FileCheck(poll, unix=unix, started_at=unix))
        labels = {"strategy": "swap", "since": "start"}
        return self.registry.get_sample_value("kubemend_restart_next_step_seconds_count", labels)

    async def newest(self) -> dict[str, ContainerId]:
        return {view.ref.name: view.id for view in await self.pod.containers()}


def order(**changes: Any) -> Order:
    defaults: dict[str, Any] = {
        "round": "default/gang-1",
        "attempt": 1,
        "pod": POD.uid,
        "kind": OrderKind.RESTART,
        "cause_code": "Exit",
        "cause_message": "trainer-3 exited with 1",
        "hold_seconds": 1000.0,
    }
    return Order(**defaults | changes)


@contextlib.asynccontextmanager
async def round_on(cri_env: CriEnv, directory: Path) -> AsyncIterator[RoundEnv]:
    """Run a pod that has opted in on the runtime, and an agent with a state file in that directory."""
    store = await Store.open(directory / "state.db")
    async with pod_env.made(cri_env) as pod:
        env = RoundEnv(pod, store=store, freezer=Freezer(cri_env.server.runtime))
        await env.annotate(restart="InPlace")
        await env.start()
        yield env
        await env.die()
    await store.close()
    assert env.freezer.still() == set(), "a container stays frozen"
    assert env.freezer.waiting == set()
