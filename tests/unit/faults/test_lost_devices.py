"""Report all containers on a lost GPU to their gangs once, and restart none on this node."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from kubemend.agent.clients.journal.store import Store
from kubemend.agent.faults.app_faults import AppFaultHandler, Timeouts
from kubemend.agent.health.catalog import catalog_file
from kubemend.agent.health.catalog.catalog import Catalog
from kubemend.agent.health.state import evidence
from kubemend.agent.model.actions import ActionClass
from kubemend.agent.model.devices import DeviceInventory, DeviceLocator
from kubemend.agent.model.findings import Finding, FindingKind, Source
from kubemend.agent.model.workloads import Allocations, ContainerRef, ContainerState, PodUid
from kubemend.agent.restart import admission
from kubemend.agent.restarts.requests import Request
from kubemend.common.coordination import FaultAnswer
from tests import eventually
from tests.environments.findings import FindingEnv
from tests.fakes import outside
from tests.unit.restart import builders

TRAINER = builders.TARGET
OTHER = ContainerRef(replace(builders.POD, name="other", uid=PodUid("uid-2")), "trainer")
CATALOG = catalog_file.builtin()
HERE = DeviceLocator(pci=outside.GPU.pci)
NOW = 100.0


def found(kind: FindingKind = FindingKind.XID, code: str = "79", **changes: Any) -> Finding:
    defaults: dict[str, Any] = {
        "source": Source.KERNEL_LOG,
        "kind": kind,
        "code": code,
        "device": HERE,
        "action": ActionClass.REBOOT_NODE,
        "observed_at": NOW,
    }
    return Finding(**defaults | changes)


BY_NVML = found(FindingKind.DEVICE_LOST, "", source=Source.NVML, device=DeviceLocator(uuid=outside.GPU.uuid))


@dataclass
class Gangs:
    """Records the reports; ``answers`` unset: no answer."""

    reported: list[tuple[ContainerRef, admission.Cause]] = field(default_factory=list)
    answer: FaultAnswer = FaultAnswer.ROUND
    answers: asyncio.Event = field(default_factory=asyncio.Event)
    answered: list[ContainerRef] = field(default_factory=list)
    withdrawn: asyncio.Event = field(default_factory=asyncio.Event)
    heard: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def device_lost(self, target: ContainerRef, cause: admission.Cause) -> FaultAnswer:
        async with self.heard:
            self.reported.append((target, cause))
            self.heard.notify_all()
        try:
            await self.answers.wait()
        except asyncio.CancelledError:
            self.withdrawn.set()
            raise
        self.answered.append(target)
        return self.answer

    async def hears(self, number: int) -> list[tuple[ContainerRef, admission.Cause]]:
        """Return all reports once there are that many."""
        async with asyncio.timeout(60), self.heard:
            await self.heard.wait_for(lambda: len(self.reported) >= number)
        return self.reported


@dataclass
class Restarts:
    """Records requests."""

    requests: list[Request] = field(default_factory=list)

    async def submit(self, request: Request) -> None:
        self.requests.append(request)


class Faults(AppFaultHandler):
    """Counts the queries for a device's holders."""

    asked = 0

    async def _holders_of(self, device: str) -> list[ContainerRef] | None:
        self.asked += 1
        return await super()._holders_of(device)


