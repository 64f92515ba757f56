"""Run requests to the end of a restart on the stand-in runtime: strategies, fallbacks, journal, recovery."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from typing import Any

import grpc
import pytest
from prometheus_client import CollectorRegistry

from kubemend.agent.clients.cri.errors import NameReserved
from kubemend.agent.clients.journal.store import Store
from kubemend.agent.metrics import Metrics
from kubemend.agent.model import conditions
from kubemend.agent.model.conditions import Condition, ConditionStatus
from kubemend.agent.model.workloads import ContainerSpec, ContainerState, ContainerSummary
from kubemend.agent.restart import admission
from kubemend.agent.restart.intents import Strategy
from kubemend.agent.restarts.dependencies import Actuators, Dependencies
from kubemend.agent.restarts.recovery import Recovery
from kubemend.agent.restarts.scheduler import Request, RestartScheduler
from kubemend.common.pb.runtime.v1 import api_pb2
from tests.fakes import outside
from tests.fakes.launchers import Launchers
from tests.fakes.outside import Heartbeats
from tests.unit.actuator import pod_rig
from tests.unit.actuator.conftest import POD, TARGET, Rig, rig
from tests.unit.actuator.pod_rig import LASTING, PodRig

__all__ = ["rig"]

NOW = 10_000_000_000.0  # after the start of every container of the stand-in


@dataclass
class World:
    """One pod on the runtime, and a scheduler."""

    pod: PodRig
    said: outside.Conditions
    store: Store
    outside: Dependencies
    restarts: RestartScheduler
    launchers: Launchers = field(default_factory=Launchers)
    heartbeats: Heartbeats = field(default_factory=Heartbeats)

    async def ask(self, **annotations: str) -> Condition:
        """Opt in so, request a restart, let kubelet agree with any outcome, and return the last condition."""
        view = self.pod.pods.pods()[POD.uid]
        wishes = {"kubemend.io/restart": "InPlace"} | {f"kubemend.io/{key}": text for key, text in annotations.items()}
        await self.pod.pods.put(replace(view, annotations=wishes))
        cause = admission.Cause(code="Xid31", message="Xid 31", happened_at=NOW)
        async with self.kubelet():
            await self.restarts.handle(Request(target=TARGET, cause=lambda: cause, devices=frozenset()))
        return self.said.said[POD, conditions.IN_PLACE_RESTART]

    @contextlib.asynccontextmanager
    async def kubelet(self) -> AsyncIterator[None]:
        """Start missing containers in order, and report the running ones to the API server."""
        async with self.pod.rig.watch.subscribe(POD.uid) as events:
            work = asyncio.create_task(self._kubelet(events), name="kubelet")
            yield
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)

    async def _kubelet(self, events: "asyncio.Queue[Any]") -> None:
        while True:
            await events.get()
            if not await self.pod.containers():
                with contextlib.suppress(NameReserved):  # the agent was faster
                    await self._rerun()
            newest = {view.ref.name: view for view in await self.pod.containers()}
            view = self.pod.pods.pods()[POD.uid]
            specs = (_shown(spec, newest.get(spec.name)) for spec in view.containers)
            await self.pod.pods.put(replace(view, containers=tuple(specs)))

    async def _rerun(self) -> None:
        for name in pod_rig.ROLES:
            made = await self.pod.kubelet_starts(name, attempt=1)
            if name == "prepare":
                self.pod.rig.server.runtime.exit(made, exit_code=0)


def _shown(spec: ContainerSpec, view: ContainerSummary | None) -> ContainerSpec:
    """Return kubelet's status of a container: the id even of one in CREATED."""
    running = view is not None and view.state is ContainerState.RUNNING
    return replace(spec, container_id=view.id if view is not None else None, running=running)


