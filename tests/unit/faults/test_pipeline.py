"""Attribute a finding to the right container and to no other, and detect the end of a fault."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from kubemend.agent.actuator import progress
from kubemend.agent.clients.cri.convert import ContainerStatus
from kubemend.agent.clients.cri.errors import NotFound
from kubemend.agent.clients.journal.store import Store
from kubemend.agent.faults import recovery_action
from kubemend.agent.health.state import evidence
from kubemend.agent.model import conditions
from kubemend.agent.model.actions import ActionClass
from kubemend.agent.model.conditions import ConditionStatus
from kubemend.agent.model.devices import DeviceId, DeviceInventory, DeviceLocator, DevicePartition, PciAddress
from kubemend.agent.model.findings import Finding, FindingKind, Source
from kubemend.agent.model.outcomes import Outcome, Result
from kubemend.agent.model.workloads import (
    Allocation,
    Allocations,
    ContainerId,
    ContainerRef,
    ContainerState,
    ContainerSummary,
    PodUid,
)
from kubemend.agent.restarts.requests import Request
from kubemend.agent.sources.program_starts import ProgramStarts
from kubemend.common import aio
from tests import eventually
from tests.environments.findings import FindingEnv
from tests.fakes import outside
from tests.unit.hub.builders import info
from tests.unit.restart import builders

TRAINER = builders.TARGET
MONITOR = ContainerRef(replace(builders.POD, name="monitor", uid=PodUid("uid-2")), "exporter")
HERE = DeviceLocator(pci=outside.GPU.pci)


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
    """Records requests. ``outcome`` is how they end."""

    requests: "asyncio.Queue[Request]" = field(default_factory=asyncio.Queue)
    outcome: Outcome | None = None

    async def submit(self, request: Request) -> None:
        if self.outcome is not None:
            request.followed.notify(progress.Reported(self.outcome, (), settled=False))
        self.requests.put_nowait(request)


@dataclass
class Runtime:
    """Returns containers' first processes, and for those that have ended when that was (Unix seconds)."""

    first: dict[ContainerId, int]
    ended_at: dict[ContainerId, float] = field(default_factory=dict)

    async def container_status(self, container_id: ContainerId) -> ContainerStatus:
        if (known := self.remembered(container_id)) is None:
            raise NotFound("it is gone", where="here")
        return known

    def remembered(self, container_id: ContainerId) -> ContainerStatus | None:
        if container_id not in self.first:
            return None
        ended = info(container_id, of=TRAINER, exit_code=0)
        return replace(ended, state=ContainerState.RUNNING, pid=self.first[container_id])

    async def cached_status(self, view: ContainerSummary) -> ContainerStatus:
        if view.id not in self.ended_at:
            raise NotFound("it is gone", where="here")
        return info(view.id, of=view.ref, exit_code=1, finished_at=int(self.ended_at[view.id] * 1e9))


@dataclass(kw_only=True)
class PipelineEnv(FindingEnv):
    pods: outside.Pods = field(default_factory=lambda: outside.Pods(builders.pod(), builders.pod(ref=MONITOR.pod)))
    restarts: Any = field(default_factory=Restarts)
    runtime: Runtime = field(default_factory=lambda: Runtime({ContainerId("trainer-0"): 4000}))
    classify: Callable[[FindingKind, str], ActionClass] = lambda _, code: (
        ActionClass.NONE if code == "0" else ActionClass.RESET_DEVICE
    )

    async def restarted(self, *, within: float = 60) -> Request:
        async with asyncio.timeout(within):
            request: Request = await self.restarts.requests.get()
        return request

    async def nothing_restarted(self) -> None:
        """Wait until all findings are handled; no restart may have been requested."""
        async with asyncio.timeout(60):
            while not self.queue.idle():  # noqa: ASYNC110 - sources poll it, too
                await asyncio.sleep(0.01)
        assert self.restarts.requests.empty()

    async def condition(self, kind: str, reason: str, *, within: float = 60) -> conditions.Condition:
        async with asyncio.timeout(within):
            return await self.said.wait_for(builders.POD, kind, reason)


@pytest.fixture
def stopped_env(store: Store) -> PipelineEnv:
    """No container runs yet."""
    return PipelineEnv(store=store)


