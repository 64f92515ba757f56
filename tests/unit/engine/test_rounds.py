"""Members of rounds on the stand-in runtime: what is told, what is held, and what the next agent makes of it."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from prometheus_client import CollectorRegistry

from agent.engine import members, ports
from agent.engine.aftermath import Patience
from agent.engine.ledger import HealthLedger
from agent.engine.members import Clocks
from agent.engine.metrics import Metrics
from agent.engine.orders import Bounds, Knowledge
from agent.engine.recovery import Recovery
from agent.engine.restarts import Request, Restarts
from agent.engine.rounds import Rounds
from agent.health import catalog_file
from agent.history.store import Store
from agent.model.rounds import FaultKind, Order, OrderKind, Phase, Standing, Taken
from agent.model.workloads import (
    Allocations,
    ContainerId,
    ContainerRef,
    ContainerState,
    ExecHook,
    OwnerRef,
    PodUid,
    Probe,
    RestartPolicy,
)
from agent.restart import admission, probes
from tests import eventually
from tests.fakes import outside
from tests.fakes.freezer import Freezer
from tests.unit.actuator import pod_rig
from tests.unit.actuator.conftest import POD, TARGET, Rig, rig
from tests.unit.actuator.pod_rig import PodRig

__all__ = ["rig"]

NOW = 10_000_000_000.0  # after the start of any container of the stand-in's
DEADLINE = 60.0
MAINS = {"trainer", "logger"}


@dataclass
class Told:
    """Where a member stands, as it was told."""

    standings: "asyncio.Queue[Standing]" = field(default_factory=asyncio.Queue)

    async def next(self) -> Standing:
        async with asyncio.timeout(DEADLINE):
            return await self.standings.get()


@dataclass
class Gangs:
    """Answers what it is told to, and keeps what it was asked."""

    answer: Taken = Taken.ALONE
    asked: list[tuple[ContainerRef, FaultKind]] = field(default_factory=list)

    async def take(self, target: ContainerRef, cause: admission.Cause, *, kind: FaultKind) -> Taken:
        self.asked.append((target, kind))
        return self.answer

    async def device_lost(self, target: ContainerRef, cause: admission.Cause) -> Taken:
        return await self.take(target, cause, kind=FaultKind.DEVICE)


class World:
    """One pod on the runtime, and the parts of an agent, which can die and come back."""

    def __init__(self, pod: PodRig, *, store: Store, freezer: Freezer) -> None:
        self.pod = pod
        self.store = store
        self.freezer = freezer
        self.gangs = Gangs()
        self.said = outside.Conditions()
        self.owners = outside.Owners()
        self.since_boot = 100.0
        self.boot = "this"
        self.bounds = Bounds()
        self.tasks: list[asyncio.Task[Any]] = []

    async def start(self) -> None:
        """Start an agent: what an earlier one has left is taken up."""
        everything = ports.Outside(
            runtime=self.pod.rig.cri,
            events=self.pod.rig.watch,
            pods=self.pod.pods,
            devices=outside.Devices(),
            owners=self.owners,
            reporter=self.said,
            processes=outside.Processes(),  # type: ignore[arg-type]
            actuators=ports.Actuators.of(self.pod.rig.tools(), pods=self.pod.pods),
        )
        self.registry = CollectorRegistry()
        metrics = Metrics(self.registry)
        self.restarts = Restarts(
            outside=everything,
            store=self.store,
            metrics=metrics,
            now=lambda: NOW,
            can_hold=True,
            gangs=self.gangs,
        )
        ledger = HealthLedger(store=self.store, metrics=metrics, boot_id="b", catalog=catalog_file.builtin())
        self.rounds = Rounds(
            outside=everything,
            store=self.store,
            restarts=self.restarts,
            freezer=self.freezer,
            knowledge=Knowledge(outside.Holders(Allocations(known=True)), ledger, outside.Devices()),
            clocks=Clocks(now=lambda: NOW, since_boot=lambda: self.since_boot, boot=self.boot),
            metrics=metrics,
            bounds=self.bounds,
        )
        self.held = await self.rounds.load()
        self.tasks.append(asyncio.create_task(self.rounds.run(), name="rounds"))
        at_once = Patience(kubelet=0.0, pod=0.0)  # nobody plays kubelet
        await Recovery(outside=everything, store=self.store, now=lambda: NOW, patience=at_once, spared=self.held).run()

    def order(self, **changes: Any) -> Told:
        """Have an order carried out."""
        told = Told()
        work = self.rounds.carry_out(order(**changes), told=told.standings.put_nowait)
        self.tasks.append(asyncio.create_task(work, name="order"))
        return told

    async def exits(self, name: str, *, code: int) -> None:
        """One ends by itself, and the agent hears of it."""
        self.pod.rig.server.runtime.exit(self.pod.old[name], exit_code=code)
        await eventually.true(
            lambda: any(
                view.id == self.pod.old[name] and view.state is ContainerState.EXITED
                for view in self.pod.rig.watch.containers()
            )
        )

    async def stands(self, phase: Phase) -> None:
        """Wait until the only member stands there."""
        await eventually.true(lambda: [standing.phase for standing in self.rounds.standings()] == [phase])

    async def die(self) -> None:
        """Without a chance to clean up. What waited at its first instruction goes on: the kernel has nobody to ask."""
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        self.tasks.clear()
        self.freezer.waiting.clear()

    async def annotate(self, **annotations: str) -> None:
        wishes = {f"kubemend.io/{key}": text for key, text in annotations.items()}
        await self.pod.pods.put(replace(self.pod.pods.pods()[POD.uid], annotations=wishes))

    async def is_written_off(self) -> bool:
        """Whether it is on the disk that nothing is held any more."""
        return all(record.released for record in await self.store.records())

    async def newest(self) -> dict[str, ContainerId]:
        return {view.ref.name: view.id for view in await self.pod.containers()}


def order(**changes: Any) -> Order:
    defaults: dict[str, Any] = {
        "round": "default/gang-1",
        "gang": "default/Gang/g",
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


async def test_all_mains_are_replaced_held_and_let_go(world: World) -> None:
    told = world.order()
    stopped = await told.next()
    assert (stopped.phase, stopped.slipped) == (Phase.STOPPED, 0.0)
    assert {"prepare", "stop", "create", "start"} <= stopped.seconds.keys()
    newest = await world.newest()
    assert world.freezer.still() == {newest["trainer"], newest["logger"]} == world.rounds.held()
    assert {name for name, container in newest.items() if container != world.pod.old[name]} == MAINS
    assert world.rounds.busy(POD.uid)
    world.rounds.release("default/gang-1", [POD.uid])
    assert (await told.next()).phase is Phase.RUNNING
    assert world.freezer.still() == set()
    assert not world.rounds.busy(POD.uid)


async def test_the_end_of_what_a_round_has_ended_is_expected_and_no_other(world: World) -> None:
    told = world.order()
    await told.next()
    assert world.rounds.expects_end(world.pod.old["trainer"])
    assert not world.rounds.expects_end(world.pod.old["shipper"])
    world.rounds.release("default/gang-1", [])
    await told.next()
    assert world.rounds.expects_end(world.pod.old["trainer"]), "the event may be late"
    assert not world.rounds.expects_end((await world.newest())["trainer"])


async def test_an_order_said_again_is_the_same_and_is_answered_again(world: World) -> None:
    await world.order().next()
    calls = world.pod.rig.server.called().count("StartContainer")
    again = world.order()
    assert (await again.next()).phase is Phase.STOPPED
    assert world.pod.rig.server.called().count("StartContainer") == calls
    world.rounds.release("default/gang-1", [])
    assert (await again.next()).phase is Phase.RUNNING, "who asked last is told"


async def test_a_release_of_another_round_or_pod_lets_nothing_go(world: World) -> None:
    told = world.order()
    await told.next()
    world.rounds.release("default/gang-2", [])
    world.rounds.release("default/gang-1", [PodUid("another")])
    assert world.freezer.still() == world.rounds.held()
    world.rounds.release("default/gang-1", [POD.uid])
    assert (await told.next()).phase is Phase.RUNNING


async def test_a_pod_that_is_not_here_is_gone(world: World) -> None:
    assert (await world.order(pod=PodUid("another")).next()).phase is Phase.GONE
    assert world.rounds.standings() == ()


async def test_a_pod_that_has_not_opted_in_is_refused_and_nothing_is_done(world: World) -> None:
    await world.annotate()
    standing = await world.order().next()
    assert (standing.phase, standing.reason) == (Phase.REFUSED, "NotOptedIn")
    standing = await world.order(round="default/gang-2", kind=OrderKind.HOLD).next()
    assert (standing.phase, standing.reason) == (Phase.REFUSED, "NotOptedIn")
    assert world.freezer.ever == []
    assert await world.newest() == world.pod.old


@pytest.mark.parametrize(
    ("bounds", "reason"), [(Bounds(obstacle="no cgroup version 2"), "CannotHold"), (Bounds(dry_run=True), "DryRun")]
)
async def test_a_node_that_may_or_can_hold_nothing_refuses(world: World, bounds: Bounds, reason: str) -> None:
    await world.die()
    world.bounds = bounds
    await world.start()
    assert (await world.order().next()).reason == reason
    assert await world.newest() == world.pod.old


async def test_a_member_that_has_ended_well_has_completed(world: World) -> None:
    view = world.pod.pods.pods()[POD.uid]
    await world.pod.pods.put(replace(view, restart_policy=RestartPolicy.ON_FAILURE))
    for name in MAINS:
        await world.exits(name, code=0)
    assert (await world.order().next()).phase is Phase.COMPLETED


async def test_one_that_has_failed_for_good_is_refused(world: World) -> None:
    view = world.pod.pods.pods()[POD.uid]
    await world.pod.pods.put(replace(view, restart_policy=RestartPolicy.NEVER))
    await world.exits("logger", code=1)
    standing = await world.order().next()
    assert (standing.phase, standing.reason) == (Phase.REFUSED, "AlreadyTerminated")
    assert world.freezer.ever == []


async def test_one_that_waits_for_kubelets_backoff_is_restarted_with_the_others(world: World) -> None:
    await world.exits("logger", code=1)
    told = world.order()
    assert (await told.next()).phase is Phase.STOPPED
    assert len(world.freezer.still()) == 2
    world.rounds.release("default/gang-1", [])
    await told.next()


@pytest.mark.parametrize("strategy", ["rerun", "reset"])
async def test_a_whole_pods_mains_are_held_whoever_starts_them(world: World, strategy: str) -> None:
    told = world.order(strategy=strategy)
    if strategy == "reset":
        assert (await told.next()).phase is Phase.STOPPED
        for name in pod_rig.ROLES:
            await world.pod.kubelet_starts(name, attempt=1)
    else:
        assert (await told.next()).phase is Phase.STOPPED
    await eventually.true(lambda: len(world.freezer.still()) == len(MAINS))
    newest = await world.newest()
    assert world.freezer.still() == {newest[name] for name in MAINS}, "what is beside them runs"
    world.rounds.release("default/gang-1", [])
    assert (await told.next()).phase is Phase.RUNNING


async def test_a_successor_that_ends_as_it_is_started_is_replaced_once_more(world: World) -> None:
    freeze = world.freezer.freeze

    async def ends(container_id: ContainerId, **how: Any) -> float:
        world.freezer.freeze = freeze  # type: ignore[method-assign]
        world.pod.rig.server.runtime.exit(container_id, exit_code=128)
        return await freeze(container_id, **how)

    world.freezer.freeze = ends  # type: ignore[method-assign]
    told = world.order(containers=frozenset({"trainer"}))
    assert (await told.next()).phase is Phase.STOPPED
    assert world.pod.rig.server.called().count("CreateContainer") == 2
    (running,) = (await world.pod.running())["trainer"]
    assert world.freezer.still() == {running}
    world.rounds.release("default/gang-1", [])
    assert (await told.next()).phase is Phase.RUNNING


async def test_of_two_of_one_name_kubelets_stays_and_is_held(world: World) -> None:
    told = world.order(containers=frozenset({"trainer"}))
    await told.next()
    theirs = await world.pod.kubelet_starts("trainer", attempt=2)

    async def theirs_runs_alone() -> bool:
        return (await world.pod.running())["trainer"] == [theirs]

    await eventually.true(theirs_runs_alone)
    assert world.freezer.still() == {theirs}
    world.rounds.release("default/gang-1", [])
    assert (await told.next()).phase is Phase.RUNNING
    assert (await world.pod.running())["trainer"] == [theirs]


async def test_what_kubelet_has_made_and_not_started_goes_before_ours_is_let_run(world: World) -> None:
    """Else it would be started beside ours a moment after the release, and ours, which runs, be removed for it."""
    told = world.order(containers=frozenset({"trainer"}))
    await told.next()
    ours = (await world.newest())["trainer"]
    theirs = await world.pod.kubelet_starts("trainer", attempt=2, start=False)
    await eventually.true(lambda: any(view.id == theirs for view in world.pod.rig.watch.containers()))
    world.rounds.release("default/gang-1", [])
    assert (await told.next()).phase is Phase.RUNNING
    assert (await world.pod.running())["trainer"] == [ours]
    assert theirs not in {view.id for view in await world.pod.containers()}


async def test_what_has_run_since_the_release_stays_and_kubelets_later_copy_goes(world: World) -> None:
    told = world.order(containers=frozenset({"trainer"}))
    await told.next()
    ours = (await world.newest())["trainer"]
    world.rounds.release("default/gang-1", [])
    assert (await told.next()).phase is Phase.RUNNING
    theirs = await world.pod.kubelet_starts("trainer", attempt=2)

    async def ours_runs_alone() -> bool:
        return (await world.pod.running())["trainer"] == [ours]

    await eventually.true(ours_runs_alone)
    assert theirs not in {view.id for view in await world.pod.containers()}


async def test_a_hold_ends_nothing_and_holds_what_runs_and_what_starts(world: World) -> None:
    told = world.order(kind=OrderKind.HOLD)
    assert (await told.next()).phase is Phase.STOPPED
    assert world.freezer.still() == {world.pod.old["trainer"], world.pod.old["logger"]}
    assert "StopContainer" not in world.pod.rig.server.called()
    world.rounds.release("default/gang-1", [])
    assert (await told.next()).phase is Phase.RUNNING


async def test_hooks_after_the_start_run_when_it_is_let_go(world: World) -> None:
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


async def test_a_round_that_is_not_heard_of_lets_go_by_itself(world: World) -> None:
    told = world.order(hold_seconds=0.2)
    assert [(await told.next()).phase, (await told.next()).phase] == [Phase.STOPPED, Phase.SELF_RELEASED]
    assert world.freezer.still() == set()


async def test_what_cannot_be_frozen_is_told_as_failed(world: World) -> None:
    world.freezer.refusal = "read-only file system"
    told = world.order()
    standing = await told.next()
    assert (standing.phase, standing.reason) == (Phase.FAILED, "CannotHold")
    world.rounds.abort("default/gang-1", [], reason="over")


async def test_what_could_not_be_frozen_does_not_stand_still_for_the_next_round_before_it_does(world: World) -> None:
    world.freezer.refusal = "the runtime does not answer"
    for number in (1, 2):
        standing = await world.order(round=f"default/gang-{number}", attempt=number, kind=OrderKind.HOLD).next()
        assert (standing.phase, standing.reason) == (Phase.FAILED, "CannotHold")
    world.freezer.refusal = ""
    told = world.order(round="default/gang-3", attempt=3, kind=OrderKind.HOLD)
    assert (await told.next()).phase is Phase.STOPPED
    assert world.freezer.still() == {world.pod.old[name] for name in MAINS}
    world.rounds.release("default/gang-3", [])
    assert (await told.next()).phase is Phase.RUNNING


async def test_a_member_in_a_round_is_restarted_by_the_next_round_without_ever_running(world: World) -> None:
    first = world.order()
    await first.next()
    held = world.freezer.still()
    second = world.order(round="default/gang-2", attempt=2)
    assert (await second.next()).phase is Phase.STOPPED
    assert not world.freezer.still() & held
    assert first.standings.empty()
    world.rounds.release("default/gang-2", [])
    assert (await second.next()).phase is Phase.RUNNING
    assert [standing.round for standing in world.rounds.standings()] == ["default/gang-2"]


async def test_a_round_does_not_wait_for_kubelets_consent_to_the_last_restart(world: World) -> None:
    for number in (1, 2, 3):  # nobody plays kubelet here: its consent never comes
        told = world.order(round=f"default/gang-{number}", attempt=number)
        assert (await told.next()).phase is Phase.STOPPED
        world.rounds.release(f"default/gang-{number}", [])
        assert (await told.next()).phase is Phase.RUNNING


async def test_a_pod_that_is_deleted_while_it_is_held_ends_and_is_gone(world: World) -> None:
    told = world.order()
    await told.next()
    await world.pod.pods.put(replace(world.pod.pods.pods()[POD.uid], deleting=True))

    async def no_main_runs() -> bool:
        return not set(await world.pod.running()) & MAINS

    await eventually.true(no_main_runs)
    await world.pod.pods.gone(POD.uid)  # by force: its sidecar runs yet
    told_again = world.order(round="default/gang-2")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(3.0):
            await told_again.standings.get()
    assert told.standings.empty(), "something of it runs"
    world.pod.rig.server.runtime.exit(world.pod.old["shipper"], exit_code=137)
    assert (await told.next()).phase is Phase.GONE
    assert (await told_again.next()).phase is Phase.GONE


async def test_the_next_agent_goes_on_holding_until_it_hears_of_the_release(world: World) -> None:
    await world.order().next()
    held = world.freezer.still()
    await world.die()
    await world.start()
    assert world.held == {POD.uid}
    assert world.freezer.still() == held == world.rounds.held()
    assert [standing.round for standing in world.rounds.standings()] == ["default/gang-1"]
    told = world.order()
    assert (await told.next()).phase is Phase.STOPPED
    world.rounds.release("default/gang-1", [])
    assert (await told.next()).phase is Phase.RUNNING
    assert len(world.freezer.ever) == 2, "nothing was started once more"


async def test_the_next_agent_finishes_held_what_was_only_begun(world: World) -> None:
    world.pod.rig.server.delay("CreateContainer", seconds=30.0)
    world.order()
    await eventually.true(lambda: "CreateContainer" in world.pod.rig.server.called())
    await world.die()
    world.pod.rig.server.delay("CreateContainer", seconds=0.0)
    await world.start()
    told = world.order()
    assert (await told.next()).phase is Phase.STOPPED
    newest = await world.newest()
    assert world.freezer.still() == {newest[name] for name in MAINS}
    world.rounds.release("default/gang-1", [])
    assert (await told.next()).phase is Phase.RUNNING


async def test_while_a_member_stops_it_is_told_what_it_is_at(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(members, "TELL_EVERY", 0.01)
    world.pod.rig.server.delay("CreateContainer", seconds=1.0)
    told = world.order()
    heard = [await told.next()]
    while heard[-1].phase is Phase.STOPPING:
        heard.append(await told.next())
    assert "Creating" in {standing.reason for standing in heard}
    assert (heard[-1].phase, heard[-1].reason) == (Phase.STOPPED, "")
    assert world.rounds.standings() == (heard[-1],), "what it is at is no part of where it stands"
    world.rounds.release("default/gang-1", [])
    await world.stands(Phase.RUNNING)


async def test_a_member_that_kubelet_has_yet_to_start_is_told_to_go_on_after_its_release(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(members, "TELL_EVERY", 0.01)
    told = world.order()
    standing = await told.next()
    while standing.phase is not Phase.STOPPED:
        standing = await told.next()
    for name in MAINS:
        world.pod.rig.server.runtime.exit((await world.newest())[name], exit_code=137)
    world.rounds.release("default/gang-1", [])
    while not standing.reason:
        standing = await told.next()
    assert (standing.phase, standing.reason) == (Phase.STOPPED, "Starting")


async def test_what_is_held_for_as_long_as_its_probes_allow_is_begun_anew(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kubelet would kill it: what is frozen answers no probe, and the SIGTERM would wait for its release."""
    monkeypatch.setattr(probes, "SHORTEST", 0.5)
    await _probed(world, Probe(failure_threshold=1))
    told = world.order()
    assert (await told.next()).phase is Phase.STOPPED
    first = await world.newest()
    await _probed(world, Probe(initial_delay=1000.0))
    assert (await told.next()).phase is Phase.STOPPED
    second = await world.newest()
    assert not set(first.values()) & {second[name] for name in MAINS}
    assert world.freezer.still() == {second[name] for name in MAINS}
    world.rounds.release("default/gang-1", [])
    assert (await told.next()).phase is Phase.RUNNING
    assert await world.newest() == second


