"""A fault of the device that is found while a restart is carried out: nothing is started on the device."""

import asyncio
from dataclasses import dataclass, field, replace

import pytest

from kubemend.agent.actuator.device_health import DeviceHealth
from kubemend.agent.actuator.device_release import ReleaseGates
from kubemend.agent.actuator.hold.hold_set import HoldSet
from kubemend.agent.actuator.process import ProcessActuator
from kubemend.agent.actuator.release_gate import Timeouts
from kubemend.agent.actuator.swap import SwapActuator
from kubemend.agent.model.actions import ActionClass
from kubemend.agent.model.devices import DeviceId
from kubemend.agent.model.outcomes import Outcome, Result
from kubemend.agent.restart import admission, intents
from tests import eventually
from tests.environments.runtime import TARGET, CriEnv
from tests.fakes.freezer import Freezer
from tests.fakes.gpu_host import GpuHost
from tests.fakes.launchers import Launchers
from tests.unit.actuator.test_device_proof import PASSED, Proof, runs_something

GPU = DeviceId("GPU-0")
PID = 11
ORDERS = pytest.mark.parametrize("order", list(intents.SwapOrder))
UNUSABLE = [ActionClass.RESET_DEVICE, ActionClass.REBOOT_NODE, ActionClass.REPLACE]


@dataclass
class Swap:
    """One swap of the container, whose process is on the GPU; ``action`` is what the GPU needs now."""

    cri_env: CriEnv
    order: intents.SwapOrder
    leave: float = 60.0
    action: ActionClass = ActionClass.RESTART_APP
    proof: Proof = field(default_factory=lambda: Proof([PASSED]))
    judged: int = 0

    def judge(self) -> admission.Decision | None:
        self.judged += 1
        return admission.by_device(admission.Cause("Xid43", "Xid 43", happened_at=0.0, action=self.action))

    async def run(self, host: GpuHost) -> Outcome:
        host.put(GPU, PID, container=self.cri_env.old)
        intent = self.cri_env.intent(order=self.order)
        gates = ReleaseGates(
            driver=host, processes=host, timeouts=Timeouts(before=5.0, answer=5.0, leave=self.leave, stuck=60.0)
        )
        successor_spec = await self.cri_env.successor_spec(intent)
        actuator = SwapActuator(replace(self.cri_env.tools(), gates=gates))
        around = gates.around([intent], devices=frozenset({GPU}), proof=self.proof, judge=self.judge)
        async with around as visit:
            await visit.remembered()
            return await actuator.carry_out(intent, successor_spec=successor_spec)


@ORDERS
@pytest.mark.parametrize("action", UNUSABLE)
async def test_graver_fault_found_after_the_kill_starts_nothing(
    cri_env: CriEnv, order: intents.SwapOrder, action: ActionClass
) -> None:
    swap, host = Swap(cri_env, order), GpuHost()
    work = asyncio.create_task(swap.run(host))
    async with asyncio.timeout(30):
        await host.questions_reach(1)
    swap.action = action
    host.end(PID)
    outcome = await work
    assert outcome.result is Result.DEVICE_NOT_USABLE
    assert outcome.detail == f"a new process would fail on the device: it needs {action.value}"
    assert (await cri_env.running(), swap.proof.runs) == ([], 0)


@ORDERS
async def test_graver_fault_found_during_the_proof_starts_nothing(cri_env: CriEnv, order: intents.SwapOrder) -> None:
    swap, host = Swap(cri_env, order), GpuHost()
    work = asyncio.create_task(swap.run(host))
    async with asyncio.timeout(30):
        await host.questions_reach(1)
        host.end(PID)
        await swap.proof.begun.wait()
    swap.action = ActionClass.RESET_DEVICE
    swap.proof.may_end.set()
    assert (await work).result is Result.DEVICE_NOT_USABLE
    assert await cri_env.running() == []


@pytest.mark.parametrize("in_round", [False, True], ids=["alone", "in-a-round"])
async def test_launcher_ends_its_container_instead_of_starting_the_program_after_its_hold(
    cri_env: CriEnv, in_round: bool
) -> None:
    """In a round it goes on to hold: its pod is deleted, and must not fail before."""
    host, launchers = GpuHost(), Launchers()
    host.put(GPU, PID, container=cri_env.old)
    intent = intents.ProcessIntent("r1", TARGET, cri_env.sandbox_id, cri_env.old, 1, reason="Xid43", created_at=0.0)
    timeouts = Timeouts(before=5.0, answer=5.0, leave=60.0, stuck=60.0)
    gates = ReleaseGates(driver=host, processes=host, timeouts=timeouts)
    actuator = ProcessActuator(replace(cri_env.tools(), gates=gates, launchers=launchers))
    judge = Swap(cri_env, intents.SwapOrder.STOP_FIRST, action=ActionClass.RESET_DEVICE).judge
    holding = HoldSet(Freezer(cri_env.server.runtime), mark="uid-1", names={TARGET.name}) if in_round else None
    async with gates.around([intent], devices=frozenset({GPU}), proof=Proof([PASSED]), judge=judge) as visit:
        await visit.remembered()
        host.end(PID)
        outcome = await actuator.carry_out(intent, holding=holding)
    assert outcome.result is Result.DEVICE_NOT_USABLE
    assert ("release" in launchers.calls, launchers.calls[-1] == "discard") == (False, not in_round)


@ORDERS
async def test_start_waits_for_the_drivers_answer(cri_env: CriEnv, order: intents.SwapOrder) -> None:
    swap, host = Swap(cri_env, order, action=ActionClass.ASK_DRIVER), GpuHost()
    swap.proof.may_end.set()
    work = asyncio.create_task(swap.run(host))
    async with asyncio.timeout(30):
        await host.questions_reach(1)
        host.end(PID)
        await swap.proof.begun.wait()
        before = swap.judged
        await eventually.true(lambda: swap.judged > before + 2)
    assert not await runs_something(cri_env)
    swap.action = ActionClass.RESTART_APP
    assert (await work).result is Result.SWAPPED
    assert len(await cri_env.running()) == 1


@ORDERS
async def test_answer_that_does_not_come_starts_nothing(cri_env: CriEnv, order: intents.SwapOrder) -> None:
    swap, host = Swap(cri_env, order, leave=0.05, action=ActionClass.ASK_DRIVER), GpuHost()
    swap.proof.may_end.set()
    host.put(GPU, PID, container=cri_env.old)
    work = asyncio.create_task(swap.run(host))
    async with asyncio.timeout(30):
        await host.questions_reach(1)
    host.end(PID)
    outcome = await work
    assert outcome.result is Result.DEVICE_NOT_USABLE
    assert outcome.detail == "only the driver knows whether the device is usable"
    assert await cri_env.running() == []


async def test_time_in_which_the_agent_was_stopped_does_not_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    judged = asyncio.Queue[None]()
    action = ActionClass.ASK_DRIVER

    def judge() -> admission.Decision | None:
        judged.put_nowait(None)
        return admission.by_device(admission.Cause("Xid43", "Xid 43", happened_at=0.0, action=action))

    health = DeviceHealth(judge, timeout=30.0)
    async with asyncio.timeout(60):
        allows = asyncio.create_task(health.allows_start(timeout=None))
        for _ in range(2):
            await judged.get()
    loop = asyncio.get_running_loop()
    monkeypatch.setattr(loop, "time", lambda now=loop.time: now() + 3600.0)
    async with asyncio.timeout(60):
        for _ in range(2):
            await judged.get()
        assert not health.unusable()
        action = ActionClass.RESTART_APP
        assert await allows