@pytest.fixture
async def env(stopped_env: PipelineEnv) -> AsyncIterator[PipelineEnv]:
    """The trainer holds the GPU and runs; the pipeline works."""
    stopped_env.holders.hold(TRAINER)
    stopped_env.events.run(TRAINER, name="trainer-0")
    stopped_env.processes.add(4242, container=ContainerId("trainer-0"))
    async with running(stopped_env):
        yield stopped_env


class running:  # noqa: N801 - reads as a word: async with running(env)
    """Run the pipeline's tasks for a while."""

    def __init__(self, env: PipelineEnv, *, with_runtime: bool = True) -> None:
        self._env = env
        self._with_runtime = with_runtime

    async def __aenter__(self) -> None:
        if self._with_runtime:
            use_runtime(self._env)
        self._tasks = [
            asyncio.create_task(self._env.engine.run()),
            asyncio.create_task(self._env.conditions.run()),
        ]

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def use_runtime(env: PipelineEnv) -> None:
    programs = ProgramStarts(now=env.now, clock=env.monotonic)
    env.find_runtime(env.restarts, runtime=env.runtime, programs=programs)


async def test_pipeline_process_in_line_names_container(env: PipelineEnv) -> None:
    env.queue.submit(xid(pid=4242))
    request = await env.restarted()
    assert request.target == TRAINER
    assert request.devices == frozenset({outside.GPU.uuid})
    cause = request.cause()
    assert (cause.code, cause.action, cause.happened_at) == ("Xid31", ActionClass.RESTART_APP, 100.0)
    assert await request.lapsed() == ""
    env.processes.ends[4242].set()
    assert await request.lapsed() == "process 4242, which the fault hit, has ended"


async def test_pipeline_fault_of_device_does_not_take_process_of_another_code(env: PipelineEnv) -> None:
    env.queue.submit(xid(43, pid=4242))
    await env.restarted()
    env.queue.submit(xid(79, ActionClass.REBOOT_NODE))
    await env.condition(conditions.DEVICE_FAILURE, "Xid79")


async def test_pipeline_unreadable_process_restarts_none_and_fault_lasts(
    env: PipelineEnv,
) -> None:
    env.processes.add(77, container=ContainerId("trainer-0"))
    env.processes.unreadable.add(77)
    env.queue.submit(xid(31, pid=77))
    await env.nothing_restarted()
    assert (
        env.verdict_store.verdict(outside.GPU.uuid, inventory=env.devices.inventory).action is ActionClass.RESTART_APP
    )


async def test_pipeline_fault_of_exec_process_restarts_none(env: PipelineEnv) -> None:
    env.processes.add(77, container=ContainerId("trainer-0"))
    env.processes.put_in.add(77)
    env.queue.submit(xid(pid=77))
    await env.condition(conditions.DEVICES_HEALTHY, "Xid31")
    await env.nothing_restarted()
    env.processes.ends[77].set()
    await env.condition(conditions.DEVICES_HEALTHY, "Healthy")


async def test_pipeline_first_process_unknown_to_proc_comes_from_runtime(env: PipelineEnv) -> None:
    env.processes.add(4000, container=ContainerId("trainer-0"))
    env.processes.put_in.add(4000)  # the container has no PID namespace of its own
    env.queue.submit(xid(pid=4000))
    assert (await env.restarted()).target == TRAINER


async def test_pipeline_reused_pid_restarts_none(env: PipelineEnv) -> None:
    env.processes.add(4242, container=ContainerId("trainer-0"), started=60.0)  # after boot_seconds 50
    env.queue.submit(xid(pid=4242))
    await env.nothing_restarted()


@pytest.mark.parametrize("created_at", [1, 3600], ids=["", "before-the-clock-was-set-back"])
async def test_pipeline_pid_of_another_numbering_restarts_none_and_fault_lasts_until_holders_are_replaced(
    store: Store, created_at: int
) -> None:
    env = PipelineEnv(store=store, knows_pids=False)
    env.holders.hold(TRAINER)
    env.events.run(TRAINER, name="trainer-0", created_at=created_at * 10**9)
    env.processes.add(4242, container=ContainerId("trainer-0"))
    async with running(env):
        env.queue.submit(xid(pid=4242))  # here this is the trainer's
        await env.condition(conditions.DEVICES_HEALTHY, "Xid31")
        await env.nothing_restarted()
        assert env.verdict_store.devices() == {outside.GPU.uuid}
        env.events.stop(ContainerId("trainer-0"))
        await env.condition(conditions.DEVICES_HEALTHY, "Healthy")