@pytest.fixture
async def world(rig: Rig, tmp_path: Any) -> AsyncIterator[World]:
    store = await Store.open(tmp_path / "state.db")
    said, launchers, heartbeats = outside.Conditions(), Launchers(), Heartbeats()
    async with pod_rig.made(rig) as pod:
        everything = Dependencies(
            runtime=rig.cri,
            events=rig.watch,
            pods=pod.pods,
            devices=outside.Devices(),
            owners=outside.Owners(),
            reporter=said,
            processes=outside.Processes(),
            actuators=Actuators.of(replace(rig.tools(), launchers=launchers), pods=pod.pods),
            launchers=launchers,
            heartbeats=heartbeats,
        )
        restarts = RestartScheduler(
            outside=everything, store=store, metrics=Metrics(CollectorRegistry()), now=lambda: NOW
        )
        yield World(
            pod=pod,
            said=said,
            store=store,
            outside=everything,
            restarts=restarts,
            launchers=launchers,
            heartbeats=heartbeats,
        )
    await store.close()


@pytest.mark.parametrize("strategy", ["swap", "rerun", "reset"])
async def test_restart_is_executed_verified_and_closed(world: World, strategy: str) -> None:
    condition = await world.ask(strategy=strategy)
    assert condition.status is ConditionStatus.TRUE
    assert condition.message.startswith(f"trainer restart 1 by {strategy} in ")
    assert condition.message.endswith("; verified")
    assert ("kubelet" in condition.message) is (strategy == "reset"), "kubelet's part is a phase"
    assert await world.store.unfinished() == ()
    replaced = {name for name, (container,) in (await world.pod.running()).items() if container != world.pod.old[name]}
    assert replaced == ({"trainer"} if strategy == "swap" else set(LASTING))


async def test_swap_keeps_resize_and_image_volume(world: World) -> None:
    runtime = world.pod.rig.server.runtime
    old = runtime.containers[world.pod.old["trainer"]]
    image = api_pb2.ImageSpec(image="sha256:1")
    mounted = api_pb2.Mount(container_path="/model", host_path="/run/of/the/runtime", readonly=True, image=image)
    old.config.mounts.append(mounted)
    await world.pod.rig.cri.info_of((await world.pod.rig.containers())[0])  # the remembered info is from before
    old.resized = api_pb2.LinuxContainerResources(cpu_quota=200000, memory_limit_in_bytes=256)
    condition = await world.ask(strategy="swap")
    assert condition.status is ConditionStatus.TRUE
    ((new,), *_) = [runs for name, runs in (await world.pod.running()).items() if name == "trainer"]
    made = runtime.containers[new].config
    assert made.linux.resources == old.resized
    assert made.mounts[-1].image == image


async def test_config_that_runtime_rejects_is_refused_before_stop(world: World) -> None:
    old = world.pod.rig.server.runtime.containers[world.pod.old["trainer"]]
    old.config.mounts.append(api_pb2.Mount(container_path="/model", image=api_pb2.ImageSpec(image="sha256:1")))
    condition = await world.ask(strategy="swap")
    assert condition.status is ConditionStatus.FALSE
    assert "the mount at '/model' is of an image and not read-only" in condition.message
    assert "StopContainer" not in world.pod.rig.server.called()
    assert (await world.pod.running())["trainer"] == [world.pod.old["trainer"]]


@pytest.mark.parametrize(
    ("runtime_type", "handler", "word"),
    [
        ("io.containerd.runsc.v1", "gvisor", "io.containerd.runsc.v1"),
        ("io.containerd.kata.v2", "", "io.containerd.kata.v2"),
        (None, "kata-qemu-nvidia-gpu", "kata"),
    ],
)
async def test_pod_without_node_processes_is_refused(
    world: World, runtime_type: str | None, handler: str, word: str
) -> None:
    server = world.pod.rig.server
    server.runtime.behaviour.runtime_type = runtime_type
    server.runtime.sandboxes[world.pod.rig.sandbox_id].runtime_handler = handler
    condition = await world.ask()
    assert condition.reason == "RuntimeUnsupported"
    assert word in condition.message
    assert not {"StopContainer", "CreateContainer", "RemoveContainer"} & set(server.called())


