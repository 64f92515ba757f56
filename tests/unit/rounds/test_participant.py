"""Run round members on the stand-in runtime: reports, holds, and resuming by the next agent."""

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from prometheus_client import CollectorRegistry

from kubemend.agent.clients.journal.store import Store
from kubemend.agent.devices.verdict_store import VerdictStore
from kubemend.agent.health.catalog import catalog_file
from kubemend.agent.health.state.heartbeat import Mark, Poll
from kubemend.agent.health.state.next_step import Look
from kubemend.agent.metrics import Metrics
from kubemend.agent.model.rounds import Order, Standing
from kubemend.agent.model.workloads import (
    Allocations,
    ContainerId,
    ContainerRef,
    ContainerState,
    ContainerSummary,
    ExecHook,
    OwnerRef,
    PodUid,
    Probe,
    RestartPolicy,
)
from kubemend.agent.restart import admission, probes
from kubemend.agent.restarts.dependencies import Actuators, Dependencies
from kubemend.agent.restarts.next_step_timer import NextStepTimer
from kubemend.agent.restarts.recovery import Recovery
from kubemend.agent.restarts.scheduler import Request, RestartScheduler
from kubemend.agent.restarts.verifier import Patience
from kubemend.agent.rounds import session
from kubemend.agent.rounds.order_resolver import DeviceFacts, NodePolicy
from kubemend.agent.rounds.participant import RoundParticipant
from kubemend.agent.rounds.session import Clocks
from kubemend.common.coordination import FaultAnswer, FaultKind, OrderKind, StepPhase
from tests import eventually
from tests.fakes import outside
from tests.fakes.freezer import Freezer
from tests.fakes.launchers import Launchers
from tests.unit.actuator import pod_rig
from tests.unit.actuator.conftest import POD, TARGET, Rig, rig
from tests.unit.actuator.pod_rig import PodRig

__all__ = ["rig"]

NOW = 10_000_000_000.0  # after the start of every container of the stand-in
DEADLINE = 60.0
MAINS = {"trainer", "logger"}


@dataclass
class Told:
    """The member's states, as they were reported."""

    standings: "asyncio.Queue[Standing]" = field(default_factory=asyncio.Queue)

    async def next(self) -> Standing:
        async with asyncio.timeout(DEADLINE):
            return await self.standings.get()


@dataclass
class Gangs:
    """Reports what the test sets, and records the queries."""

    answer: FaultAnswer = FaultAnswer.ALONE
    asked: list[tuple[ContainerRef, FaultKind]] = field(default_factory=list)

    async def take(self, target: ContainerRef, cause: admission.Cause, *, kind: FaultKind) -> FaultAnswer:
        self.asked.append((target, kind))
        return self.answer

    async def device_lost(self, target: ContainerRef, cause: admission.Cause) -> FaultAnswer:
        return await self.take(target, cause, kind=FaultKind.DEVICE)


class World:
    """One pod on the runtime, and the components of an agent, which can die and come back."""

    def __init__(self, pod: PodRig, *, store: Store, freezer: Freezer) -> None:
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
        self.tasks: list[asyncio.Task[Any]] = []

    async def start(self) -> None:
        """Start an agent; it resumes what a previous one left."""
        everything = Dependencies(
            runtime=self.pod.rig.cri,
            events=self.pod.rig.watch,
            pods=self.pod.pods,
            devices=outside.Devices(),
            owners=self.owners,
            reporter=self.said,
            processes=outside.Processes(),
            actuators=Actuators.of(replace(self.pod.rig.tools(), launchers=self.launchers), pods=self.pod.pods),
            launchers=self.launchers,
        )
        self.registry = CollectorRegistry()
        metrics = Metrics(self.registry)
        self.next_steps = NextStepTimer(metrics=metrics)
        self.restarts = RestartScheduler(
            outside=everything,
            store=self.store,
            metrics=metrics,
            now=lambda: NOW,
            can_hold=True,
            next_steps=self.next_steps,
            gangs=self.gangs,
        )
        ledger = VerdictStore(store=self.store, metrics=metrics, boot_id="b", catalog=catalog_file.builtin())
        self.rounds = RoundParticipant(
            outside=everything,
            store=self.store,
            restarts=self.restarts,
            freezer=self.freezer,
            knowledge=DeviceFacts(outside.Holders(Allocations(known=True)), ledger, outside.Devices()),
            clocks=Clocks(now=lambda: NOW, since_boot=lambda: self.since_boot, boot=self.boot),
            metrics=metrics,
            bounds=self.bounds,
        )
        self.held = await self.rounds.load()
        self.tasks.append(asyncio.create_task(self.rounds.run(), name="rounds"))
        at_once = Patience(kubelet=0.0, pod=0.0)  # no test acts as kubelet
        await Recovery(outside=everything, store=self.store, now=lambda: NOW, patience=at_once, spared=self.held).run()

    def order(self, **changes: Any) -> Told:
        """Carry out an order."""
        told = Told()
        work = self.rounds.carry_out(order(**changes), told=told.standings.put_nowait)
        self.tasks.append(asyncio.create_task(work, name="order"))
        return told

    async def exits(self, name: str, *, code: int) -> None:
        """End a container by itself; the agent receives the event."""
        self.pod.rig.server.runtime.exit(self.pod.old[name], exit_code=code)
        await eventually.true(
            lambda: any(
                view.id == self.pod.old[name] and view.state is ContainerState.EXITED
                for view in self.pod.rig.watch.containers()
            )
        )

    async def stands(self, phase: StepPhase) -> None:
        """Wait until the only member reaches the phase."""
        await eventually.true(lambda: [standing.phase for standing in self.rounds.standings()] == [phase])

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
        poll = Poll(began=at, ended=at, slept=time.clock_gettime(time.CLOCK_BOOTTIME) - at, sight=mark)
        self.next_steps.polled(container, Look(poll, unix=unix, started_at=unix))
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