async def test_pipeline_lost_gpu_sets_device_failure_and_restarts_none(env: PipelineEnv) -> None:
    env.queue.submit(xid(79, ActionClass.REBOOT_NODE, pid=4242))
    failure = await env.condition(conditions.DEVICE_FAILURE, "Xid79")
    assert failure.status is ConditionStatus.TRUE
    await env.nothing_restarted()


async def test_pipeline_graver_fault_on_device_is_in_cause(env: PipelineEnv) -> None:
    env.queue.submit(xid(79, ActionClass.REBOOT_NODE))
    env.queue.submit(xid(31, pid=4242))
    assert (await env.restarted()).cause().action is ActionClass.REBOOT_NODE


async def test_pipeline_graver_fault_on_another_device_of_the_container_is_in_cause(env: PipelineEnv) -> None:
    other = replace(outside.GPU, uuid=DeviceId("GPU-1"), pci=PciAddress.parse("0000:42:00.0"), index=1)
    env.devices.inventory = replace(env.devices.inventory, gpus=(outside.GPU, other))
    both = Allocation(TRAINER.pod.namespace, TRAINER.pod.name, TRAINER.name, frozenset({outside.GPU.uuid, other.uuid}))
    env.holders.allocations = Allocations(items=(both,), known=True)
    env.queue.submit(xid(95, ActionClass.RESET_DEVICE, device=DeviceLocator(pci=other.pci)))
    env.queue.submit(xid(pid=4242))
    assert (await env.restarted()).cause().action is ActionClass.RESET_DEVICE


async def test_pipeline_finding_before_first_start_restarts_none(env: PipelineEnv) -> None:
    env.queue.submit(xid(pid=4242, evidence={evidence.LOOK_BACK: "true"}))
    await env.nothing_restarted()


async def test_pipeline_device_is_unhealthy_until_container_ended(env: PipelineEnv) -> None:
    env.queue.submit(xid(pid=4242))
    await env.restarted()
    assert (await env.condition(conditions.DEVICES_HEALTHY, "Xid31")).status is ConditionStatus.FALSE
    env.events.stop(ContainerId("trainer-0"))
    assert (await env.condition(conditions.DEVICES_HEALTHY, "Healthy")).status is ConditionStatus.TRUE


@pytest.mark.parametrize(("result", "health"), [(Result.RESTARTED, "Healthy"), (Result.FAILED, "Xid31")])
async def test_pipeline_fault_ends_when_the_program_is_restarted_in_its_container(
    env: PipelineEnv, result: Result, health: str
) -> None:
    env.restarts.outcome = Outcome(result, {TRAINER.name: ContainerId("trainer-0")})
    env.queue.submit(xid(pid=4242))
    await env.restarted()
    await env.condition(conditions.DEVICES_HEALTHY, health)


async def test_pipeline_fault_of_host_process_ends_with_it(env: PipelineEnv) -> None:
    env.processes.add(77, container=None)
    env.queue.submit(xid(pid=77))
    await env.condition(conditions.DEVICES_HEALTHY, "Xid31")
    env.processes.ends[77].set()
    await env.condition(conditions.DEVICES_HEALTHY, "Healthy")


async def test_pipeline_two_faults_end_when_both_have_ended(env: PipelineEnv) -> None:
    env.processes.add(77, container=None)
    env.queue.submit(xid(pid=77))
    env.queue.submit(xid(13, pid=4242))
    await env.restarted()
    env.events.stop(ContainerId("trainer-0"))
    await env.nothing_restarted()
    assert (
        env.verdict_store.verdict(outside.GPU.uuid, inventory=env.devices.inventory).action is ActionClass.RESTART_APP
    )
    env.processes.ends[77].set()
    await env.condition(conditions.DEVICES_HEALTHY, "Healthy")