async def test_auto_uses_reset_if_runtime_hides_config(world: World) -> None:
    world.pod.rig.server.runtime.behaviour.gives_config = False
    condition = await world.ask()
    assert " by reset " in condition.message


async def test_a_config_that_crio_hides_is_rebuilt_for_a_swap(world: World) -> None:
    world.pod.rig.server.runtime.behaviour.is_crio = True
    condition = await world.ask()
    assert " by swap " in condition.message
    assert len(await world.pod.running()) == len(LASTING)


async def test_a_rebuilt_config_whose_spec_differs_is_taken_back_before_anything_is_stopped(world: World) -> None:
    server = world.pod.rig.server
    server.runtime.behaviour.is_crio = True
    server.runtime.behaviour.spec_of_new = {"cwd": "/elsewhere"}
    condition = await world.ask()
    assert " by reset " in condition.message
    assert "process.cwd is new" in condition.message
    calls = [call for call in server.called() if call in ("CreateContainer", "StopContainer", "RemoveContainer")]
    assert calls[:2] == ["CreateContainer", "RemoveContainer"]
    assert await world.store.unfinished() == ()


async def test_a_rebuilt_config_that_the_runtime_refuses_three_times_is_reset(world: World) -> None:
    server = world.pod.rig.server
    server.runtime.behaviour.is_crio = True
    server.fail("CreateContainer", grpc.StatusCode.UNKNOWN, details="no such image", times=3)
    condition = await world.ask()
    assert " by reset " in condition.message
    assert "no such image" in condition.message
    assert (await world.pod.running()).keys() == set(LASTING)


async def test_auto_steps_down_if_config_is_not_cloneable(world: World) -> None:
    running = world.pod.rig.server.runtime.containers[world.pod.old["trainer"]]
    running.config.annotations["io.kubernetes.container.restartCount"] = "many"
    condition = await world.ask()
    assert " by reset " in condition.message


async def test_explicit_rerun_is_refused_if_config_not_cloneable(world: World) -> None:
    world.pod.rig.server.runtime.behaviour.gives_config = False
    condition = await world.ask(strategy="rerun")
    assert (condition.status, condition.reason) == (ConditionStatus.FALSE, "RuntimeHidesConfig")
    assert set(await world.pod.running()) == set(LASTING)
    assert "RemoveContainer" not in world.pod.rig.server.called()


async def test_selected_containers_are_swapped_together_except_stopped_ones(world: World) -> None:
    world.pod.rig.server.runtime.exit(world.pod.old["shipper"], exit_code=1)
    condition = await world.ask(containers="trainer,logger,shipper")
    assert condition.status is ConditionStatus.TRUE
    running = await world.pod.running()
    assert {name for name, (container,) in running.items() if container != world.pod.old[name]} == {"trainer", "logger"}


async def test_concurrent_requests_for_container_are_coalesced(world: World) -> None:
    cause = admission.Cause(code="Xid31", message="Xid 31", happened_at=NOW)
    async with world.pod.rig.watch.subscribe(POD.uid) as events:
        first = asyncio.create_task(world.ask(strategy="rerun"))
        await events.get()  # the first has started
        await world.restarts.handle(Request(target=TARGET, cause=lambda: cause, devices=frozenset()))
    await first
    assert world.pod.rig.server.called().count("StartContainer") == len(pod_rig.ROLES)


@pytest.mark.parametrize("strategy", [Strategy.RERUN, Strategy.RESET])
async def test_half_cleared_pod_is_finished_by_next_agent(world: World, strategy: Strategy) -> None:
    intent = world.pod.intent(strategy=strategy, created_at=NOW)
    await world.store.begin(intent)
    await world.pod.rig.cri.remove_container(world.pod.old["trainer"])
    async with world.kubelet():
        assert await Recovery(outside=world.outside, store=world.store, now=lambda: NOW).run() == 1
    assert not {view.id for view in await world.pod.containers()} & set(world.pod.old.values())
    assert await world.store.unfinished() == ()