@pytest.fixture
async def world(rig: Rig, tmp_path: Path) -> AsyncIterator[World]:
    store = await Store.open(tmp_path / "state.db")
    async with pod_rig.made(rig) as pod:
        world = World(pod, store=store, freezer=Freezer(rig.server.runtime))
        await world.annotate(restart="InPlace")
        await world.start()
        yield world
        await world.die()
    await store.close()
    assert world.freezer.still() == set(), "a container stays frozen"
    assert world.freezer.waiting == set()


async def test_round_replaces_holds_and_releases_all_main_containers(world: World) -> None:
    told = world.order()
    stopped = await told.next()
    assert (stopped.phase, stopped.slipped) == (StepPhase.STOPPED, 0.0)
    assert {"prepare", "stop", "create", "start"} <= stopped.seconds.keys()
    newest = await world.newest()
    assert world.freezer.still() == {newest["trainer"], newest["logger"]} == world.rounds.held()
    assert {name for name, container in newest.items() if container != world.pod.old[name]} == MAINS
    assert world.rounds.busy(POD.uid)
    world.rounds.release("default/gang-1", [POD.uid])
    assert (await told.next()).phase is StepPhase.RUNNING
    assert world.freezer.still() == set()
    assert not world.rounds.busy(POD.uid)


async def test_next_step_of_member_counts_from_its_release(world: World) -> None:
    await world.annotate(**{"restart": "InPlace", "heartbeat-file": "/beat", "heartbeat-timeout": "60s"})
    told = world.order()
    await told.next()
    successor = (await world.newest())["trainer"]
    (trainer,) = [view for view in await world.pod.containers() if view.id == successor]
    assert world.touches(trainer) is None, "it is held"
    world.rounds.release("default/gang-1", [POD.uid])
    await told.next()
    await eventually.true(lambda: world.touches(trainer) == 1.0)


async def test_expects_end_covers_only_containers_ended_by_round(world: World) -> None:
    told = world.order()
    await told.next()
    assert world.rounds.expects_end(world.pod.old["trainer"])
    assert not world.rounds.expects_end(world.pod.old["shipper"])
    world.rounds.release("default/gang-1", [])
    await told.next()
    assert world.rounds.expects_end(world.pod.old["trainer"]), "the event may be late"
    assert not world.rounds.expects_end((await world.newest())["trainer"])


async def test_repeated_order_returns_same_result(world: World) -> None:
    await world.order().next()
    calls = world.pod.rig.server.called().count("StartContainer")
    again = world.order()
    assert (await again.next()).phase is StepPhase.STOPPED
    assert world.pod.rig.server.called().count("StartContainer") == calls
    world.rounds.release("default/gang-1", [])
    assert (await again.next()).phase is StepPhase.RUNNING, "the latest caller receives it"


async def test_release_of_other_round_or_pod_is_ignored(world: World) -> None:
    told = world.order()
    await told.next()
    world.rounds.release("default/gang-2", [])
    world.rounds.release("default/gang-1", [PodUid("another")])
    assert world.freezer.still() == world.rounds.held()
    world.rounds.release("default/gang-1", [POD.uid])
    assert (await told.next()).phase is StepPhase.RUNNING