@dataclass(kw_only=True)
class Env(FindingEnv):
    """One agent. ``close`` is its death."""

    pods: outside.Pods = field(default_factory=lambda: outside.Pods(builders.pod(), builders.pod(ref=OTHER.pod)))
    gangs: Gangs = field(default_factory=Gangs)
    restarts: Any = field(default_factory=Restarts)
    catalog: Catalog = CATALOG
    ledger_now: Callable[[], float] = lambda: NOW
    now: Callable[[], float] = lambda: NOW + 10
    timeouts: Timeouts = field(default_factory=lambda: Timeouts(root_cause=0.0, twin=0.01, ask_again=0.01))
    handler: type[AppFaultHandler] = Faults

    def __post_init__(self) -> None:
        self.report_to_hub = self.gangs.device_lost
        super().__post_init__()
        self.gangs.answers.set()
        self.find_runtime(self.restarts)
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        await self.verdict_store.load()
        self._task = asyncio.create_task(self.engine.run())
        await asyncio.sleep(0)  # it has started, with what a previous agent left

    async def close(self) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    def holds(self, *refs: ContainerRef, created_at: int = 1) -> None:
        """Make these containers hold the GPU, and run."""
        self.holders.hold(*refs)
        for ref in refs:
            self.events.run(ref, name=f"{ref.pod.name}-0", created_at=created_at)

    async def asked_again(self) -> None:
        """Wait until the device's holders were queried more than once."""
        assert isinstance(self.faults, Faults)
        faults = self.faults
        await eventually.true(lambda: faults.asked > 1)

    async def reports_nothing(self) -> None:
        """Wait until all earlier findings are handled; no container may have been reported."""
        seen = self.gangs.reported.copy()
        await eventually.true(lambda: self.queue.idle() and not _of_lost_devices())
        assert self.gangs.reported == seen
        assert self.restarts.requests == []


def _of_lost_devices() -> list[str]:
    """Return the reports in progress for a lost device."""
    return [name for task in asyncio.all_tasks() if (name := task.get_name()).endswith(" is lost")]


@pytest.fixture
async def env(store: Store) -> AsyncIterator[Env]:
    made = Env(store=store)
    await made.start()
    yield made
    await made.close()


@pytest.mark.parametrize("answer", FaultAnswer)
async def test_lost_gpu_of_member_is_reported_and_restarts_none(env: Env, answer: FaultAnswer) -> None:
    env.gangs.answer = answer
    env.holds(TRAINER)
    env.queue.submit(found(pid=4242))
    ((target, cause),) = await env.gangs.hears(1)
    assert target == TRAINER
    assert (cause.code, cause.action, cause.device) == ("Xid79", ActionClass.REBOOT_NODE, outside.GPU.uuid)
    assert (cause.happened_at, cause.devices_known) == (NOW, True)
    await env.reports_nothing()


async def test_lost_gpu_reports_all_holders(env: Env) -> None:
    env.holds(TRAINER, OTHER)
    env.queue.submit(found())
    assert {target for target, _ in await env.gangs.hears(2)} == {TRAINER, OTHER}


@pytest.mark.parametrize("order", [1, -1], ids=["log first", "NVML first"])
async def test_lost_gpu_in_many_sources_is_reported_once_with_cause(env: Env, order: int) -> None:
    env.holds(TRAINER)
    off_bus = found(FindingKind.OFF_BUS, "")
    for finding in (found(), found(pid=4242), found(source=Source.NVML), off_bus, BY_NVML)[::order]:
        env.queue.submit(finding)
    ((_, cause),) = await env.gangs.hears(1)
    assert cause.code == "Xid79"
    await env.reports_nothing()
    env.queue.submit(replace(BY_NVML, observed_at=NOW + 5))
    await env.reports_nothing()


async def test_lost_gpu_effect_seen_first_is_reported_with_cause(env: Env) -> None:
    env.holds(TRAINER)
    env.queue.submit(found(FindingKind.OFF_BUS, ""))
    env.queue.submit(found())
    ((_, cause),) = await env.gangs.hears(1)
    assert cause.code == "Xid79"


@pytest.mark.parametrize(
    "finding",
    [
        found(FindingKind.RECOVERY_ACTION, "4", action=ActionClass.RESET_DEVICE),
        found(FindingKind.ROW_REMAP_FAILED, "", action=ActionClass.REPLACE),
        found(FindingKind.RDMA_PORT_DOWN, "", action=ActionClass.OBSERVE),
        found(code="119", action=ActionClass.RESET_DEVICE),
        found(evidence={evidence.LOOK_BACK: "true"}),
    ],
    ids=lambda finding: f"{finding.title}{' of old' if finding.evidence else ''}",
)
async def test_usable_gpu_reports_no_container(env: Env, finding: Finding) -> None:
    env.holds(TRAINER)
    env.queue.submit(finding)
    await env.reports_nothing()
    assert env.verdict_store.active_faults(outside.GPU.uuid)


