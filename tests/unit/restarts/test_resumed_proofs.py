"""A restart that a previous agent left open at any step is proved before its start, or the log has the reason."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import structlog.testing

from kubemend.agent.actuator.device_release import ReleaseGates
from kubemend.agent.actuator.release_gate import Timeouts
from kubemend.agent.model import conditions
from kubemend.agent.model.actions import ActionClass
from kubemend.agent.model.devices import DeviceInventory, DeviceLocator
from kubemend.agent.model.findings import Finding, FindingKind, Source
from kubemend.agent.model.workloads import Allocations
from kubemend.agent.restart import intents
from kubemend.agent.restart.device_proof import DeviceProof, ProofState
from kubemend.agent.restarts import restart_proof, verifier
from kubemend.agent.restarts.recovery import Recovery
from tests import eventually
from tests.environments.node import NodeEnv
from tests.environments.restarts import NOW, RestartEnv, restarts_on
from tests.environments.runtime import POD, TARGET, CriEnv
from tests.fakes import outside
from tests.fakes.gpu_host import GpuHost
from tests.fakes.proofs import Proofs
from tests.unit.actuator import test_rerun, test_swap

GPU = outside.GPU.uuid
PID = 11
STEPS = 3
"""The calls of a swap."""


@dataclass
class ProofEnv:
    """A pod whose trainer uses a GPU, and the agent that finds what another left."""

    env: RestartEnv
    node: NodeEnv
    host: GpuHost
    proofs: Proofs

    async def recover(self) -> dict[str, Any]:
        """Start the agent; return its log event about the resumed restart."""
        everything = replace(self.env.dependencies, prover=self.proofs, device_facts=self.node.facts())
        at_once = verifier.Timeouts(kubelet=0.0, pod=0.0)
        with structlog.testing.capture_logs() as log:
            ending = asyncio.create_task(self._end_with_container(), name="process")
            await Recovery(dependencies=everything, store=self.env.store, now=lambda: NOW, timeouts=at_once).run()
            ending.cancel()
            await asyncio.gather(ending, return_exceptions=True)
        (event,) = [dict(event) for event in log if event["event"] == "restart.resumed"]
        return event

    async def _end_with_container(self) -> None:
        cri_env = self.env.pod.cri_env
        async with cri_env.watch.subscribe() as events:
            while any(view.id == cri_env.old for view in await cri_env.running()):
                await events.get()
        self.host.end(PID)


@pytest.fixture
async def proof_env(cri_env: CriEnv, tmp_path: Path) -> AsyncIterator[ProofEnv]:
    async with _world(cri_env, tmp_path) as made:
        yield made


@contextlib.asynccontextmanager
async def _world(cri_env: CriEnv, tmp_path: Path) -> AsyncIterator[ProofEnv]:
    host = GpuHost()
    host.put(GPU, PID, container=cri_env.old)
    gates = ReleaseGates(driver=host, processes=host, timeouts=Timeouts(before=30.0, answer=30.0, leave=30.0))
    async with restarts_on(cri_env, tmp_path, tools={"gates": gates}) as env:
        node = NodeEnv(store=env.store)
        node.holders.hold(TARGET, device=GPU)
        yield ProofEnv(env, node, host, Proofs(cri_env))


@pytest.mark.parametrize("calls", range(STEPS + 1))
@pytest.mark.parametrize("order", intents.SwapOrder)
async def test_resumed_swap_is_proved_or_reports_why_not(
    proof_env: ProofEnv, order: intents.SwapOrder, calls: int
) -> None:
    cri_env = proof_env.env.pod.cri_env
    intent = cri_env.intent(order=order, created_at=NOW)
    successor_spec = await cri_env.successor_spec(intent)
    await proof_env.env.store.begin(intent)
    await test_swap.crash_after(cri_env, intent, successor_spec=successor_spec, calls=calls)
    started = any(view.id != cri_env.old for view in await cri_env.running())
    event = await proof_env.recover()
    assert (event["result"], len(await cri_env.running())) == ("Swapped", 1)
    (subject,) = proof_env.proofs.subjects
    assert (subject.devices, subject.names) == (frozenset({GPU}), frozenset({"trainer"}))
    assert event["proofs"] == {GPU: "Interrupted" if started else "Passed"}
    assert proof_env.proofs.ran_beside == ([] if started else [[]]), "nothing runs on a GPU that is proved"


@pytest.mark.parametrize("calls", [0, 1, test_rerun.RESERVED, test_rerun.RESERVED + 6])
async def test_resumed_rerun_is_proved_or_reports_why_not(proof_env: ProofEnv, calls: int) -> None:
    pod = proof_env.env.pod
    intent = replace(pod.intent(), created_at=NOW)
    successor_specs = await pod.successor_specs(intent)
    await proof_env.env.store.begin(intent)
    await test_rerun.crash_after(pod, intent, successor_specs=successor_specs, calls=calls)
    event = await proof_env.recover()
    assert set(event["proofs"].values()) <= {"Passed", "Interrupted"}
    assert event["proofs"].keys() == {GPU}
    assert bool(proof_env.proofs.ran_beside) == (event["proofs"][GPU] == "Passed")


async def killed_after_the_stop(proof_env: ProofEnv) -> None:
    await proof_env.env.store.begin(proof_env.env.pod.cri_env.intent(created_at=NOW))
    await proof_env.env.pod.cri_env.cri.stop_container(proof_env.env.pod.cri_env.old, grace=0)


async def test_resumed_restart_whose_proof_fails_starts_nothing(proof_env: ProofEnv) -> None:
    proof_env.proofs.result = DeviceProof(
        GPU, ProofState.FAILED, "WrongResult", "integer-product: 1 of 9 values are wrong"
    )
    await killed_after_the_stop(proof_env)
    event = await proof_env.recover()
    assert (event["result"], event["proofs"]) == ("DeviceNotUsable", {GPU: "WrongResult"})
    assert await proof_env.env.pod.cri_env.running() == []
    assert await proof_env.env.store.unfinished() == ()
    condition = proof_env.env.said.said[POD, conditions.IN_PLACE_RESTART]
    assert condition.reason == "DeviceNotUsable"
    assert "WrongResult" in condition.message


async def test_resumed_restart_starts_nothing_on_a_device_that_needs_a_reset(proof_env: ProofEnv) -> None:
    proof_env.node.verdict_store.apply(
        Finding(
            source=Source.KERNEL_LOG,
            kind=FindingKind.XID,
            code="48",
            device=DeviceLocator(uuid=GPU),
            action=ActionClass.RESET_DEVICE,
            observed_at=NOW,
            text="",
        ),
        inventory=proof_env.node.devices.inventory,
    )
    await killed_after_the_stop(proof_env)
    assert (await proof_env.recover())["result"] == "DeviceNotUsable"
    assert proof_env.proofs.ran_beside == []
    assert await proof_env.env.pod.cri_env.running() == []


async def test_resumed_restart_without_an_answer_of_kubelet_names_the_reason(
    proof_env: ProofEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restart_proof, "RESUMED_SECONDS", 0.02)
    proof_env.node.holders.allocations = Allocations()
    await killed_after_the_stop(proof_env)
    event = await proof_env.recover()
    assert (event["result"], event["proofs"]) == ("Swapped", {"all": "DevicesUnknown"})
    assert proof_env.proofs.subjects == []


async def test_resumed_restart_waits_until_kubelet_and_the_driver_report_its_devices(proof_env: ProofEnv) -> None:
    known, listed = proof_env.node.holders.allocations, proof_env.node.devices.inventory
    proof_env.node.holders.allocations, proof_env.node.devices.inventory = Allocations(), DeviceInventory()
    await killed_after_the_stop(proof_env)
    work = asyncio.create_task(proof_env.recover())
    await eventually.true(lambda: proof_env.node.holders.asked)
    assert proof_env.proofs.subjects == []
    proof_env.node.holders.allocations, proof_env.node.devices.inventory = known, listed
    assert (await work)["proofs"] == {GPU: "Passed"}


async def test_resumed_restart_on_a_silent_driver_is_not_free(proof_env: ProofEnv) -> None:
    proof_env.host.answers = False
    await killed_after_the_stop(proof_env)
    event = await proof_env.recover()
    assert (event["result"], event["proofs"]) == ("Swapped", {GPU: "NotFree"})


async def test_stale_restart_is_undone_without_a_proof(proof_env: ProofEnv) -> None:
    await proof_env.env.store.begin(proof_env.env.pod.cri_env.intent(created_at=NOW - 3600))
    event = await proof_env.recover()
    assert (event["result"], event["proofs"], proof_env.proofs.subjects) == ("Undone", {}, [])


async def test_resumed_restart_of_a_container_without_devices_proves_nothing(proof_env: ProofEnv) -> None:
    proof_env.node.holders.allocations = Allocations(known=True)
    await killed_after_the_stop(proof_env)
    event = await proof_env.recover()
    assert (event["result"], event["proofs"], proof_env.proofs.subjects) == ("Swapped", {}, [])