async def test_order_for_absent_pod_reports_gone(world: World) -> None:
    assert (await world.order(pod=PodUid("another")).next()).phase is StepPhase.GONE
    assert world.rounds.standings() == ()


async def test_order_for_pod_without_opt_in_is_refused(world: World) -> None:
    await world.annotate()
    standing = await world.order().next()
    assert (standing.phase, standing.reason) == (StepPhase.REFUSED, "NotOptedIn")
    standing = await world.order(round="default/gang-2", kind=OrderKind.HOLD).next()
    assert (standing.phase, standing.reason) == (StepPhase.REFUSED, "NotOptedIn")
    assert world.freezer.ever == []
    assert await world.newest() == world.pod.old


@pytest.mark.parametrize(
    ("bounds", "reason"),
    [(NodePolicy(obstacle="no cgroup version 2"), "CannotHold"), (NodePolicy(dry_run=True), "DryRun")],
)
async def test_order_on_node_that_cannot_hold_is_refused(world: World, bounds: NodePolicy, reason: str) -> None:
    await world.die()
    world.bounds = bounds
    await world.start()
    assert (await world.order().next()).reason == reason
    assert await world.newest() == world.pod.old


async def test_order_for_succeeded_member_reports_completed(world: World) -> None:
    view = world.pod.pods.pods()[POD.uid]
    await world.pod.pods.put(replace(view, restart_policy=RestartPolicy.ON_FAILURE))
    for name in MAINS:
        await world.exits(name, code=0)
    assert (await world.order().next()).phase is StepPhase.COMPLETED


async def test_order_for_failed_pod_is_refused(world: World) -> None:
    view = world.pod.pods.pods()[POD.uid]
    await world.pod.pods.put(replace(view, restart_policy=RestartPolicy.NEVER))
    await world.exits("logger", code=1)
    standing = await world.order().next()
    assert (standing.phase, standing.reason) == (StepPhase.REFUSED, "AlreadyTerminated")
    assert world.freezer.ever == []


async def test_order_restarts_member_in_kubelet_backoff_with_others(world: World) -> None:
    await world.exits("logger", code=1)
    told = world.order()
    assert (await told.next()).phase is StepPhase.STOPPED
    assert len(world.freezer.still()) == 2
    world.rounds.release("default/gang-1", [])
    await told.next()


@pytest.mark.parametrize("strategy", ["rerun", "reset"])
async def test_whole_pod_restart_holds_main_containers_started_by_anyone(world: World, strategy: str) -> None:
    told = world.order(strategy=strategy)
    if strategy == "reset":
        assert (await told.next()).phase is StepPhase.STOPPED
        for name in pod_rig.ROLES:
            await world.pod.kubelet_starts(name, attempt=1)
    else:
        assert (await told.next()).phase is StepPhase.STOPPED
    await eventually.true(lambda: len(world.freezer.still()) == len(MAINS))
    newest = await world.newest()
    assert world.freezer.still() == {newest[name] for name in MAINS}, "other containers run"
    world.rounds.release("default/gang-1", [])
    assert (await told.next()).phase is StepPhase.RUNNING


async def test_successor_that_ends_at_start_is_replaced_once(world: World) -> None:
    freeze = world.freezer.freeze

    async def ends(container_id: ContainerId, **how: Any) -> float:
        world.freezer.freeze = freeze  # type: ignore[method-assign]
        world.pod.rig.server.runtime.exit(container_id, exit_code=128)
        return await freeze(container_id, **how)

    world.freezer.freeze = ends  # type: ignore[method-assign]
    told = world.order(containers=frozenset({"trainer"}))
    assert (await told.next()).phase is StepPhase.STOPPED
    assert world.pod.rig.server.called().count("StartContainer") == 2
    (running,) = (await world.pod.running())["trainer"]
    assert world.freezer.still() == {running}
    world.rounds.release("default/gang-1", [])
    assert (await told.next()).phase is StepPhase.RUNNING


async def test_duplicate_name_keeps_and_holds_kubelets_container(world: World) -> None:
    told = world.order(containers=frozenset({"trainer"}))
    await told.next()
    theirs = await world.pod.kubelet_starts("trainer", attempt=2)

    async def theirs_runs_alone() -> bool:
        return (await world.pod.running())["trainer"] == [theirs]

    await eventually.true(theirs_runs_alone)
    assert world.freezer.still() == {theirs}
    world.rounds.release("default/gang-1", [])
    assert (await told.next()).phase is StepPhase.RUNNING
    assert (await world.pod.running())["trainer"] == [theirs]


