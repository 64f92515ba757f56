"""From a finding to the right container, and to no other; and when a fault is over."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from agent.cri.answers import ContainerInfo
from agent.cri.errors import NotFound
from agent.engine import ports
from agent.engine.engine import Engine
from agent.engine.faults import AppFaults, Patience
from agent.engine.ledger import HealthLedger
from agent.engine.lost_devices import LostDevices
from agent.engine.metrics import Metrics
from agent.engine.publishing import Publisher
from agent.engine.restarts import Request
from agent.health import catalog_file, evidence
from agent.history.store import Store
from agent.model import conditions
from agent.model.actions import ActionClass
from agent.model.conditions import ConditionStatus
from agent.model.devices import DeviceLocator, GpuUuid, Inventory, MigInstance
from agent.model.findings import Finding, FindingKind, Source
from agent.model.workloads import Allocations, ContainerId, ContainerRef, ContainerState, PodUid
from tests.fakes import outside
from tests.unit.coordination.builders import info
from tests.unit.restart import builders

TRAINER = builders.TARGET
MONITOR = ContainerRef(replace(builders.POD, name="monitor", uid=PodUid("uid-2")), "exporter")
HERE = DeviceLocator(pci=outside.GPU.pci)
QUICK = Patience(root_cause=0.0, twin=0.05, listed=1.0, ask_again=0.01)


def xid(code: int = 31, action: ActionClass = ActionClass.RESTART_APP, **changes: Any) -> Finding:
    defaults: dict[str, Any] = {
        "source": Source.KERNEL_LOG,
        "kind": FindingKind.XID,
        "code": str(code),
        "device": HERE,
        "action": action,
        "observed_at": 100.0,
        "boot_seconds": 50.0,
    }
    return Finding(**defaults | changes)


@dataclass
class Restarts:
    """Takes requests down."""

    requests: "asyncio.Queue[Request]" = field(default_factory=asyncio.Queue)

    async def handle(self, request: Request) -> None:
        self.requests.put_nowait(request)


@dataclass
class Runtime:
    """Tells containers' first processes."""

    first: dict[ContainerId, int]

    async def container_info(self, container_id: ContainerId) -> ContainerInfo:
        if container_id not in self.first:
            raise NotFound("it is gone", where="here")
        ended = info(container_id, of=TRAINER, exit_code=0)
        return replace(ended, state=ContainerState.RUNNING, pid=self.first[container_id])


@dataclass
class World:
    engine: Engine
    faults: AppFaults
    ledger: HealthLedger
    publisher: Publisher
    pods: outside.Pods
    devices: outside.Devices
    holders: outside.Holders
    events: outside.Events
    said: outside.Conditions
    processes: outside.Processes
    restarts: Restarts
    store: Store
    metrics: Metrics

    async def restarted(self, *, within: float = 60) -> Request:
        async with asyncio.timeout(within):
            return await self.restarts.requests.get()

    async def nothing_restarted(self) -> None:
        """Wait until all that came in has been dealt with; nothing may have been restarted."""
        async with asyncio.timeout(60):
            while not self.engine.idle:  # noqa: ASYNC110 - a property that sources poll, too
                await asyncio.sleep(0.01)
        assert self.restarts.requests.empty()

    async def condition(self, kind: str, reason: str, *, within: float = 60) -> conditions.Condition:
        async with asyncio.timeout(within):
            return await self.said.wait_for(builders.POD, kind, reason)


def make(store: Store, metrics: Metrics) -> World:
    pods = outside.Pods(builders.pod(), builders.pod(ref=MONITOR.pod))
    devices, holders, events = outside.Devices(), outside.Holders(), outside.Events()
    said, processes, restarts = outside.Conditions(), outside.Processes(), Restarts()
    ledger = HealthLedger(store=store, metrics=metrics, boot_id="boot-1")
    publisher = Publisher(ledger=ledger, pods=pods, devices=devices, holders=holders, reporter=said)
    faults = AppFaults(
        ledger=ledger,
        pods=pods,
        devices=devices,
        holders=holders,
        processes=processes,  # type: ignore[arg-type]
        patience=QUICK,
    )
    engine = Engine(
        ledger=ledger,
        publisher=publisher,
        faults=faults,
        lost=LostDevices(
            ledger=ledger,
            catalog=catalog_file.builtin(),
            faults=faults,
            devices=devices,
            tell=ports.NO_GANGS.device_lost,
        ),
        devices=devices,
        processes=processes,  # type: ignore[arg-type]
        metrics=metrics,
        classify=lambda _, code: ActionClass.NONE if code == "0" else ActionClass.RESET_DEVICE,
        now=lambda: 200.0,
        monotonic=lambda: 50.0,  # a storm is one moment, however busy the machine
    )
    return World(
        engine, faults, ledger, publisher, pods, devices, holders, events, said, processes, restarts, store, metrics
    )