async def test_old_intent_without_effect_is_undone(world: World) -> None:
    await world.store.begin(world.pod.intent(created_at=NOW - 3600))
    await Recovery(outside=world.outside, store=world.store, now=lambda: NOW).run()
    assert {view.state for view in await world.pod.containers()} == {ContainerState.RUNNING, ContainerState.EXITED}
    assert {name: [world.pod.old[name]] for name in LASTING} == await world.pod.running()


async def _held_by_its_budget(world: World, ended: asyncio.Event, clock: list[float]) -> "asyncio.Task[None]":
    """Spend the pod's only restart, and have a second fault on hold; ``ended``: the process that it hit has ended."""
    view = world.pod.pods.pods()[POD.uid]
    wishes = {"kubemend.io/restart": "InPlace", "kubemend.io/max-restarts": "1"}
    await world.pod.pods.put(replace(view, annotations=wishes))
    restarts = RestartScheduler(
        outside=world.outside, store=world.store, metrics=Metrics(CollectorRegistry()), now=lambda: clock[0]
    )

    async def lapsed() -> str:
        return "process 4711, which the fault hit, has ended" if ended.is_set() else ""

    def request(at: float) -> Request:
        cause = admission.Cause(code="Xid31", message="Xid 31", happened_at=at)
        return Request(target=TARGET, cause=lambda: cause, devices=frozenset(), lapsed=lapsed)

    await restarts.handle(request(clock[0]))
    clock[0] += 120
    held = asyncio.create_task(restarts.handle(request(clock[0])))
    async with asyncio.timeout(30):
        await world.said.wait_for(POD, conditions.IN_PLACE_RESTART, "BudgetSpent")
    return held


async def _an_hour_later(world: World, clock: list[float]) -> None:
    clock[0] += 3600
    await world.pod.pods.put(replace(world.pod.pods.pods()[POD.uid], labels={"changed": "yes"}))


async def test_fault_on_hold_is_dropped_when_process_ended(world: World) -> None:
    ended, clock = asyncio.Event(), [NOW]
    async with world.kubelet():
        held = await _held_by_its_budget(world, ended, clock)
        (healthy,) = (await world.pod.running())["trainer"]
        ended.set()  # and the program has replaced it within the container
        await _an_hour_later(world, clock)
        async with asyncio.timeout(30):
            await held
        assert (await world.pod.running())["trainer"] == [healthy]
    assert world.said.said[POD, conditions.IN_PLACE_RESTART].reason == "CauseGone"


async def test_fault_on_hold_is_handled_later_if_process_lives(world: World) -> None:
    clock = [NOW]
    async with world.kubelet():
        held = await _held_by_its_budget(world, asyncio.Event(), clock)
        (hit,) = (await world.pod.running())["trainer"]
        await _an_hour_later(world, clock)
        async with asyncio.timeout(30):
            await held
        assert (await world.pod.running())["trainer"] != [hit]


async def test_process_that_ends_at_once_does_not_prevent_restart(world: World) -> None:
    async def lapsed() -> str:
        return "process 4711, which the fault hit, has ended"

    cause = admission.Cause(code="Xid31", message="Xid 31", happened_at=NOW)
    view = world.pod.pods.pods()[POD.uid]
    await world.pod.pods.put(replace(view, annotations={"kubemend.io/restart": "InPlace"}))
    async with world.kubelet():
        await world.restarts.handle(Request(target=TARGET, cause=lambda: cause, devices=frozenset(), lapsed=lapsed))
    assert world.said.said[POD, conditions.IN_PLACE_RESTART].status is ConditionStatus.TRUE