async def test_kubelets_created_container_is_removed_before_release(world: World) -> None:
    """Otherwise kubelet starts it after the release, and the running successor would be removed for it."""
    told = world.order(containers=frozenset({"trainer"}))
    await told.next()
    ours = (await world.newest())["trainer"]
    theirs = await world.pod.kubelet_starts("trainer", attempt=2, start=False)
    await eventually.true(lambda: any(view.id == theirs for view in world.pod.rig.watch.containers()))
    world.rounds.release("default/gang-1", [])
    assert (await told.next()).phase is StepPhase.RUNNING
    assert (await world.pod.running())["trainer"] == [ours]
    assert theirs not in {view.id for view in await world.pod.containers()}


async def test_kubelets_container_after_release_is_removed(world: World) -> None:
    told = world.order(containers=frozenset({"trainer"}))
    await told.next()
    ours = (await world.newest())["trainer"]
    world.rounds.release("default/gang-1", [])
    assert (await told.next()).phase is StepPhase.RUNNING
    theirs = await world.pod.kubelet_starts("trainer", attempt=2)

    async def ours_runs_alone() -> bool:
        return (await world.pod.running())["trainer"] == [ours]

    await eventually.true(ours_runs_alone)
    assert theirs not in {view.id for view in await world.pod.containers()}


async def test_hold_order_ends_nothing_and_holds_all(world: World) -> None:
    told = world.order(kind=OrderKind.HOLD)
    assert (await told.next()).phase is StepPhase.STOPPED
    assert world.freezer.still() == {world.pod.old["trainer"], world.pod.old["logger"]}
    assert "StopContainer" not in world.pod.rig.server.called()
    world.rounds.release("default/gang-1", [])
    assert (await told.next()).phase is StepPhase.RUNNING


async def test_post_start_hook_runs_after_release(world: World) -> None:
    view = world.pod.pods.pods()[POD.uid]
    hook = ExecHook(("warm", "up"))
    specs = tuple(replace(spec, post_start=hook if spec.name == "trainer" else None) for spec in view.containers)
    await world.pod.pods.put(replace(view, containers=specs))
    told = world.order()
    await told.next()
    assert "ExecSync" not in world.pod.rig.server.called()
    world.rounds.release("default/gang-1", [])
    await told.next()
    await eventually.true(lambda: "ExecSync" in world.pod.rig.server.called())


async def test_hold_expires_without_renewal(world: World) -> None:
    told = world.order(hold_seconds=0.2)
    assert [(await told.next()).phase, (await told.next()).phase] == [StepPhase.STOPPED, StepPhase.SELF_RELEASED]
    assert world.freezer.still() == set()


async def test_container_that_cannot_be_frozen_reports_failed(world: World) -> None:
    world.freezer.refusal = "read-only file system"
    told = world.order()
    standing = await told.next()
    assert (standing.phase, standing.reason) == (StepPhase.FAILED, "CannotHold")
    world.rounds.abort("default/gang-1", [], reason="over")


async def test_failed_freeze_is_retried_by_next_round(world: World) -> None:
    world.freezer.refusal = "the runtime does not answer"
    for number in (1, 2):
        standing = await world.order(round=f"default/gang-{number}", attempt=number, kind=OrderKind.HOLD).next()
        assert (standing.phase, standing.reason) == (StepPhase.FAILED, "CannotHold")
    world.freezer.refusal = ""
    told = world.order(round="default/gang-3", attempt=3, kind=OrderKind.HOLD)
    assert (await told.next()).phase is StepPhase.STOPPED
    assert world.freezer.still() == {world.pod.old[name] for name in MAINS}
    world.rounds.release("default/gang-3", [])
    assert (await told.next()).phase is StepPhase.RUNNING


async def test_next_round_restarts_held_member_without_running_it(world: World) -> None:
    first = world.order()
    await first.next()
    held = world.freezer.still()
    second = world.order(round="default/gang-2", attempt=2)
    assert (await second.next()).phase is StepPhase.STOPPED
    assert not world.freezer.still() & held
    assert first.standings.empty()
    world.rounds.release("default/gang-2", [])
    assert (await second.next()).phase is StepPhase.RUNNING
    assert [standing.round for standing in world.rounds.standings()] == ["default/gang-2"]