@pytest.fixture
async def stopped_world(tmp_path: Path) -> AsyncIterator[World]:
    """Nothing runs yet."""
    store = await Store.open(tmp_path / "state.db")
    yield make(store, Metrics(CollectorRegistry()))
    await store.close()


@pytest.fixture
async def world(stopped_world: World) -> AsyncIterator[World]:
    """The trainer holds the GPU and runs; the engine works."""
    stopped_world.holders.hold(TRAINER)
    stopped_world.events.run(TRAINER, name="trainer-0")
    stopped_world.processes.add(4242, container=ContainerId("trainer-0"))
    async with running(stopped_world):
        yield stopped_world


class running:  # noqa: N801 - reads as a word: async with running(world)
    """Runs the engine's tasks for a while."""

    def __init__(self, world: World, *, with_runtime: bool = True) -> None:
        self._world = world
        self._with_runtime = with_runtime

    async def __aenter__(self) -> None:
        if self._with_runtime:
            use_runtime(self._world)
        self._tasks = [
            asyncio.create_task(self._world.engine.run()),
            asyncio.create_task(self._world.publisher.run()),
        ]

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def use_runtime(world: World) -> None:
    runtime = Runtime({ContainerId("trainer-0"): 4000})
    world.faults.use_runtime(restarts=world.restarts, events=world.events, runtime=runtime)  # type: ignore[arg-type]


async def test_the_process_in_the_line_names_the_container(world: World) -> None:
    world.engine.submit(xid(pid=4242))
    request = await world.restarted()
    assert request.target == TRAINER
    assert request.devices == frozenset({outside.GPU.uuid})
    cause = request.cause()
    assert (cause.code, cause.action, cause.happened_at) == ("Xid31", ActionClass.RESTART_APP, 100.0)
    assert await request.lapsed() == ""
    world.processes.ends[4242].set()
    assert await request.lapsed() == "process 4242, which it hit, has ended"


async def test_a_finding_without_a_process_falls_on_the_only_holder(world: World) -> None:
    world.engine.submit(xid(94, source=Source.NVML))
    assert (await world.restarted()).target == TRAINER


async def test_of_two_holders_none_is_guessed(world: World) -> None:
    world.holders.hold(TRAINER, MONITOR)
    world.engine.submit(xid(94, source=Source.NVML))
    await world.nothing_restarted()


async def test_a_host_process_costs_no_container_its_life_even_if_nvml_tells_of_it_too(world: World) -> None:
    world.processes.add(77, container=None)
    world.engine.submit(xid(31, source=Source.NVML))  # without a pid, and first
    world.engine.submit(xid(31, pid=77))
    await world.nothing_restarted()


async def test_a_process_that_cannot_be_looked_at_costs_no_container_its_life_and_its_fault_stands(
    world: World,
) -> None:
    world.processes.add(77, container=ContainerId("trainer-0"))
    world.processes.unreadable.add(77)
    world.engine.submit(xid(31, pid=77))
    await world.nothing_restarted()
    assert world.ledger.verdict(outside.GPU.uuid, inventory=world.devices.inventory).action is ActionClass.RESTART_APP


async def test_a_program_in_somebodys_exec_shell_costs_the_container_nothing(world: World) -> None:
    world.processes.add(77, container=ContainerId("trainer-0"))
    world.processes.put_in.add(77)
    world.engine.submit(xid(pid=77))
    await world.condition(conditions.DEVICES_HEALTHY, "Xid31")
    await world.nothing_restarted()
    world.processes.ends[77].set()
    await world.condition(conditions.DEVICES_HEALTHY, "Healthy")


async def test_where_proc_cannot_tell_the_first_process_the_runtime_does(world: World) -> None:
    world.processes.add(4000, container=ContainerId("trainer-0"))
    world.processes.put_in.add(4000)  # the container has no PID namespace of its own
    world.engine.submit(xid(pid=4000))
    assert (await world.restarted()).target == TRAINER