async def test_lost_gpu_ignores_ended_and_newer_containers(env: Env) -> None:
    env.holders.hold(TRAINER, OTHER)
    env.events.run(TRAINER, name="ended", state=ContainerState.EXITED)
    env.events.run(OTHER, name="later", created_at=int((NOW + 1) * 1e9))
    env.queue.submit(found())
    await env.reports_nothing()


async def test_lost_gpu_reports_container_from_before_the_clock_was_set_back(env: Env) -> None:
    env.holds(TRAINER, created_at=int((NOW + 3600) * 1e9))
    env.queue.submit(found())
    assert [target for target, _ in await env.gangs.hears(1)] == [TRAINER]


@pytest.mark.parametrize("unknown", ["kubelet", "the driver"])
async def test_lost_gpu_with_unknown_holders_reports_none(env: Env, unknown: str) -> None:
    env.holds(TRAINER)
    known, env.devices.inventory = env.devices.inventory, DeviceInventory(gpus=(replace(outside.GPU, index=-1),))
    if unknown == "kubelet":
        env.devices.inventory = known
        env.holders.allocations = Allocations(known=False)
    env.queue.submit(found())
    await env.asked_again()
    assert env.gangs.reported == []
    env.devices.inventory = known
    env.holders.hold(TRAINER)
    await env.gangs.hears(1)


async def test_lost_gpu_reports_after_first_runtime_listing(env: Env) -> None:
    env.events.listed.clear()
    env.holds(TRAINER)
    env.queue.submit(found())
    async with asyncio.timeout(60):
        await env.events.awaited.wait()
    env.events.listed.set()
    ((target, _),) = await env.gangs.hears(1)
    assert target == TRAINER


async def test_lost_gpu_that_recovers_before_answer_is_dropped(env: Env) -> None:
    env.gangs.answers.clear()
    env.holds(TRAINER)
    env.queue.submit(BY_NVML)
    await env.gangs.hears(1)
    back = replace(BY_NVML, kind=FindingKind.DEVICE_BACK, action=ActionClass.NONE)
    env.queue.submit(back)
    async with asyncio.timeout(60):
        await env.gangs.withdrawn.wait()
    env.queue.submit(replace(BY_NVML, observed_at=NOW + 5))  # and lost again
    await env.gangs.hears(2)


async def test_finding_about_another_device_drops_no_report_of_a_lost_one(env: Env) -> None:
    env.holds(TRAINER)
    env.gangs.answers.clear()
    env.queue.submit(found())
    await env.gangs.hears(1)
    elsewhere = DeviceLocator(pci=replace(outside.GPU.pci, bus=0xFF))
    env.queue.submit(found(code="94", action=ActionClass.NONE, device=elsewhere))
    await eventually.true(env.queue.idle)
    env.gangs.answers.set()
    await eventually.true(lambda: bool(env.gangs.answered) or env.gangs.withdrawn.is_set())
    assert env.gangs.answered == [TRAINER]


async def test_next_agent_reports_holders_of_gpu_still_lost(env: Env, store: Store) -> None:
    env.queue.submit(found())
    await env.asked_again()  # kubelet does not report the holders, and then this agent dies
    await env.close()
    second = Env(store=store)
    second.devices.inventory = DeviceInventory(complete=True)
    second.holds(TRAINER)
    await second.start()
    try:
        ((target, cause),) = await second.gangs.hears(1)
        assert (target, cause.code) == (TRAINER, "Xid79")
    finally:
        await second.close()


async def test_next_agent_ignores_gpu_that_answers_again(env: Env, store: Store) -> None:
    line = found(key="kmsg:6:50000000")
    env.queue.submit(line)
    await env.asked_again()  # kubelet does not report the holders, and then this agent dies
    await env.close()
    second = Env(store=store)
    second.holds(TRAINER)
    await second.start()
    second.queue.submit(line)  # which is read again
    await second.reports_nothing()
    await second.close()