async def test_round_does_not_wait_for_verification_of_last_restart(world: World) -> None:
    for number in (1, 2, 3):  # no test acts as kubelet here: it never agrees
        told = world.order(round=f"default/gang-{number}", attempt=number)
        assert (await told.next()).phase is StepPhase.STOPPED
        world.rounds.release(f"default/gang-{number}", [])
        assert (await told.next()).phase is StepPhase.RUNNING


async def test_held_pod_that_is_deleted_ends_and_reports_gone(world: World) -> None:
    told = world.order()
    await told.next()
    await world.pod.pods.put(replace(world.pod.pods.pods()[POD.uid], deleting=True))

    async def no_main_runs() -> bool:
        return not set(await world.pod.running()) & MAINS

    await eventually.true(no_main_runs)
    await world.pod.pods.gone(POD.uid)  # force-deleted: its sidecar still runs
    told_again = world.order(round="default/gang-2")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(3.0):
            await told_again.standings.get()
    assert told.standings.empty(), "something of it runs"
    world.pod.rig.server.runtime.exit(world.pod.old["shipper"], exit_code=137)
    assert (await told.next()).phase is StepPhase.GONE
    assert (await told_again.next()).phase is StepPhase.GONE


async def test_held_pod_whose_node_shuts_down_has_failed_when_the_shutdown_is_cancelled(world: World) -> None:
    told = world.order()
    await told.next()
    pod = world.pod.pods.pods()[POD.uid]
    await world.pod.pods.put(replace(pod, leaving="NodeShutdown"))

    async def no_main_runs() -> bool:
        return not set(await world.pod.running()) & MAINS

    await eventually.true(no_main_runs)
    assert told.standings.empty()
    await world.pod.pods.put(pod)
    failed = await told.next()
    assert (failed.phase, failed.detail) == (StepPhase.FAILED, "its node no longer shuts down")


async def test_next_agent_continues_hold_until_release(world: World) -> None:
    await world.order().next()
    held = world.freezer.still()
    await world.die()
    await world.start()
    assert world.held == {POD.uid}
    assert world.freezer.still() == held == world.rounds.held()
    assert [standing.round for standing in world.rounds.standings()] == ["default/gang-1"]
    told = world.order()
    assert (await told.next()).phase is StepPhase.STOPPED
    world.rounds.release("default/gang-1", [])
    assert (await told.next()).phase is StepPhase.RUNNING
    assert len(world.freezer.ever) == 2, "nothing was started once more"


async def test_next_agent_finishes_started_restart_held(world: World) -> None:
    world.pod.rig.server.delay("CreateContainer", seconds=30.0)
    world.order()
    await eventually.true(lambda: "CreateContainer" in world.pod.rig.server.called())
    await world.die()
    world.pod.rig.server.delay("CreateContainer", seconds=0.0)
    await world.start()
    told = world.order()
    assert (await told.next()).phase is StepPhase.STOPPED
    newest = await world.newest()
    assert world.freezer.still() == {newest[name] for name in MAINS}
    world.rounds.release("default/gang-1", [])
    assert (await told.next()).phase is StepPhase.RUNNING


async def test_stopping_member_reports_current_step(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "TELL_EVERY", 0.01)
    world.pod.rig.server.delay("CreateContainer", seconds=1.0)
    told = world.order()
    heard = [await told.next()]
    while heard[-1].phase is StepPhase.STOPPING:
        heard.append(await told.next())
    assert "Creating" in {standing.reason for standing in heard}
    assert (heard[-1].phase, heard[-1].reason) == (StepPhase.STOPPED, "")
    assert world.rounds.standings() == (heard[-1],), "the current step is not part of the state"
    world.rounds.release("default/gang-1", [])
    await world.stands(StepPhase.RUNNING)


async def test_member_that_kubelet_must_start_reports_progress_after_release(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "TELL_EVERY", 0.01)
    told = world.order()
    standing = await told.next()
    while standing.phase is not StepPhase.STOPPED:
        standing = await told.next()
    for name in MAINS:
        world.pod.rig.server.runtime.exit((await world.newest())[name], exit_code=137)
    world.rounds.release("default/gang-1", [])
    while not standing.reason:
        standing = await told.next()
    assert (standing.phase, standing.reason) == (StepPhase.STOPPED, "Starting")