async def _probed(world: World, liveness: Probe) -> None:
    pod = world.pod.pods.pods()[POD.uid]
    containers = tuple(replace(spec, liveness=liveness) for spec in pod.containers)
    await world.pod.pods.put(replace(pod, containers=containers))


async def test_an_agent_that_comes_back_too_late_lets_go_at_once(world: World) -> None:
    await world.order().next()
    await world.die()
    world.since_boot += 5000.0
    await world.start()
    await world.stands(Phase.SELF_RELEASED)
    assert world.freezer.still() == set()


async def test_of_two_of_one_name_only_one_is_let_go_however_late(world: World) -> None:
    await world.order().next()
    await world.die()
    theirs = await world.pod.kubelet_starts("trainer", attempt=2)
    await world.freezer.freeze(theirs, mark=POD.uid)  # the last that the agent did
    world.since_boot += 5000.0
    await world.start()
    await world.stands(Phase.SELF_RELEASED)
    assert (await world.pod.running())["trainer"] == [theirs]
    assert len(world.freezer.let_go) == 2, "ours has gone while it stood still"


async def test_after_a_reboot_nothing_is_held_any_more(world: World) -> None:
    await world.order().next()
    await world.die()
    world.boot = "another"
    await world.start()
    assert world.held == frozenset()
    assert [standing.phase for standing in world.rounds.standings()] == [Phase.SELF_RELEASED]
    assert await world.store.unfinished() == ()


