"""Gates before the start of successors: which processes are waited for, for how long, and the result."""

import asyncio
import errno
import itertools
import os
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import grpc
import pytest

from kubemend.agent.actuator import device_waits
from kubemend.agent.actuator.device_release import GateSession, ProcessStuckError, ReleaseGates, open_gates
from kubemend.agent.actuator.hold.hold_set import HoldSet, OldDead
from kubemend.agent.actuator.release_gate import Timeouts
from kubemend.agent.actuator.swap import SwapActuator
from kubemend.agent.model.devices import DeviceId
from kubemend.agent.model.hangs import Thread
from kubemend.agent.model.outcomes import Outcome, Result
from kubemend.agent.model.workloads import ContainerState
from kubemend.agent.restart import intents
from kubemend.agent.restart.device_release import ReleaseCheck, ReleaseState
from tests import eventually
from tests.environments.runtime import CriEnv
from tests.fakes.freezer import Freezer
from tests.fakes.gpu_host import GpuHost
from tests.unit.restart import builders

GPU = DeviceId("GPU-0")
GIB = 1 << 30
PID = 11
PATIENT = Timeouts(before=5.0, answer=5.0, leave=60.0)
HASTY = replace(PATIENT, leave=0.05, stuck=0.05)

BOTH_ORDERS = pytest.mark.parametrize("order", [intents.SwapOrder.STOP_FIRST, intents.SwapOrder.CREATE_FIRST])


@pytest.fixture
def host() -> GpuHost:
    """A host on which the old container's process and another one use a GPU."""
    host = GpuHost()
    host.put(GPU, PID, container="old", used=40 * GIB)
    host.put(GPU, 22, container=None)
    return host


@asynccontextmanager
async def around(host: GpuHost, *, timeouts: Timeouts = PATIENT) -> AsyncIterator[tuple[ReleaseGates, GateSession]]:
    gates = ReleaseGates(driver=host, processes=host, old=host, timeouts=timeouts)
    async with gates.around([builders.intent()], devices=frozenset({GPU})) as visit:
        await visit.remembered()
        yield gates, visit


async def judgement(visit: GateSession) -> ReleaseCheck:
    async with asyncio.timeout(30):
        return await visit.judgement()


async def test_unreadable_process_counts_as_present(host: GpuHost) -> None:
    async with around(host, timeouts=HASTY) as (gates, visit):
        host.unreadable.add(PID)
        assert await gates.opens("r1", timeout=30)
        assert (await judgement(visit)).verdict is ReleaseState.LEFTOVER