async def test_hold_longer_than_probes_allow_restarts_member(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kubelet would kill it: a frozen process answers no probe, and the SIGTERM would wait for its release."""
    monkeypatch.setattr(probes, "SHORTEST", 0.5)
    await _probed(world, Probe(failure_threshold=1))
    told = world.order()
    assert (await told.next()).phase is StepPhase.STOPPED
    first = await world.newest()
    await _probed(world, Probe(initial_delay=1000.0))
    assert (await told.next()).phase is StepPhase.STOPPED
    second = await world.newest()
    assert not set(first.values()) & {second[name] for name in MAINS}
    assert world.freezer.still() == {second[name] for name in MAINS}
    world.rounds.release("default/gang-1", [])
    assert (await told.next()).phase is StepPhase.RUNNING
    assert await world.newest() == second


async def _probed(world: World, liveness: Probe) -> None:
    pod = world.pod.pods.pods()[POD.uid]
    containers = tuple(replace(spec, liveness=liveness) for spec in pod.containers)
    await world.pod.pods.put(replace(pod, containers=containers))


async def test_agent_that_returns_late_releases_at_once(world: World) -> None:
    await world.order().next()
    await world.die()
    world.since_boot += 5000.0
    await world.start()
    await world.stands(StepPhase.SELF_RELEASED)
    assert world.freezer.still() == set()


async def test_an_agent_that_comes_back_after_the_hold_waits_for_the_hub_before_it_lets_go(world: World) -> None:
    """While there was no agent the hub could not renew the hold."""
    told = world.order(hold_seconds=30.0)
    await told.next()
    held = world.freezer.still()
    await world.die()
    world.since_boot += 45.0
    await world.start()
    assert world.freezer.still() == held
    told = world.order(hold_seconds=1000.0)
    assert (await told.next()).phase is StepPhase.STOPPED
    world.rounds.release("default/gang-1", [])
    assert (await told.next()).phase is StepPhase.RUNNING


async def test_an_agent_that_comes_back_after_an_earlier_rounds_release_holds_for_the_one_under_way(
    world: World,
) -> None:
    """A container released by the first round is in its grace period when the agent dies in the second round."""
    told = world.order()
    await told.next()
    world.rounds.release("default/gang-1", [])
    assert (await told.next()).phase is StepPhase.RUNNING
    world.since_boot += 60.0
    server = world.pod.rig.server
    server.delay("StopContainer", seconds=3000.0)
    server.calls.clear()
    world.order(round="default/gang-2", grace_seconds=2000.0)
    await eventually.true(lambda: "StopContainer" in server.called())
    await world.die()
    server.delay("StopContainer", seconds=0.0)
    await world.start()
    assert world.held == {POD.uid}
    told = world.order(round="default/gang-2", grace_seconds=2000.0)
    assert (await told.next()).phase is StepPhase.STOPPED
    world.rounds.release("default/gang-2", [])
    assert (await told.next()).phase is StepPhase.RUNNING


@pytest.mark.parametrize("grace", [0.0, 2000.0])
async def test_an_agent_that_stops_leaves_members_that_only_wait_to_the_next_one(world: World, grace: float) -> None:
    server = world.pod.rig.server
    server.delay("StopContainer", seconds=3000.0)
    world.order(grace_seconds=grace)
    await eventually.true(lambda: "StopContainer" in server.called())
    if grace:
        async with asyncio.timeout(DEADLINE):
            await world.restarts.quiet.wait()
    else:
        assert not world.restarts.quiet.is_set(), "a kill takes a moment: it is at work"
    await world.die()
    server.delay("StopContainer", seconds=0.0)
    await world.start()
    told = world.order(grace_seconds=grace)
    assert (await told.next()).phase is StepPhase.STOPPED
    world.rounds.release("default/gang-1", [])
    assert (await told.next()).phase is StepPhase.RUNNING


async def test_of_two_of_one_name_only_one_is_let_go_however_late(world: World) -> None:
    await world.order().next()
    await world.die()
    theirs = await world.pod.kubelet_starts("trainer", attempt=2)
    await world.freezer.freeze(theirs, mark=POD.uid)  # the agent's last action
    world.since_boot += 5000.0
    await world.start()
    await world.stands(StepPhase.SELF_RELEASED)
    assert (await world.pod.running())["trainer"] == [theirs]
    assert len(world.freezer.let_go) == 2, "the successor was removed while frozen"


async def test_reboot_ends_all_holds(world: World) -> None:
    await world.order().next()
    await world.die()
    world.boot = "another"
    await world.start()
    assert world.held == frozenset()
    assert [standing.phase for standing in world.rounds.standings()] == [StepPhase.SELF_RELEASED]
    assert await world.store.unfinished() == ()


@pytest.mark.parametrize("policy", [RestartPolicy.ALWAYS, RestartPolicy.NEVER])
@pytest.mark.parametrize("calls", range(1, 25))
async def test_agent_death_at_any_call_is_finished_by_next_one(world: World, policy: RestartPolicy, calls: int) -> None:
    view = world.pod.pods.pods()[POD.uid]
    only = tuple(replace(spec, running=spec.name in MAINS) for spec in view.containers)
    await world.pod.pods.put(replace(view, restart_policy=policy, containers=only))
    server = world.pod.rig.server
    server.calls.clear()
    told = world.order()
    await eventually.true(lambda: len(server.called()) >= calls or not told.standings.empty(), look_again=0.0)
    await world.die()
    await world.start()
    told = world.order()
    assert (await told.next()).phase is StepPhase.STOPPED
    running = await world.pod.running()
    assert [len(running[name]) for name in MAINS] == [1, 1]
    assert world.freezer.still() == {running[name][0] for name in MAINS}
    assert not world.freezer.still() & set(world.pod.old.values())
    world.rounds.release("default/gang-1", [])
    assert (await told.next()).phase is StepPhase.RUNNING
    assert await world.pod.running() == running


async def test_released_container_is_not_frozen_by_next_agent(world: World) -> None:
    await world.order().next()
    await world.die()
    one, _ = world.freezer.still()
    world.freezer.thaw(one)  # it was releasing, and wrote no further record
    await world.start()
    assert world.freezer.still() == set()
    assert [standing.phase for standing in world.rounds.standings()] == [StepPhase.SELF_RELEASED], (
        "the reason of the release is unknown"
    )


async def test_next_agent_reports_recorded_release(world: World) -> None:
    told = world.order()
    await told.next()
    world.rounds.release("default/gang-1", [POD.uid])
    await eventually.true(world.is_written_off)
    await world.die()
    await world.start()
    assert [standing.phase for standing in world.rounds.standings()] == [StepPhase.RUNNING]


async def test_aborted_member_never_reports_released(world: World) -> None:
    told = world.order()
    await told.next()
    world.rounds.abort("default/gang-1", [POD.uid], reason="budget spent")
    standing = await told.next()
    assert (standing.phase, standing.reason) == (StepPhase.SELF_RELEASED, "Aborted")
    assert world.freezer.still() == set()


async def test_order_after_its_abort_starts_nothing(world: World) -> None:
    world.rounds.abort("default/gang-1", [POD.uid], reason="budget spent")
    standing = await world.order().next()
    assert (standing.phase, standing.reason) == (StepPhase.SELF_RELEASED, "Aborted")
    assert await world.newest() == world.pod.old
    assert world.freezer.ever == []


async def test_later_of_two_records_holds_pod(world: World) -> None:
    """The agent died before it recorded the end of the earlier round."""
    await world.order().next()
    held = world.freezer.still()
    (record,) = await world.store.records()
    stale = replace(record, order=order(round="default/gang-0"), written_at=record.written_at - 1.0)
    for earlier in (stale, replace(stale, released=True)):
        await world.die()
        await world.store.note(earlier)
        await world.start()
        assert world.freezer.still() == held == world.rounds.held()
        assert [standing.round for standing in world.rounds.standings()] == ["default/gang-1"]
    world.rounds.release("default/gang-1", [POD.uid])
    await world.stands(StepPhase.RUNNING)


async def test_stale_record_of_earlier_round_holds_nothing(world: World) -> None:
    await world.order().next()
    (record,) = await world.store.records()
    world.rounds.release("default/gang-1", [POD.uid])
    await world.stands(StepPhase.RUNNING)
    await eventually.true(world.is_written_off)
    await world.die()
    await world.store.note(replace(record, order=order(round="default/gang-0"), written_at=record.written_at - 1.0))
    world.freezer.let_go.clear()  # no mark is left either
    await world.start()
    assert world.held == frozenset()
    assert world.freezer.still() == set()
    assert [standing.round for standing in world.rounds.standings()] == ["default/gang-1"]


async def test_adopted_container_is_held_although_its_event_is_late(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kubemend.agent.rounds.pod_hold.PodHolder._hold_soon", lambda *_: None)  # no event ever comes
    await world.exits("trainer", code=1)
    theirs: list[ContainerId] = []

    async def kubelet_first(*_: Any, **__: Any) -> Any:
        theirs.append(await world.pod.kubelet_starts("trainer", attempt=1))
        return await begin(*_, **__)

    begin = world.store.begin
    monkeypatch.setattr(world.store, "begin", kubelet_first)
    told = world.order(containers=frozenset({"trainer"}))
    assert (await told.next()).phase is StepPhase.STOPPED
    assert world.freezer.still() == set(theirs)
    world.rounds.release("default/gang-1", [])
    await told.next()


async def test_held_container_is_ended_without_grace_period(world: World) -> None:
    """A frozen process handles no SIGTERM: the next round would wait for the whole grace period."""
    await world.order(grace_seconds=30.0).next()
    world.pod.rig.server.calls.clear()
    second = world.order(round="default/gang-2", attempt=2, grace_seconds=30.0)
    assert (await second.next()).phase is StepPhase.STOPPED
    stops = [call.request for call in world.pod.rig.server.calls if call.method == "StopContainer"]
    assert [getattr(request, "timeout", None) for request in stops] == [0, 0]
    world.rounds.release("default/gang-2", [])
    await second.next()


async def test_succeeded_pod_without_container_reports_completed(world: World) -> None:
    view = world.pod.pods.pods()[POD.uid]
    await world.pod.pods.put(replace(view, phase="Succeeded", restart_policy=RestartPolicy.ON_FAILURE))
    assert (await world.order().next()).phase is StepPhase.COMPLETED
    hold = await world.order(round="default/gang-2", kind=OrderKind.HOLD).next()
    assert hold.phase is StepPhase.COMPLETED


async def test_container_that_vanishes_during_selection_does_not_fail_round(world: World) -> None:
    await world.exits("trainer", code=1)
    world.pod.rig.server.fail("ContainerStatus", grpc.StatusCode.NOT_FOUND)
    told = world.order()
    assert (await told.next()).phase is StepPhase.STOPPED
    world.rounds.release("default/gang-1", [])
    await told.next()


async def test_hold_of_unstarted_pod_reports_when_first_container_held(world: World) -> None:
    for name, container in world.pod.old.items():
        if name in MAINS:
            world.pod.rig.server.runtime.exit(container, exit_code=1)
            await world.pod.rig.cri.remove_container(container)
    await eventually.true(lambda: not any(view.ref.name in MAINS for view in world.pod.rig.watch.containers()))
    told = world.order(kind=OrderKind.HOLD)
    await world.stands(StepPhase.STOPPING)
    assert told.standings.empty()
    theirs = await world.pod.kubelet_starts("trainer", attempt=1)
    assert (await told.next()).phase is StepPhase.STOPPED
    assert world.freezer.still() == {theirs}
    world.rounds.abort("default/gang-1", [POD.uid], reason="over")
    assert (await told.next()).phase is StepPhase.SELF_RELEASED


async def test_round_with_unknown_owner_refuses_without_waiting(world: World) -> None:
    view = world.pod.pods.pods()[POD.uid]
    job = OwnerRef(kind="Job", name="j", api_group="batch")
    await world.pod.pods.put(replace(view, owner=job, restart_policy=RestartPolicy.ON_FAILURE))
    world.owners.answer = None
    standing = await world.order().next()
    assert (standing.phase, standing.reason) == (StepPhase.REFUSED, "OwnerUnknown")
    assert await world.newest() == world.pod.old


async def test_members_and_phases_are_counted(world: World) -> None:
    told = world.order()
    await told.next()
    assert world.registry.get_sample_value("kubemend_round_held") == 2
    world.rounds.release("default/gang-1", [])
    await told.next()
    sample = world.registry.get_sample_value
    assert sample("kubemend_round_held") == 0
    assert sample("kubemend_round_members_total", {"phase": "Stopped"}) == 1
    assert sample("kubemend_round_members_total", {"phase": "Running"}) == 1
    assert sample("kubemend_round_phase_seconds_count", {"phase": "held"}) == 1
    assert sample("kubemend_round_unheld_seconds_count") == 1


async def test_fault_of_gang_is_left_to_round(world: World) -> None:
    world.gangs.answer = FaultAnswer.ROUND
    await world.restarts.handle(fault(FaultKind.HANG))
    assert world.gangs.asked == [(TARGET, FaultKind.HANG)]
    assert await world.newest() == world.pod.old
    assert world.said.said == {}


async def test_fault_answered_with_nothing_is_refused_and_reported(world: World) -> None:
    world.gangs.answer = FaultAnswer.NOTHING
    await world.restarts.handle(fault(FaultKind.DEVICE))
    (condition,) = world.said.said.values()
    assert condition.reason == "LeftToGang"
    assert await world.newest() == world.pod.old


def fault(kind: FaultKind) -> Request:
    cause = admission.Cause(code="Xid31", message="Xid 31", happened_at=NOW)
    return Request(target=TARGET, cause=lambda: cause, devices=frozenset(), kind=kind)