async def test_pipeline_unknown_code_restarts_if_driver_needs_nothing(env: PipelineEnv) -> None:
    env.devices.recovery = 0
    env.queue.submit(xid(999, ActionClass.ASK_DRIVER, pid=4242))
    request = await env.restarted()
    assert (request.target, request.cause().action) == (TRAINER, ActionClass.RESTART_APP)


@pytest.mark.parametrize(
    ("finding", "reason"),
    [
        pytest.param(xid(154, ActionClass.ASK_DRIVER), "Xid154", id="changed-recommendation"),
        pytest.param(
            xid(kind=FindingKind.AER_FATAL, action=ActionClass.ASK_DRIVER), "AerFatal31", id="error-of-the-link"
        ),
    ],
)
async def test_pipeline_fault_of_no_program_restarts_nothing_once_the_driver_needs_nothing(
    env: PipelineEnv, finding: Finding, reason: str
) -> None:
    """The only holder of the GPU may be at work: nothing says that its program has failed."""
    env.queue.submit(finding)
    await env.condition(conditions.DEVICES_HEALTHY, reason)
    env.devices.recovery = 0
    await env.condition(conditions.DEVICES_HEALTHY, "Healthy", within=60)
    await env.nothing_restarted()


async def test_pipeline_old_fault_that_driver_clears_ends_with_holders(env: PipelineEnv) -> None:
    env.devices.recovery = 0
    env.holders.hold(TRAINER)
    old = env.events.run(TRAINER, name="trainer-0", created_at=1)
    env.queue.submit(xid(999, ActionClass.ASK_DRIVER, evidence={evidence.LOOK_BACK: "true"}))
    await env.condition(conditions.DEVICES_HEALTHY, "Xid999")
    env.events.stop(old)
    await env.condition(conditions.DEVICES_HEALTHY, "Healthy")
    assert env.restarts.requests.empty()


async def test_pipeline_unknown_code_and_driver_reset_restarts_none(env: PipelineEnv) -> None:
    env.devices.recovery = 1
    env.queue.submit(xid(999, ActionClass.ASK_DRIVER, pid=4242))
    await env.condition(conditions.DEVICE_FAILURE, "RecoveryAction1")
    await env.nothing_restarted()


async def test_pipeline_unknown_code_and_silent_driver_restarts_none(env: PipelineEnv) -> None:
    env.queue.submit(xid(999, ActionClass.ASK_DRIVER, pid=4242))
    assert (await env.condition(conditions.DEVICES_HEALTHY, "Xid999")).status is ConditionStatus.UNKNOWN
    await env.nothing_restarted()


async def test_pipeline_driver_not_up_yet_is_polled(env: PipelineEnv) -> None:
    env.queue.submit(xid(999, ActionClass.ASK_DRIVER, pid=4242))
    await env.condition(conditions.DEVICES_HEALTHY, "Xid999")
    env.devices.recovery = 0
    assert (await env.restarted(within=60)).cause().action is ActionClass.RESTART_APP