async def test_a_reused_pid_names_nobody(world: World) -> None:
    world.processes.add(4242, container=ContainerId("trainer-0"), started=60.0)  # after boot_seconds 50
    world.engine.submit(xid(pid=4242))
    await world.nothing_restarted()


async def test_a_lost_gpu_restarts_nobody_and_says_that_the_pod_must_move(world: World) -> None:
    world.engine.submit(xid(79, ActionClass.REBOOT_NODE, pid=4242))
    failure = await world.condition(conditions.DEVICE_FAILURE, "Xid79")
    assert failure.status is ConditionStatus.TRUE
    await world.nothing_restarted()


async def test_a_graver_fault_on_the_same_device_shows_in_the_cause(world: World) -> None:
    world.engine.submit(xid(79, ActionClass.REBOOT_NODE))
    world.engine.submit(xid(31, pid=4242))
    assert (await world.restarted()).cause().action is ActionClass.REBOOT_NODE


async def test_history_from_before_the_first_start_restarts_nobody(world: World) -> None:
    world.engine.submit(xid(pid=4242, evidence={evidence.LOOK_BACK: "true"}))
    await world.nothing_restarted()


async def test_devices_are_unhealthy_until_what_the_fault_hit_has_ended(world: World) -> None:
    world.engine.submit(xid(pid=4242))
    await world.restarted()
    assert (await world.condition(conditions.DEVICES_HEALTHY, "Xid31")).status is ConditionStatus.FALSE
    world.events.stop(ContainerId("trainer-0"))
    assert (await world.condition(conditions.DEVICES_HEALTHY, "Healthy")).status is ConditionStatus.TRUE


async def test_a_host_processs_fault_is_over_when_it_has_ended(world: World) -> None:
    world.processes.add(77, container=None)
    world.engine.submit(xid(pid=77))
    await world.condition(conditions.DEVICES_HEALTHY, "Xid31")
    world.processes.ends[77].set()
    await world.condition(conditions.DEVICES_HEALTHY, "Healthy")


async def test_two_faults_are_over_when_both_have_ended(world: World) -> None:
    world.processes.add(77, container=None)
    world.engine.submit(xid(pid=77))
    world.engine.submit(xid(13, pid=4242))
    await world.restarted()
    world.events.stop(ContainerId("trainer-0"))
    await world.nothing_restarted()
    assert world.ledger.verdict(outside.GPU.uuid, inventory=world.devices.inventory).action is ActionClass.RESTART_APP
    world.processes.ends[77].set()
    await world.condition(conditions.DEVICES_HEALTHY, "Healthy")


async def test_an_unknown_code_asks_the_driver_and_its_none_licences_the_restart(world: World) -> None:
    world.devices.recovery = 0
    world.engine.submit(xid(999, ActionClass.ASK_DRIVER, pid=4242))
    request = await world.restarted()
    assert (request.target, request.cause().action) == (TRAINER, ActionClass.RESTART_APP)


async def test_an_old_fault_that_the_driver_takes_lightly_ends_with_those_who_held_the_device(world: World) -> None:
    world.devices.recovery = 0
    world.holders.hold(TRAINER)
    old = world.events.run(TRAINER, name="trainer-0", created_at=1)
    world.engine.submit(xid(999, ActionClass.ASK_DRIVER, evidence={evidence.LOOK_BACK: "true"}))
    await world.condition(conditions.DEVICES_HEALTHY, "Xid999")
    world.events.stop(old)
    await world.condition(conditions.DEVICES_HEALTHY, "Healthy")
    assert world.restarts.requests.empty()


async def test_an_unknown_code_and_a_driver_that_says_reset_restart_nobody(world: World) -> None:
    world.devices.recovery = 1
    world.engine.submit(xid(999, ActionClass.ASK_DRIVER, pid=4242))
    await world.condition(conditions.DEVICE_FAILURE, "RecoveryAction1")
    await world.nothing_restarted()


async def test_an_unknown_code_and_a_silent_driver_are_unknown_and_restart_nobody(world: World) -> None:
    world.engine.submit(xid(999, ActionClass.ASK_DRIVER, pid=4242))
    assert (await world.condition(conditions.DEVICES_HEALTHY, "Xid999")).status is ConditionStatus.UNKNOWN
    await world.nothing_restarted()