@pytest.mark.parametrize("policy", [RestartPolicy.ALWAYS, RestartPolicy.NEVER])
@pytest.mark.parametrize("calls", range(1, 25))
async def test_an_agent_that_dies_at_any_call_leaves_what_the_next_one_finishes_held(
    world: World, policy: RestartPolicy, calls: int
) -> None:
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
    assert (await told.next()).phase is Phase.STOPPED
    running = await world.pod.running()
    assert [len(running[name]) for name in MAINS] == [1, 1]
    assert world.freezer.still() == {running[name][0] for name in MAINS}
    assert not world.freezer.still() & set(world.pod.old.values())
    world.rounds.release("default/gang-1", [])
    assert (await told.next()).phase is Phase.RUNNING
    assert await world.pod.running() == running


async def test_what_was_let_go_before_the_agent_died_is_not_frozen_again(world: World) -> None:
    await world.order().next()
    await world.die()
    one, _ = world.freezer.still()
    world.freezer.thaw(one)  # it was at it, and wrote no more down
    await world.start()
    assert world.freezer.still() == set()
    assert [standing.phase for standing in world.rounds.standings()] == [Phase.SELF_RELEASED], (
        "nobody knows by what word"
    )


async def test_the_next_agent_says_that_it_was_released_as_the_last_one_has_noted_it(world: World) -> None:
    told = world.order()
    await told.next()
    world.rounds.release("default/gang-1", [POD.uid])
    await eventually.true(world.is_written_off)
    await world.die()
    await world.start()
    assert [standing.phase for standing in world.rounds.standings()] == [Phase.RUNNING]