async def test_process_whose_end_cannot_be_followed_is_asked_for_when_the_successor_waits(
    host: GpuHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = asyncio.Event()

    async def ended(pid: int) -> None:
        asked.set()
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(host, "ended", ended)
    async with around(host, timeouts=HASTY) as (gates, visit):
        await asked.wait()
        assert await gates.opens("r1", timeout=30)
        assert (await judgement(visit)).verdict is ReleaseState.LEFTOVER


async def test_gates_of_a_restart_are_all_closed_although_one_has_failed(
    host: GpuHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the others would ask the driver until the agent's end: no successor waits for them any more."""
    threads, failed, visits = host.threads, list[str](), list[GateSession]()

    def broken(pids: Iterable[int]) -> tuple[Thread, ...]:
        if not failed:
            failed.append("once")
            raise IndexError
        return threads(pids)

    async def restart() -> None:
        async with gates.around([builders.intent(), builders.intent(id="r2")], devices=frozenset({GPU})) as visit:
            visits.append(visit)
            await visit.remembered()
            opening = [asyncio.create_task(gates.opens(each, timeout=0.01)) for each in ("r1", "r2")]
            await eventually.true(lambda: bool(failed))
            await asyncio.gather(*opening, return_exceptions=True)

    monkeypatch.setattr(host, "threads", broken)
    gates = ReleaseGates(driver=host, processes=host, old=host, timeouts=PATIENT)
    with pytest.raises(IndexError):
        await restart()
    assert all(gate.opening.done() for gate in visits[0].made)
    assert not gates._gates


async def test_ended_process_is_not_waited_for(host: GpuHost) -> None:
    async with around(host) as (gates, visit):
        host.end(PID)
        assert await gates.opens("r1", timeout=30)
        assert (await judgement(visit)).verdict is ReleaseState.FREE
        assert visit.was_occupied


async def test_driver_is_polled_once_the_process_has_ended(
    host: GpuHost,
) -> None:
    async with around(host):
        assert host.questions == 1
        host.end(PID)
        async with asyncio.timeout(30):
            await host.questions_reach(2)


async def test_container_on_no_device_is_not_waited_for(host: GpuHost) -> None:
    host.end(PID)
    async with around(host) as (gates, visit):
        assert await gates.opens("r1", timeout=30)
        assert not visit.was_occupied
        assert host.questions == 1


async def test_lingering_process_is_waited_for(host: GpuHost) -> None:
    async with around(host) as (gates, visit):
        host.die(PID)
        assert not await gates.opens("r1", timeout=0.05)
        host.leave(PID)
        assert await gates.opens("r1", timeout=30)
        assert (await judgement(visit)).verdict is ReleaseState.FREE


async def test_lingering_memory_is_waited_for(host: GpuHost) -> None:
    async with around(host) as (gates, visit):
        host.end(PID)
        host.memory[GPU] = 40 * GIB
        assert not await gates.opens("r1", timeout=0.05)
        host.memory[GPU] = 0
        assert await gates.opens("r1", timeout=30)
        assert (await judgement(visit)).verdict is ReleaseState.FREE


LATE: list[Any] = [
    pytest.param(lambda host: host.die(PID), ReleaseState.LEFTOVER, id="dead-but-listed"),
    pytest.param(lambda host: None, ReleaseState.LEFTOVER, id="alive"),
    pytest.param(
        lambda host: (host.end(PID), host.memory.update({GPU: 40 * GIB})), ReleaseState.MEMORY_HELD, id="memory-held"
    ),
]


@pytest.mark.parametrize(("happens", "verdict"), LATE)
async def test_gate_opens_after_timeout_with_a_reason(host: GpuHost, happens: Any, verdict: ReleaseState) -> None:
    async with around(host, timeouts=HASTY) as (gates, visit):
        happens(host)
        assert await gates.opens("r1", timeout=30)
        assert (await judgement(visit)).verdict is verdict


async def test_time_in_which_the_agent_was_stopped_is_not_the_devices(
    host: GpuHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = asyncio.get_running_loop()
    async with around(host, timeouts=replace(PATIENT, leave=30.0)) as (gates, visit):
        host.die(PID)
        assert not await gates.opens("r1", timeout=0.05)
        async with asyncio.timeout(30):
            await host.questions_reach(host.questions + 2)
        monkeypatch.setattr(loop, "time", lambda now=loop.time: now() + 3600.0)
        async with asyncio.timeout(30):
            await host.questions_reach(host.questions + 3)
        host.leave(PID)
        assert await gates.opens("r1", timeout=30)
        assert (await judgement(visit)).verdict is ReleaseState.FREE


async def test_freeing_memory_extends_the_timeout(host: GpuHost) -> None:
    """It may be in state D at each poll; progress is what counts."""
    host.in_d_state.add(PID)
    async with around(host, timeouts=replace(PATIENT, leave=0.3, stuck=0.3)) as (gates, visit):
        for tick in range(20):
            host.used[PID] = tick
            assert not await gates.opens("r1", timeout=0.05)
            assert gates.raise_if_shut("r1") is None  # type: ignore[func-returns-value]
        host.end(PID)
        assert await gates.opens("r1", timeout=30)
        assert (await judgement(visit)).verdict is ReleaseState.FREE


async def test_memory_of_other_processes_does_not_extend_the_timeout_indefinitely(host: GpuHost) -> None:
    async with around(host, timeouts=HASTY) as (gates, visit):
        host.end(PID)
        host.memory[GPU] = 40 * GIB
        changing = asyncio.create_task(_change_memory(host))
        try:
            assert await gates.opens("r1", timeout=30)
        finally:
            changing.cancel()
        assert (await judgement(visit)).verdict is ReleaseState.MEMORY_HELD


async def _change_memory(host: GpuHost) -> None:
    for number in itertools.count():
        host.memory[GPU] = (40 + number % 2) * GIB
        await host.questions_reach(host.questions + 1)


async def test_unkillable_process_keeps_its_gate_shut(host: GpuHost) -> None:
    host.in_d_state.add(PID)
    async with around(host, timeouts=HASTY) as (gates, visit):
        assert (await judgement(visit)).verdict is ReleaseState.STUCK
        assert not await gates.opens("r1", timeout=30)
        with pytest.raises(ProcessStuckError, match=f"pid {PID} on {GPU}"):
            gates.raise_if_shut("r1")
        assert visit.stuck() == {GPU: {PID}}


@pytest.mark.parametrize("how", ["no-answer", "hangs"])
async def test_driver_silent_before_the_stop_delays_nothing(host: GpuHost, how: str) -> None:
    host.answers, host.hangs = how != "no-answer", how == "hangs"
    async with around(host, timeouts=replace(PATIENT, before=0.01)) as (gates, visit):
        assert await gates.opens("r1", timeout=30)
        assert (await judgement(visit)).verdict is ReleaseState.UNKNOWN


async def test_driver_silent_after_the_stop_delays_nothing(host: GpuHost) -> None:
    async with around(host, timeouts=replace(PATIENT, answer=0.01)) as (gates, visit):
        host.hangs = True
        host.die(PID)
        assert await gates.opens("r1", timeout=30)
        assert (await judgement(visit)).verdict is ReleaseState.UNKNOWN


BUSY = replace(PATIENT, before=0.01)
"""The driver gets no time before the stop."""


async def test_late_list_counts_while_the_old_process_is_dying(host: GpuHost) -> None:
    host.busy = asyncio.Event()
    async with around(host, timeouts=BUSY) as (gates, visit):
        host.busy.set()
        async with asyncio.timeout(30):
            await host.questions_reach(2)  # the gate queries again once it knows the old processes
        await eventually.true(lambda: visit.was_occupied)
        host.die(PID)
        assert not await gates.opens("r1", timeout=0.05)
        host.leave(PID)
        assert await gates.opens("r1", timeout=30)
        assert (await judgement(visit)).verdict is ReleaseState.FREE


async def test_late_list_of_a_process_that_has_died_since_counts_by_its_device_files(host: GpuHost) -> None:
    host.busy, host.files = asyncio.Event(), {PID}
    host.put(GPU, 33, container="old")  # alive, in the list alone
    async with around(host, timeouts=BUSY) as (gates, visit):
        host.die(PID)
        host.busy.set()
        assert not await gates.opens("r1", timeout=0.05)
        host.leave(PID)
        assert not await gates.opens("r1", timeout=0.05)
        host.end(33)
        assert await gates.opens("r1", timeout=30)
        assert (await judgement(visit)).verdict is ReleaseState.FREE


async def test_process_with_device_files_is_waited_for_without_a_list(host: GpuHost) -> None:
    host.answers, host.files = False, {PID}
    async with around(host, timeouts=BUSY) as (gates, visit):
        host.answers = True
        host.die(PID)
        assert not await gates.opens("r1", timeout=0.05)
        host.leave(PID)
        assert await gates.opens("r1", timeout=30)
        assert (await judgement(visit)).verdict is ReleaseState.FREE
        assert visit.was_occupied


async def test_driver_that_stays_silent_after_the_end_of_a_process_with_device_files_is_unknown(host: GpuHost) -> None:
    host.hangs, host.files = True, {PID}
    async with around(host, timeouts=replace(BUSY, answer=0.01)) as (gates, visit):
        host.end(PID)
        assert await gates.opens("r1", timeout=30)
        assert (await judgement(visit)).verdict is ReleaseState.UNKNOWN


async def test_silent_driver_and_no_device_file_delay_nothing(host: GpuHost) -> None:
    host.hangs = True
    async with around(host, timeouts=replace(BUSY, answer=60.0)) as (gates, visit):
        assert await gates.opens("r1", timeout=30)
        assert (await judgement(visit)).verdict is ReleaseState.UNKNOWN


async def test_each_container_of_a_restart_has_its_own_gate(host: GpuHost) -> None:
    host.put(GPU, 33, container="sibling")
    both = [builders.intent(), builders.intent(id="r2", old="sibling")]
    gates = ReleaseGates(driver=host, processes=host, timeouts=PATIENT)
    async with gates.around(both, devices=frozenset({GPU})) as visit:
        await visit.remembered()
        host.end(PID)
        assert await gates.opens("r1", timeout=30)
        assert not await gates.opens("r2", timeout=0.02)  # still within its grace period
        host.end(33)
        assert (await judgement(visit)).verdict is ReleaseState.FREE


async def test_gate_ends_with_its_restart(host: GpuHost) -> None:
    async with around(host) as (gates, _):
        host.die(PID)
        assert not await gates.opens("r1", timeout=0)
    assert await gates.opens("r1", timeout=0)  # and, because all test timeouts have a floor, nothing polls any more


async def test_gates_are_open_without_a_driver() -> None:
    gates = open_gates()
    async with gates.around([builders.intent()], devices=frozenset({GPU})) as visit:
        assert await gates.opens("r1", timeout=30)
        assert (await judgement(visit)).verdict is ReleaseState.UNKNOWN


async def test_container_without_devices_needs_no_driver() -> None:
    async with open_gates().around([builders.intent()], devices=frozenset()) as visit:
        assert (await judgement(visit)).verdict is ReleaseState.FREE


# ---- in a swap ----


class Swap:
    """One swap of the container, whose process is on the GPU."""

    def __init__(self, cri_env: CriEnv, *, order: intents.SwapOrder, timeouts: Timeouts = PATIENT) -> None:
        self.cri_env = cri_env
        self.host = GpuHost()
        self.host.put(GPU, PID, container=cri_env.old)
        self.intent = cri_env.intent(order=order)
        self.gates = ReleaseGates(driver=self.host, processes=self.host, timeouts=timeouts)

    async def run(self, *, open_first: bool = False, holding: HoldSet | None = None) -> Outcome:
        """Carry it out; with ``open_first`` once its gate is open, with ``holding`` for a round."""
        successor_spec = await self.cri_env.successor_spec(self.intent)
        actuator = SwapActuator(replace(self.cri_env.tools(), gates=self.gates))
        async with self.gates.around([self.intent], devices=frozenset({GPU})) as visit:
            await visit.remembered()
            if open_first:
                await judgement(visit)
            return await actuator.carry_out(self.intent, successor_spec=successor_spec, holding=holding)

    async def stopped(self) -> None:
        """Wait until the old container has been stopped."""
        async with asyncio.timeout(30), self.cri_env.watch.subscribe() as events:
            while any(view.id == self.cri_env.old for view in await self.cri_env.running()):
                await events.get()


@BOTH_ORDERS
async def test_successor_starts_after_the_old_process_has_left(cri_env: CriEnv, order: intents.SwapOrder) -> None:
    swap = Swap(cri_env, order=order)
    work = asyncio.create_task(swap.run())
    await swap.stopped()
    swap.host.die(PID)
    asked = swap.host.questions
    async with asyncio.timeout(30):
        await swap.host.questions_reach(asked + 4)
    assert await cri_env.running() == []
    assert "StartContainer" not in cri_env.server.called()
    swap.host.leave(PID)
    outcome = await work
    assert outcome.result is Result.SWAPPED
    assert len(await cri_env.running()) == 1
    assert outcome.phases["device"] > 0


@BOTH_ORDERS
async def test_free_device_costs_no_call_and_no_wait(
    cri_env: CriEnv, order: intents.SwapOrder, monkeypatch: pytest.MonkeyPatch
) -> None:
    swap = Swap(cri_env, order=order)
    swap.host.end(PID)
    opens = swap.gates.opens

    async def opens_at_once(restart: str, *, timeout: float | None = None) -> bool:
        with pytest.raises(StopIteration) as result:  # without a turn of the loop
            opens(restart, timeout=timeout).send(None)
        return bool(result.value.value)

    monkeypatch.setattr(swap.gates, "opens", opens_at_once)
    outcome = await swap.run(open_first=True)
    # A busy machine takes a millisecond from this process at any place: that is a phase.
    phases = outcome.phases.keys() - {device_waits.DEVICE_PHASE}
    assert (outcome.result, phases) == (Result.SWAPPED, {"stop", "create", "start", "confirm"})
    assert cri_env.server.called().count("ListContainers") == 2  # the listing before the first step, and the last one


@BOTH_ORDERS
async def test_leftover_delays_but_does_not_prevent_the_start(cri_env: CriEnv, order: intents.SwapOrder) -> None:
    swap = Swap(cri_env, order=order, timeouts=HASTY)
    outcome = await swap.run()
    assert outcome.result is Result.SWAPPED
    assert len(await cri_env.running()) == 1


@BOTH_ORDERS
async def test_unkillable_process_ends_as_a_stop_without_effect(cri_env: CriEnv, order: intents.SwapOrder) -> None:
    swap = Swap(cri_env, order=order, timeouts=HASTY)
    swap.host.in_d_state.add(PID)
    outcome = await swap.run()
    assert outcome.result is Result.STUCK
    assert f"pid {PID}" in outcome.detail
    assert [view.state for view in await cri_env.containers()] == [ContainerState.EXITED]


async def test_kubelets_container_goes_first_during_the_wait(cri_env: CriEnv) -> None:
    swap = Swap(cri_env, order=intents.SwapOrder.STOP_FIRST)
    cri_env.server.fail("CreateContainer", grpc.StatusCode.INTERNAL)  # so the name of kubelet's copy is not reserved
    work = asyncio.create_task(swap.run())
    await swap.stopped()
    swap.host.die(PID)
    async with asyncio.timeout(30), cri_env.watch.subscribe() as events:
        while not [view for view in await cri_env.containers() if view.state is ContainerState.CREATED]:
            await events.get()
    theirs = await cri_env.kubelet_creates(attempt=2)
    outcome = await work
    assert (outcome.result, outcome.current["trainer"]) == (Result.ADOPTED, theirs)
    assert [view.id for view in await cri_env.running()] == [theirs]


async def test_standby_successor_runs_after_the_old_process_has_left(cri_env: CriEnv) -> None:
    swap = Swap(cri_env, order=intents.SwapOrder.START_FIRST)
    assert cri_env.standbys is not None
    work = asyncio.create_task(swap.run())
    await swap.stopped()
    swap.host.die(PID)
    asked = swap.host.questions
    async with asyncio.timeout(30):
        await swap.host.questions_reach(asked + 4)
    assert cri_env.standbys.held
    swap.host.leave(PID)
    assert (await work).result is Result.SWAPPED
    assert cri_env.standbys.story == ["frozen", "prepared", "released"]


ALL_ORDERS = pytest.mark.parametrize(
    "order", [intents.SwapOrder.STOP_FIRST, intents.SwapOrder.CREATE_FIRST, intents.SwapOrder.START_FIRST]
)


def for_round(cri_env: CriEnv) -> tuple[HoldSet, list[OldDead]]:
    """Return the hold of a round's member, and the deaths that are reported to it."""
    dead: list[OldDead] = []
    return HoldSet(Freezer(cri_env.server.runtime), mark="uid-1", names={"trainer"}, on_dead=dead.append), dead


@ALL_ORDERS
async def test_round_learns_of_the_death_once_the_devices_are_free(cri_env: CriEnv, order: intents.SwapOrder) -> None:
    swap, (holding, dead) = Swap(cri_env, order=order), for_round(cri_env)
    work = asyncio.create_task(swap.run(holding=holding))
    await swap.stopped()
    swap.host.die(PID)
    asked = swap.host.questions
    async with asyncio.timeout(30):
        await swap.host.questions_reach(asked + 4)
    assert dead == []
    swap.host.leave(PID)
    assert (await work).result is Result.SWAPPED
    assert [(each.restart, each.has_started) for each in dead] == [(swap.intent.id, order.starts_first)]
    assert {"stop", "create"} <= dead[0].seconds.keys()
    holding.release()


@ALL_ORDERS
async def test_round_does_not_learn_of_a_death_while_a_process_is_stuck(
    cri_env: CriEnv, order: intents.SwapOrder
) -> None:
    swap, (holding, dead) = Swap(cri_env, order=order, timeouts=HASTY), for_round(cri_env)
    swap.host.in_d_state.add(PID)
    assert (await swap.run(holding=holding)).result is Result.STUCK
    assert dead == []
    holding.release()


async def test_unkillable_process_removes_the_standby_successor(cri_env: CriEnv) -> None:
    swap = Swap(cri_env, order=intents.SwapOrder.START_FIRST, timeouts=HASTY)
    swap.host.in_d_state.add(PID)
    outcome = await swap.run()
    assert outcome.result is Result.STUCK
    assert await cri_env.running() == []