async def test_a_driver_that_is_not_up_yet_is_asked_again(world: World) -> None:
    world.engine.submit(xid(999, ActionClass.ASK_DRIVER, pid=4242))
    await world.condition(conditions.DEVICES_HEALTHY, "Xid999")
    world.devices.recovery = 0
    assert (await world.restarted(within=60)).cause().action is ActionClass.RESTART_APP


async def test_what_was_left_to_a_driver_that_wanted_a_reset_is_over_after_it(world: World) -> None:
    world.devices.recovery = 1
    world.engine.submit(xid(999, ActionClass.ASK_DRIVER, pid=4243))  # which a reset does not leave alive
    await world.condition(conditions.DEVICE_FAILURE, "RecoveryAction1")
    world.devices.recovery = 0
    await world.condition(conditions.DEVICES_HEALTHY, "Healthy", within=60)


async def test_what_an_earlier_agent_left_to_the_driver_is_asked_by_the_next(stopped_world: World) -> None:
    world = stopped_world
    async with running(world):
        world.engine.submit(xid(999, ActionClass.ASK_DRIVER, pid=4242))
        await world.nothing_restarted()
    second = make(world.store, Metrics(CollectorRegistry()))
    second.holders.hold(TRAINER)
    old = second.events.run(TRAINER, name="trainer-0", created_at=1)
    second.devices.recovery = 0
    await second.ledger.load()
    async with running(second):
        failing = await second.condition(conditions.DEVICES_HEALTHY, "Xid999")
        assert failing.status is not ConditionStatus.TRUE
        second.events.stop(old)
        await second.condition(conditions.DEVICES_HEALTHY, "Healthy", within=60)
    assert second.restarts.requests.empty()


async def test_a_line_that_comes_after_the_end_of_its_fault_is_no_lasting_fault(world: World) -> None:
    ends = world.metrics.findings.labels("cri", "AppGone", "")
    for ended in (1, 2, 3):
        world.engine.submit(xid(pid=99))  # which is gone
        async with asyncio.timeout(60):
            while ends._value.get() < ended:  # noqa: ASYNC110 - a counter
                await asyncio.sleep(0)
    assert world.ledger.latches(outside.GPU.uuid) == ()


async def test_who_holds_an_instance_is_not_known_before_the_driver_is_up(stopped_world: World) -> None:
    world, instance = stopped_world, MigInstance(uuid=GpuUuid("MIG-1"), gpu_instance=1, compute_instance=0)
    world.ledger.apply(xid(), inventory=world.devices.inventory)
    world.holders.hold(TRAINER, device=instance.uuid)
    old = world.events.run(TRAINER, name="trainer-0", created_at=1)
    up = replace(world.devices.inventory, gpus=(replace(outside.GPU, mig=(instance,)),))
    world.devices.inventory = Inventory(gpus=(replace(outside.GPU, index=-1),))
    async with running(world):
        await asyncio.sleep(0.1)
        assert world.ledger.latches(outside.GPU.uuid)
        world.devices.inventory = up
        world.publisher.holders_changed()
        await world.condition(conditions.DEVICES_HEALTHY, "Xid31")
        world.events.stop(old)
        await world.condition(conditions.DEVICES_HEALTHY, "Healthy", within=60)


async def test_the_end_of_what_nobody_holds_is_no_news(world: World) -> None:
    over = xid(0, ActionClass.NONE, kind=FindingKind.FAULT_OVER)
    world.engine.submit(replace(over, code="Throttled"))
    await world.nothing_restarted()
    counted = [sample.labels["kind"] for metric in world.metrics.findings.collect() for sample in metric.samples]
    assert "FaultOver" not in counted


async def test_a_storm_restarts_once_and_is_counted(world: World) -> None:
    for _ in range(1000):
        world.engine.submit(xid(pid=4242))
    await world.restarted()
    async with asyncio.timeout(60):
        while world.metrics.findings_damped.labels("Xid")._value.get() < 999:  # noqa: ASYNC110 - a counter
            await asyncio.sleep(0)
    assert world.restarts.requests.empty()