async def test_what_was_aborted_never_says_that_it_was_released(world: World) -> None:
    told = world.order()
    await told.next()
    world.rounds.abort("default/gang-1", [POD.uid], reason="budget spent")
    standing = await told.next()
    assert (standing.phase, standing.reason) == (Phase.SELF_RELEASED, "Aborted")
    assert world.freezer.still() == set()


async def test_an_order_that_comes_after_its_abort_begins_nothing(world: World) -> None:
    world.rounds.abort("default/gang-1", [POD.uid], reason="budget spent")
    standing = await world.order().next()
    assert (standing.phase, standing.reason) == (Phase.SELF_RELEASED, "Aborted")
    assert await world.newest() == world.pod.old
    assert world.freezer.ever == []


async def test_of_two_records_of_a_pod_the_later_round_holds(world: World) -> None:
    """The agent died before it had written that the earlier round is over."""
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
    await world.stands(Phase.RUNNING)


async def test_an_earlier_round_that_was_never_written_off_holds_nothing_that_runs(world: World) -> None:
    await world.order().next()
    (record,) = await world.store.records()
    world.rounds.release("default/gang-1", [POD.uid])
    await world.stands(Phase.RUNNING)
    await eventually.true(world.is_written_off)
    await world.die()
    await world.store.note(replace(record, order=order(round="default/gang-0"), written_at=record.written_at - 1.0))
    world.freezer.let_go.clear()  # no mark is left either
    await world.start()
    assert world.held == frozenset()
    assert world.freezer.still() == set()
    assert [standing.round for standing in world.rounds.standings()] == ["default/gang-1"]