async def test_pipeline_driver_is_polled_for_the_newest_processes_of_a_fault(
    env: PipelineEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("_FIRST_WAIT", "_LONGEST_WAIT"):
        monkeypatch.setattr(recovery_action, name, 0.01)

    def polls() -> int:
        return sum(task.get_name().startswith("ask the driver") for task in asyncio.all_tasks())

    env.devices.recovery = 1
    for pid in (*range(5000, 5100), 4242):
        env.queue.submit(xid(999, ActionClass.ASK_DRIVER, pid=pid))
    await env.condition(conditions.DEVICE_FAILURE, "RecoveryAction1")
    await eventually.true(lambda: polls() == recovery_action._MOST_POLLS)
    env.devices.recovery = 0
    assert (await env.restarted()).target == TRAINER
    await eventually.true(lambda: polls() == 0)


async def test_pipeline_answer_of_the_driver_counts_for_all_processes_of_a_device(
    env: PipelineEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one asked about has ended, and the fault with it, before the second one's turn."""
    may_ask = asyncio.Event()

    class Turns:
        """Lets only the process that is asked about first ask again."""

        made = 0

        def __init__(self, **_: float) -> None:
            Turns.made += 1
            self.is_first = Turns.made == 1

        async def wait(self) -> None:
            await (asyncio.sleep(0.01) if self.is_first else may_ask.wait())

    monkeypatch.setattr(aio, "Backoff", Turns)
    env.devices.recovery = 1
    for pid in (5000, 4242):
        env.queue.submit(xid(999, ActionClass.ASK_DRIVER, pid=pid))
    await env.condition(conditions.DEVICE_FAILURE, "RecoveryAction1")
    await eventually.true(lambda: Turns.made == 2)
    env.devices.recovery = 0
    await env.condition(conditions.DEVICES_HEALTHY, "Healthy")
    may_ask.set()
    assert (await env.restarted()).target == TRAINER


async def test_pipeline_fault_of_driver_that_needs_reset_ends_after_it(env: PipelineEnv) -> None:
    env.devices.recovery = 1
    env.queue.submit(xid(999, ActionClass.ASK_DRIVER, pid=4243))  # a reset does not leave this process alive
    await env.condition(conditions.DEVICE_FAILURE, "RecoveryAction1")
    env.devices.recovery = 0
    await env.condition(conditions.DEVICES_HEALTHY, "Healthy", within=60)


async def test_pipeline_unanswered_driver_query_is_repeated_by_next_agent(stopped_env: PipelineEnv) -> None:
    env = stopped_env
    async with running(env):
        env.queue.submit(xid(999, ActionClass.ASK_DRIVER, pid=4242))
        await env.nothing_restarted()
    second = PipelineEnv(store=env.store)
    second.holders.hold(TRAINER)
    old = second.events.run(TRAINER, name="trainer-0", created_at=1)
    second.devices.recovery = 0
    await second.verdict_store.load()
    async with running(second):
        failing = await second.condition(conditions.DEVICES_HEALTHY, "Xid999")
        assert failing.status is not ConditionStatus.TRUE
        second.events.stop(old)
        await second.condition(conditions.DEVICES_HEALTHY, "Healthy", within=60)
    assert second.restarts.requests.empty()


async def test_pipeline_line_after_end_of_fault_does_not_last(env: PipelineEnv) -> None:
    ends = env.metrics.findings.labels("cri", "AppGone", "")
    for ended in (1, 2, 3):
        env.queue.submit(xid(pid=99))  # it is gone
        async with asyncio.timeout(60):
            while ends._value.get() < ended:  # noqa: ASYNC110 - a counter
                await asyncio.sleep(0)
    assert env.verdict_store.active_faults(outside.GPU.uuid) == ()


async def test_pipeline_instance_holder_unknown_until_driver_is_up(stopped_env: PipelineEnv) -> None:
    env, instance = stopped_env, DevicePartition(uuid=DeviceId("MIG-1"), gpu_instance=1, compute_instance=0)
    env.verdict_store.apply(xid(), inventory=env.devices.inventory)
    env.holders.hold(TRAINER, device=instance.uuid)
    old = env.events.run(TRAINER, name="trainer-0", created_at=1)
    up = replace(env.devices.inventory, gpus=(replace(outside.GPU, partitions=(instance,)),))
    env.devices.inventory = DeviceInventory(gpus=(replace(outside.GPU, index=-1),))
    async with running(env):
        await asyncio.sleep(0.1)
        assert env.verdict_store.active_faults(outside.GPU.uuid)
        env.devices.inventory = up
        env.conditions.holders_changed()
        await env.condition(conditions.DEVICES_HEALTHY, "Xid31")
        env.events.stop(old)
        await env.condition(conditions.DEVICES_HEALTHY, "Healthy", within=60)


@pytest.mark.parametrize(("gpu_instance", "compute_instance"), [(2, None), (1, 1)])
async def test_pipeline_fault_of_an_unknown_instance_restarts_no_holder_of_another(
    env: PipelineEnv, gpu_instance: int, compute_instance: int | None
) -> None:
    """Instances can be made while the GPU is in use; the next poll lists them."""
    known = DevicePartition(uuid=DeviceId("MIG-1"), gpu_instance=1, compute_instance=0)
    env.devices.inventory = replace(env.devices.inventory, gpus=(replace(outside.GPU, partitions=(known,)),))
    env.holders.hold(TRAINER, device=known.uuid)
    where = replace(HERE, gpu_instance=gpu_instance, compute_instance=compute_instance)
    env.queue.submit(xid(94, device=where))
    await asyncio.sleep(0.1)
    assert env.restarts.requests.empty()
    new = DevicePartition(DeviceId("MIG-2"), gpu_instance, compute_instance or 0)
    env.devices.inventory = replace(env.devices.inventory, gpus=(replace(outside.GPU, partitions=(known, new)),))
    env.holders.hold(TRAINER, device=new.uuid)
    assert (await env.restarted()).target == TRAINER


async def test_pipeline_end_of_unknown_fault_is_ignored(env: PipelineEnv) -> None:
    over = xid(0, ActionClass.NONE, kind=FindingKind.FAULT_OVER)
    env.queue.submit(replace(over, code="Throttled"))
    await env.nothing_restarted()
    counted = [sample.labels["kind"] for metric in env.metrics.findings.collect() for sample in metric.samples]
    assert "FaultOver" not in counted


async def test_pipeline_storm_restarts_once_and_is_counted(env: PipelineEnv) -> None:
    for _ in range(1000):
        env.queue.submit(xid(pid=4242))
    await env.restarted()
    async with asyncio.timeout(60):
        while env.metrics.findings_damped.labels("Xid")._value.get() < 999:  # noqa: ASYNC110 - a counter
            await asyncio.sleep(0)
    assert env.restarts.requests.empty()


async def test_pipeline_container_listed_late_is_restarted(env: PipelineEnv) -> None:
    env.processes.add(77, container=ContainerId("late"))
    env.queue.submit(xid(pid=77))
    await asyncio.sleep(0.05)  # several checks of the runtime's listing
    assert env.restarts.requests.empty()
    env.events.run(MONITOR, name="late")
    assert (await env.restarted()).target == MONITOR


async def test_pipeline_device_missing_from_kubelet_is_unknown(env: PipelineEnv) -> None:
    env.holders.allocations = Allocations(known=False)
    env.events.run(TRAINER, name="trainer-0")
    env.queue.submit(xid(pid=4242))
    assert (await env.restarted()).devices is None


async def test_pipeline_runtime_found_late_gets_restart(stopped_env: PipelineEnv) -> None:
    env = stopped_env
    env.holders.hold(TRAINER)
    env.events.run(TRAINER, name="trainer-0")
    env.processes.add(4242, container=ContainerId("trainer-0"))
    async with running(env, with_runtime=False):
        env.queue.submit(xid(pid=4242))
        await env.condition(conditions.DEVICES_HEALTHY, "Xid31")  # reported in the meantime
        assert not env.queue.idle()
        use_runtime(env)
        assert (await env.restarted()).target == TRAINER


async def test_pipeline_verdict_survives_agent_until_holders_are_newer(stopped_env: PipelineEnv) -> None:
    env = stopped_env
    env.holders.hold(TRAINER)
    old = env.events.run(TRAINER, name="trainer-0", created_at=1)
    env.processes.add(4242, container=old)
    async with running(env):
        env.queue.submit(xid(pid=4242))
        await env.restarted()
    second = PipelineEnv(store=env.store)
    second.holders.hold(TRAINER)
    second.events.views = env.events.views
    await second.verdict_store.load()
    async with running(second):
        await second.condition(conditions.DEVICES_HEALTHY, "Xid31")
        second.events.stop(old)
        await second.condition(conditions.DEVICES_HEALTHY, "Healthy")


async def test_pipeline_end_of_previous_fault_keeps_newer_one(stopped_env: PipelineEnv) -> None:
    env = stopped_env
    env.holders.hold(TRAINER, MONITOR)
    old = env.events.run(TRAINER, name="trainer-0", created_at=1)
    env.verdict_store.apply(xid(94), inventory=env.devices.inventory)
    async with running(env):
        await env.condition(conditions.DEVICES_HEALTHY, "Xid94")
        newer = env.events.run(MONITOR, name="exporter-0", created_at=1)
        env.processes.add(77, container=newer)
        env.queue.submit(xid(31, pid=77, observed_at=150.0))
        await env.restarted()
        env.events.stop(old)
        await env.nothing_restarted()
        await asyncio.sleep(0.1)
        assert {active_fault.code for active_fault in env.verdict_store.active_faults(outside.GPU.uuid)} == {
            "94",
            "31",
        }
        env.events.stop(newer)
        await env.condition(conditions.DEVICES_HEALTHY, "Healthy")


@pytest.mark.parametrize(
    ("changes", "lost"),
    [
        ({}, 1),
        ({"source": Source.NVML}, 1),
        ({"kind": FindingKind.SXID}, 1),
        ({"source": Source.NVML, "kind": FindingKind.DEVICE_LOST}, 0),
    ],
)
async def test_pipeline_findings_beyond_capacity_are_counted(
    stopped_env: PipelineEnv, changes: dict[str, Any], lost: int
) -> None:
    queue = stopped_env.queue
    for _ in range(10_001):
        queue.submit(xid(**changes))
    assert stopped_env.metrics.findings_lost._value.get() == lost


async def test_pipeline_slow_disk_delays_actions_but_no_reports(
    env: PipelineEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, written = env.store.save, asyncio.Event()

    async def save(key: str, body: str) -> None:
        await written.wait()
        await write(key, body)

    monkeypatch.setattr(env.store, "save", save)
    env.queue.submit(xid(pid=4242))
    await env.condition(conditions.DEVICES_HEALTHY, "Xid31")
    env.queue.submit(xid(79, ActionClass.REBOOT_NODE))
    await env.condition(conditions.DEVICES_HEALTHY, "Xid79")
    assert env.restarts.requests.empty()
    written.set()
    assert (await env.restarted()).cause().action is ActionClass.REBOOT_NODE


async def test_pipeline_findings_stay_in_the_queue_while_the_disk_hangs(
    env: PipelineEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def save(key: str, body: str) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(env.store, "save", save)
    for _ in range(5000):
        env.queue.submit(xid(pid=4242))
    counted = {"source": "kernel-log", "kind": "Xid", "code": "31"}
    await eventually.true(lambda: (env.metric("kubemend_findings_total", **counted) or 0.0) > 4000)
    for _ in range(8500):
        env.queue.submit(xid(pid=4242))
    waiting = asyncio.create_task(env.queue.drained())
    await asyncio.wait({waiting}, timeout=1.0)
    assert not waiting.done()
    waiting.cancel()


async def test_pipeline_flood_of_the_log_leaves_room_for_what_comes_once(stopped_env: PipelineEnv) -> None:
    """Otherwise the end of a state would be lost, and with it the device for good, or its beginning unnoticed."""
    queue, lost = stopped_env.queue, stopped_env.metrics.findings_lost
    for _ in range(10_000):
        queue.submit(xid())
    queue.submit(xid(0, ActionClass.REPLACE, kind=FindingKind.ROW_REMAP_FAILED, source=Source.NVML))
    assert lost._value.get() == 0
    queue.submit(xid(source=Source.NVML))
    assert lost._value.get() == 1


async def test_pipeline_queue_is_drained_when_a_batch_of_lines_fits(stopped_env: PipelineEnv) -> None:
    queue, drained = stopped_env.queue, asyncio.Event()

    async def wait() -> None:
        await queue.drained()
        drained.set()

    await queue.drained()
    for _ in range(7600):
        queue.submit(xid())
    waiting = asyncio.create_task(wait())
    await asyncio.sleep(0)
    assert not drained.is_set()
    await queue.next_batch()
    async with asyncio.timeout(60):
        await waiting


async def test_pipeline_silent_driver_makes_devices_unknown(env: PipelineEnv) -> None:
    env.devices.inventory = replace(env.devices.inventory, complete=False)
    env.conditions.holders_changed()
    assert (await env.condition(conditions.DEVICES_HEALTHY, "NotProven")).status is ConditionStatus.UNKNOWN


async def test_pipeline_deleted_pod_gets_no_condition(env: PipelineEnv) -> None:
    env.holders.hold()
    env.queue.submit(xid(79, ActionClass.REBOOT_NODE, pid=4242))
    await env.condition(conditions.DEVICES_HEALTHY, "Xid79")
    env.pods.drop(builders.POD.uid)
    env.said.said.clear()
    env.conditions.publish(env.holders.allocations)
    assert env.said.said == {}
