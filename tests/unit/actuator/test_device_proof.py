"""Proofs of GPUs between the kill of a swap and the start of its successor."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import grpc
import pytest

from kubemend.agent.actuator.device_release import DeviceUnusableError, ReleaseGates
from kubemend.agent.actuator.release_gate import Timeouts
from kubemend.agent.actuator.swap import SwapActuator
from kubemend.agent.model.devices import DeviceId
from kubemend.agent.model.outcomes import Outcome, Result
from kubemend.agent.restart import device_proof, intents
from kubemend.agent.restart.device_proof import DeviceProof, ProofState
from tests.environments.runtime import CriEnv
from tests.fakes.gpu_host import GpuHost
from tests.unit.restart import builders

GPU = DeviceId("GPU-0")
PID = 11
PATIENT = Timeouts(before=5.0, answer=5.0, leave=60.0)
PASSED = DeviceProof(GPU, ProofState.PASSED)
UNKNOWN = DeviceProof(GPU, ProofState.UNKNOWN, "Incomplete", "it did not finish within 1 s")
WRONG = DeviceProof(GPU, ProofState.FAILED, "WrongResult", "integer-product: 1 of 9 values are wrong")

ORDERS = pytest.mark.parametrize("order", list(intents.SwapOrder))


@dataclass
class Proof:
    """A proof that ends with these results when it may."""

    results: Sequence[DeviceProof]
    begun: asyncio.Event = field(default_factory=asyncio.Event)
    may_end: asyncio.Event = field(default_factory=asyncio.Event)
    cancelled: bool = False
    closed: bool = False
    runs: int = 0

    @property
    def devices(self) -> frozenset[DeviceId]:
        return frozenset({GPU})

    async def run(self) -> Sequence[DeviceProof]:
        self.runs += 1
        self.begun.set()
        try:
            await self.may_end.wait()
        except asyncio.CancelledError:
            self.cancelled = True
            raise
        return self.results

    def close(self) -> None:
        self.closed = True

    async def ended(self) -> None:
        assert self.closed


class Swap:
    """One swap of the container, whose process is on the GPU, with a proof."""

    def __init__(self, cri_env: CriEnv, *results: DeviceProof, order: intents.SwapOrder) -> None:
        self.cri_env = cri_env
        self.host = GpuHost()
        self.host.put(GPU, PID, container=cri_env.old)
        self.intent = cri_env.intent(order=order)
        self.proof = Proof(results)
        self.gates = ReleaseGates(driver=self.host, processes=self.host, timeouts=PATIENT)
        self.reported: Sequence[DeviceProof] = ()

    async def run(self) -> Outcome:
        successor_spec = await self.cri_env.successor_spec(self.intent)
        actuator = SwapActuator(replace(self.cri_env.tools(), gates=self.gates))
        async with self.gates.around([self.intent], devices=frozenset({GPU}), proof=self.proof) as visit:
            await visit.remembered()
            outcome = await actuator.carry_out(self.intent, successor_spec=successor_spec)
            self.reported = visit.proving.results
            return outcome

    async def begun(self) -> None:
        async with asyncio.timeout(30):
            await self.proof.begun.wait()


async def runs_something(cri_env: CriEnv) -> bool:
    """Whether any container runs freely: one on standby does not."""
    held = cri_env.standbys.held if cri_env.standbys is not None else ()
    return any(view.id not in held for view in await cri_env.running())


@ORDERS
async def test_successor_runs_after_the_proof(cri_env: CriEnv, order: intents.SwapOrder) -> None:
    swap = Swap(cri_env, PASSED, order=order)
    work = asyncio.create_task(swap.run())
    await asyncio.sleep(0)
    swap.host.end(PID)
    await swap.begun()
    assert not await runs_something(cri_env)
    await asyncio.sleep(0.01)  # the length of the proof, not a wait for an event
    swap.proof.may_end.set()
    outcome = await work
    assert (outcome.result, len(await cri_env.running())) == (Result.SWAPPED, 1)
    assert outcome.phases["proof"] > 0
    assert (swap.reported, swap.proof.runs, swap.proof.closed) == ((PASSED,), 1, True)


@ORDERS
async def test_proof_waits_until_the_old_process_has_left(cri_env: CriEnv, order: intents.SwapOrder) -> None:
    swap = Swap(cri_env, PASSED, order=order)
    swap.proof.may_end.set()
    work = asyncio.create_task(swap.run())
    async with asyncio.timeout(30):
        await swap.host.questions_reach(1)
    swap.host.die(PID)
    async with asyncio.timeout(30):
        await swap.host.questions_reach(4)
    assert not swap.proof.begun.is_set()
    swap.host.leave(PID)
    assert (await work).result is Result.SWAPPED
    assert swap.proof.runs == 1


@ORDERS
async def test_inconclusive_proof_blocks_nothing(cri_env: CriEnv, order: intents.SwapOrder) -> None:
    swap = Swap(cri_env, UNKNOWN, order=order)
    swap.host.end(PID)
    swap.proof.may_end.set()
    assert (await swap.run()).result is Result.SWAPPED
    assert swap.reported == (UNKNOWN,)


@ORDERS
async def test_failed_proof_starts_nothing(cri_env: CriEnv, order: intents.SwapOrder) -> None:
    swap = Swap(cri_env, WRONG, order=order)
    swap.host.end(PID)
    swap.proof.may_end.set()
    outcome = await swap.run()
    assert outcome.result is Result.DEVICE_NOT_USABLE
    assert outcome.detail.startswith(f"WrongResult on {GPU}: integer-product")
    assert await cri_env.running() == []
    assert [view.id for view in await cri_env.containers()] == [cri_env.old]


async def test_kubelets_container_ends_the_proof(cri_env: CriEnv) -> None:
    swap = Swap(cri_env, PASSED, order=intents.SwapOrder.STOP_FIRST)
    swap.host.end(PID)
    cri_env.server.fail("CreateContainer", grpc.StatusCode.INTERNAL)  # so the name of kubelet's copy is not reserved
    work = asyncio.create_task(swap.run())
    await swap.begun()
    theirs = await cri_env.kubelet_creates(attempt=2)
    outcome = await work
    assert (outcome.result, outcome.current["trainer"]) == (Result.ADOPTED, theirs)
    assert (swap.proof.cancelled, swap.proof.closed) == (True, True)
    assert [each.reason for each in swap.reported] == [device_proof.INTERRUPTED]


async def test_unknown_driver_state_skips_the_proof(cri_env: CriEnv) -> None:
    swap = Swap(cri_env, PASSED, order=intents.SwapOrder.STOP_FIRST)
    swap.host.answers = False
    swap.proof.may_end.set()
    assert (await swap.run()).result is Result.SWAPPED
    assert (swap.proof.runs, [each.reason for each in swap.reported]) == (0, [device_proof.NOT_FREE])


@ORDERS
async def test_driver_that_lists_late_is_still_proved(cri_env: CriEnv, order: intents.SwapOrder) -> None:
    swap = Swap(cri_env, PASSED, order=order)
    swap.host.busy, swap.host.files = asyncio.Event(), {PID}
    swap.gates = ReleaseGates(
        driver=swap.host, processes=swap.host, old=swap.host, timeouts=replace(PATIENT, before=0.01)
    )
    swap.proof.may_end.set()
    async with cri_env.watch.subscribe() as events:
        work = asyncio.create_task(swap.run())
        async with asyncio.timeout(30):
            await swap.host.questions_reach(1)
            while await runs_something(cri_env):  # the stop does not wait for the driver
                await events.get()
        swap.host.busy.set()
        async with asyncio.timeout(30):
            await swap.host.questions_reach(2)
        swap.host.end(PID)
    assert (await work).result is Result.SWAPPED
    assert (swap.reported, swap.proof.runs) == ((PASSED,), 1)


async def test_containers_of_one_restart_share_one_proof() -> None:
    host, proof = GpuHost(), Proof([WRONG])
    host.put(GPU, PID, container="old")
    host.put(GPU, 33, container="sibling")
    gates = ReleaseGates(driver=host, processes=host, timeouts=PATIENT)
    both = [builders.intent(), builders.intent(id="r2", old="sibling")]
    async with gates.around(both, devices=frozenset({GPU}), proof=proof) as visit:
        await visit.remembered()
        host.end(PID)
        proof.may_end.set()
        assert not await gates.opens("r1", timeout=0.02)
        gates.raise_if_shut("r1")  # nothing is known yet
        assert proof.runs == 0  # the other one may still be on the GPU
        host.end(33)
        async with asyncio.timeout(30):
            await proof.begun.wait()
        for restart in ("r1", "r2"):
            assert not await gates.opens(restart, timeout=30)
            with pytest.raises(DeviceUnusableError, match="WrongResult"):
                gates.raise_if_shut(restart)
        assert proof.runs == 1
    assert proof.closed


async def test_proof_that_never_began_is_closed_with_its_restart() -> None:
    proof = Proof([PASSED])
    host = GpuHost()
    async with ReleaseGates(driver=host, processes=host).around(
        [builders.intent()], devices=frozenset({GPU}), proof=proof
    ):
        pass
    assert (proof.runs, proof.closed) == (0, True)