async def test_what_kubelet_has_started_and_we_adopt_is_held_though_its_event_is_late(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent.engine.catching.Catcher._catch", lambda *_: None)  # no event ever comes
    await world.exits("trainer", code=1)
    theirs: list[ContainerId] = []

    async def kubelet_first(*_: Any, **__: Any) -> Any:
        theirs.append(await world.pod.kubelet_starts("trainer", attempt=1))
        return await begin(*_, **__)

    begin = world.store.begin
    monkeypatch.setattr(world.store, "begin", kubelet_first)
    told = world.order(containers=frozenset({"trainer"}))
    assert (await told.next()).phase is Phase.STOPPED
    assert world.freezer.still() == set(theirs)
    world.rounds.release("default/gang-1", [])
    await told.next()


async def test_what_stands_still_is_ended_without_its_grace_period(world: World) -> None:
    """A frozen process hears no SIGTERM: the next round would wait for the whole grace period."""
    await world.order(grace_seconds=30.0).next()
    world.pod.rig.server.calls.clear()
    second = world.order(round="default/gang-2", attempt=2, grace_seconds=30.0)
    assert (await second.next()).phase is Phase.STOPPED
    stops = [call.request for call in world.pod.rig.server.calls if call.method == "StopContainer"]
    assert [getattr(request, "timeout", None) for request in stops] == [0, 0]
    world.rounds.release("default/gang-2", [])
    await second.next()


async def test_a_pod_that_has_succeeded_has_completed_though_its_container_is_gone(world: World) -> None:
    view = world.pod.pods.pods()[POD.uid]
    await world.pod.pods.put(replace(view, phase="Succeeded", restart_policy=RestartPolicy.ON_FAILURE))
    assert (await world.order().next()).phase is Phase.COMPLETED
    hold = await world.order(round="default/gang-2", kind=OrderKind.HOLD).next()
    assert hold.phase is Phase.COMPLETED


async def test_a_container_that_goes_while_it_is_looked_at_does_not_fail_the_round(world: World) -> None:
    await world.exits("trainer", code=1)
    world.pod.rig.server.fail("ContainerStatus", grpc.StatusCode.NOT_FOUND)
    told = world.order()
    assert (await told.next()).phase is Phase.STOPPED
    world.rounds.release("default/gang-1", [])
    await told.next()


async def test_a_hold_of_a_pod_that_has_not_begun_says_nothing_until_something_stands_still(world: World) -> None:
    for name, container in world.pod.old.items():
        if name in MAINS:
            world.pod.rig.server.runtime.exit(container, exit_code=1)
            await world.pod.rig.cri.remove_container(container)
    await eventually.true(lambda: not any(view.ref.name in MAINS for view in world.pod.rig.watch.containers()))
    told = world.order(kind=OrderKind.HOLD)
    await world.stands(Phase.STOPPING)
    assert told.standings.empty()
    theirs = await world.pod.kubelet_starts("trainer", attempt=1)
    assert (await told.next()).phase is Phase.STOPPED
    assert world.freezer.still() == {theirs}
    world.rounds.abort("default/gang-1", [POD.uid], reason="over")
    assert (await told.next()).phase is Phase.SELF_RELEASED


async def test_a_round_that_cannot_ask_about_the_owner_refuses_and_does_not_wait(world: World) -> None:
    view = world.pod.pods.pods()[POD.uid]
    job = OwnerRef(kind="Job", name="j", api_group="batch")
    await world.pod.pods.put(replace(view, owner=job, restart_policy=RestartPolicy.ON_FAILURE))
    world.owners.answer = None
    standing = await world.order().next()
    assert (standing.phase, standing.reason) == (Phase.REFUSED, "OwnerUnknown")
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
    assert sample("kubemend_round_slip_seconds_count") == 1


async def test_a_fault_is_left_to_the_gangs_round(world: World) -> None:
    world.gangs.answer = Taken.ROUND
    await world.restarts.handle(fault(FaultKind.HANG))
    assert world.gangs.asked == [(TARGET, FaultKind.HANG)]
    assert await world.newest() == world.pod.old
    assert world.said.said == {}


async def test_a_fault_that_nobody_shall_restart_is_refused_and_told(world: World) -> None:
    world.gangs.answer = Taken.NOTHING
    await world.restarts.handle(fault(FaultKind.DEVICE))
    (condition,) = world.said.said.values()
    assert condition.reason == "LeftToGang"
    assert await world.newest() == world.pod.old


def fault(kind: FaultKind) -> Request:
    cause = admission.Cause(code="Xid31", message="Xid 31", happened_at=NOW)
    return Request(target=TARGET, cause=lambda: cause, devices=frozenset(), kind=kind)