async def test_kubelet_away_is_not_nobody_holds_it(world: World) -> None:
    world.holders.allocations = Allocations(known=False)
    world.engine.submit(xid(94, source=Source.NVML))
    await asyncio.sleep(0.1)
    assert world.restarts.requests.empty()
    assert not world.engine.idle  # so the source does not forget it
    world.holders.hold(TRAINER)
    assert (await world.restarted()).target == TRAINER


async def test_a_container_that_a_slow_runtime_tells_of_late_is_restarted_all_the_same(world: World) -> None:
    world.processes.add(77, container=ContainerId("late"))
    world.engine.submit(xid(pid=77))
    await asyncio.sleep(0.05)  # several looks at what the runtime lists
    assert world.restarts.requests.empty()
    world.events.run(MONITOR, name="late")
    assert (await world.restarted()).target == MONITOR


async def test_what_kubelet_does_not_say_is_held_is_not_taken_for_nothing(world: World) -> None:
    world.holders.allocations = Allocations(known=False)
    world.events.run(TRAINER, name="trainer-0")
    world.engine.submit(xid(pid=4242))
    assert (await world.restarted()).devices is None


async def test_a_runtime_that_is_found_late_still_gets_the_restart(stopped_world: World) -> None:
    world = stopped_world
    world.holders.hold(TRAINER)
    world.events.run(TRAINER, name="trainer-0")
    world.processes.add(4242, container=ContainerId("trainer-0"))
    async with running(world, with_runtime=False):
        world.engine.submit(xid(pid=4242))
        await world.condition(conditions.DEVICES_HEALTHY, "Xid31")  # reported meanwhile
        assert not world.engine.idle
        use_runtime(world)
        assert (await world.restarted()).target == TRAINER


async def test_verdicts_survive_the_agent_and_end_when_every_holder_is_newer(stopped_world: World) -> None:
    world = stopped_world
    world.holders.hold(TRAINER)
    old = world.events.run(TRAINER, name="trainer-0", created_at=1)
    world.processes.add(4242, container=old)
    async with running(world):
        world.engine.submit(xid(pid=4242))
        await world.restarted()
    second = make(world.store, Metrics(CollectorRegistry()))
    second.holders.hold(TRAINER)
    second.events.views = world.events.views
    await second.ledger.load()
    async with running(second):
        await second.condition(conditions.DEVICES_HEALTHY, "Xid31")
        second.events.stop(old)
        await second.condition(conditions.DEVICES_HEALTHY, "Healthy")


async def test_the_end_of_an_earlier_agents_fault_is_not_that_of_a_newer_one(stopped_world: World) -> None:
    world = stopped_world
    world.holders.hold(TRAINER, MONITOR)
    old = world.events.run(TRAINER, name="trainer-0", created_at=1)
    world.ledger.apply(xid(94), inventory=world.devices.inventory)
    async with running(world):
        await world.condition(conditions.DEVICES_HEALTHY, "Xid94")
        newer = world.events.run(MONITOR, name="exporter-0", created_at=1)
        world.processes.add(77, container=newer)
        world.engine.submit(xid(31, pid=77, observed_at=150.0))
        await world.restarted()
        world.events.stop(old)
        await world.nothing_restarted()
        await asyncio.sleep(0.1)
        assert {latch.code for latch in world.ledger.latches(outside.GPU.uuid)} == {"94", "31"}
        world.events.stop(newer)
        await world.condition(conditions.DEVICES_HEALTHY, "Healthy")


async def test_findings_that_do_not_fit_are_counted(stopped_world: World) -> None:
    engine = stopped_world.engine
    for _ in range(10_001):
        engine.submit(xid())
    assert stopped_world.metrics.findings_lost._value.get() == 1


async def test_a_driver_that_cannot_be_asked_makes_devices_unknown_not_healthy(world: World) -> None:
    world.devices.inventory = replace(world.devices.inventory, complete=False)
    world.publisher.holders_changed()
    assert (await world.condition(conditions.DEVICES_HEALTHY, "NotProven")).status is ConditionStatus.UNKNOWN


async def test_a_pod_that_is_gone_is_told_nothing_though_its_gpu_stays_lost(world: World) -> None:
    world.holders.hold()
    world.engine.submit(xid(79, ActionClass.REBOOT_NODE, pid=4242))
    await world.condition(conditions.DEVICES_HEALTHY, "Xid79")
    world.pods.drop(builders.POD.uid)
    world.said.said.clear()
    world.publisher.publish(world.holders.allocations)
    assert world.said.said == {}
