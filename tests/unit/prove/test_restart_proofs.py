"""Proofs of restarts with real workers on the fake CUDA driver: right, wrong, slow, never, and where there is none."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from hack.devnode import processes
from hack.fakecuda.control import Wrong
from hack.fakenvml.control import gpu_uuid
from kubemend.agent.actuator.device_proof import Subject
from kubemend.agent.app.restart_proofs import RestartProofs
from kubemend.agent.clients.journal.store import Store
from kubemend.agent.devices.verdict_store import VerdictStore
from kubemend.agent.health.catalog import catalog_file
from kubemend.agent.model.actions import ActionClass
from kubemend.agent.model.devices import DeviceId, DeviceInventory, DevicePartition, Gpu, PciAddress, locator
from kubemend.agent.model.findings import Finding, FindingKind, Source
from kubemend.agent.model.verdicts import Health
from kubemend.agent.model.workloads import Allocation, Allocations, PodRef, PodUid
from kubemend.agent.prove import measurements, workers
from kubemend.agent.restart.device_proof import DeviceProof, ProofState
from kubemend.agent.restart.intents import Strategy
from kubemend.agent.sources.nvml.protocol import Condition, DeviceAnswer, DevicesAnswer, ProcessUse
from kubemend.agent.sources.nvml.queries import Unknown
from kubemend.agent.sources.processes import ProcFs
from tests import eventually
from tests.environments.node import NodeEnv
from tests.unit.prove.conftest import GPUS, Machine

POD = PodRef("default", "trainer-0", PodUid("uid-1"))
UUIDS = tuple(DeviceId(gpu_uuid(number)) for number in range(GPUS))
ONE, TWO = UUIDS
AMPLE = 60.0  # seconds; a proof takes one or two on a busy machine
NOW = 1_000_000.0


@pytest.fixture(autouse=True)
def _workers_may_end_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that has just been started ends only when Python has started: on a busy machine that takes seconds."""
    monkeypatch.setattr(workers, "STOP_SECONDS", AMPLE)


@dataclass
class Nvml:
    """NVML's answers, as a test sets them."""

    inventory: DeviceInventory
    users: dict[DeviceId, tuple[int, ...]] = field(default_factory=dict)
    silent: bool = False
    queried: asyncio.Event = field(default_factory=asyncio.Event)

    async def query(self, uuids: Sequence[DeviceId], *, timeout: float) -> DevicesAnswer | Unknown:
        self.queried.set()
        if self.silent:
            return Unknown(f"no answer within {timeout} s")
        return DevicesAnswer(
            tuple(
                DeviceAnswer(
                    uuid, Condition.ANSWERS, processes=tuple(ProcessUse(pid, None) for pid in self.users.get(uuid, ()))
                )
                for uuid in uuids
            )
        )


@dataclass
class Holders:
    """Kubelet's allocations, as a test sets them."""

    allocations: Allocations

    async def current(self, *, max_age: float) -> Allocations:
        return self.allocations


@dataclass
class Node:
    """A node with two idle GPUs that one container holds."""

    nvml: Nvml
    holders: Holders
    env: NodeEnv
    proc: Path
    found: list[Finding]
    proofs: RestartProofs
    now: float = NOW
    clock_set: float = 0.0

    @property
    def verdict_store(self) -> VerdictStore:
        return self.env.verdict_store

    @property
    def cgroups(self) -> Path:
        """Where cgroups are mounted."""
        return self.proc.parent / "cgroup"

    def fault(self, device: DeviceId, *, ago: float = 0.0) -> None:
        """Let a GPU have an Xid 31."""
        where, at = locator(device), self.now + self.clock_set - ago
        self.verdict_store.apply(
            Finding(Source.KERNEL_LOG, FindingKind.XID, "31", where, ActionClass.RESTART_APP, at),
            inventory=self.nvml.inventory,
        )

    def process_ended(self, device: DeviceId) -> None:
        """End the fault: its process has ended."""
        at = self.now + self.clock_set
        self.verdict_store.apply(
            Finding(Source.CRI, FindingKind.APP_GONE, "", locator(device), ActionClass.NONE, at),
            inventory=self.nvml.inventory,
        )

    async def proved(self, subject: Subject | None = None) -> dict[DeviceId, tuple[ProofState, str]]:
        """Prove, and return states and reasons; empty where nothing is proved."""
        return {each.device: (each.state, each.reason) for each in await self.results(subject)}

    async def results(self, subject: Subject | None = None) -> Sequence[DeviceProof]:
        """Prove, and return the results."""
        prepared = self.proofs.prepare(subject if subject is not None else restart())
        if prepared is None:
            return ()
        try:
            return await prepared.run()
        finally:
            prepared.close()
            await prepared.ended()
            await eventually.true(no_worker_runs)  # it waits two seconds; a busy machine takes longer to start one

    def counted(self, result: str, reason: str) -> float:
        """Return how many results were counted."""
        return self.env.metric("kubemend_restart_device_proofs_total", result=result, reason=reason) or 0.0


def no_worker_runs() -> bool:
    """Return whether each worker that was asked to end has ended."""
    return not any("kubemend.agent.prove.worker" in processes.command_line(each.pid) for each in processes.children())


def restart(*devices: DeviceId, attempt: int = 2) -> Subject:
    return Subject("r1", Strategy.SWAP, POD, frozenset({"trainer"}), frozenset(devices or UUIDS), attempt=attempt)


def held(pod: str = POD.name, container: str = "trainer", *, shared: bool = False) -> Allocation:
    return Allocation("default", pod, container, frozenset(UUIDS), shared=shared)


@pytest.fixture
def timeout() -> float:
    return AMPLE


@pytest.fixture
async def node(machine: Machine, tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch, timeout: float) -> Node:
    for name, value in machine.cuda.env().items():
        monkeypatch.setenv(name, value)
    gpus = tuple(Gpu(uuid, PciAddress(0, number, 0, 0), number) for number, uuid in enumerate(UUIDS))
    nvml, holders = Nvml(DeviceInventory(gpus, complete=True)), Holders(Allocations((held(),), known=True))
    found, catalog = list[Finding](), catalog_file.builtin()
    env = NodeEnv(
        store=store,
        catalog=catalog,
        ledger_now=lambda: made.now + made.clock_set,
        ledger_clock=lambda: made.now,
    )
    proofs = RestartProofs(
        nvml=nvml,
        verdict_store=env.verdict_store,
        holders=holders,
        processes=ProcFs(root=tmp_path / "proc", cgroup_root=tmp_path / "cgroup"),
        submit=found.append,
        classify=catalog.classify,
        metrics=env.metrics,
        timeout=timeout,
        now=lambda: made.now + made.clock_set,
        clock=lambda: made.now,
    )
    made = Node(nvml, holders, env, tmp_path / "proc", found, proofs)
    return made


async def test_right_answers_pass(node: Node) -> None:
    node.cgroups.mkdir()
    (node.cgroups / "cgroup.procs").touch()
    assert await node.proved() == dict.fromkeys(UUIDS, (ProofState.PASSED, ""))
    assert (node.found, node.counted("Passed", "")) == ([], GPUS)
    assert (node.cgroups / "cgroup.procs").read_text().isdigit(), "no worker has left the agent's cgroup"


async def test_wrong_answer_is_a_finding_that_makes_the_gpu_unhealthy(node: Node, machine: Machine) -> None:
    machine.cuda.wrong(Wrong.TENSOR, gpu=1)
    reported = await node.proved()
    assert reported == {ONE: (ProofState.PASSED, ""), TWO: (ProofState.FAILED, "WrongResult")}
    (finding,) = node.found
    assert (finding.kind, finding.device.uuid, finding.evidence["test"]) == (
        FindingKind.WRONG_RESULT,
        TWO,
        "tensor-product",
    )
    node.verdict_store.apply(finding, inventory=node.nvml.inventory)
    verdict = node.verdict_store.verdict(TWO, inventory=node.nvml.inventory)
    assert (verdict.health, verdict.reason, verdict.action.leaves_device_usable) == (
        Health.UNHEALTHY,
        "WrongResult",
        False,
    )


@pytest.mark.parametrize(
    ("wrong", "kind"), [(Wrong.MEMORY, FindingKind.WRONG_MEMORY), (Wrong.TO_HOST, FindingKind.WRONG_COPY)]
)
async def test_reason_of_the_finding(node: Node, machine: Machine, wrong: Wrong, kind: FindingKind) -> None:
    machine.cuda.wrong(wrong, gpu=0)
    await node.proved(restart(ONE))
    assert [(finding.kind, finding.device.uuid) for finding in node.found] == [(kind, ONE)]


async def test_slow_memory_fails_a_gpu(node: Node, machine: Machine) -> None:
    machine.cuda.slow(100_000, gpu=0)
    assert await node.proved(restart(ONE)) == {ONE: (ProofState.FAILED, "SlowMemory")}
    assert [finding.kind for finding in node.found] == [FindingKind.SLOW_MEMORY]


async def test_failures_of_all_gpus_accuse_none(node: Node, machine: Machine) -> None:
    for number in range(GPUS):
        machine.cuda.wrong(Wrong.INTEGER, gpu=number)
    assert await node.proved() == dict.fromkeys(UUIDS, (ProofState.UNKNOWN, "Implausible"))
    assert node.found == []


@pytest.mark.parametrize("timeout", [1.0])
async def test_driver_that_never_answers_accuses_none_and_ends_in_time(node: Node, machine: Machine) -> None:
    for number in range(GPUS):
        machine.cuda.hang("cuMemcpyDtoH_v2", gpu=number)
    async with asyncio.timeout(30):  # many times the second that a proof may take
        results = await node.results()
    assert {each.state for each in results} == {ProofState.UNKNOWN}
    assert {each.reason for each in results} <= {"Incomplete", "DidNotAnswer"}
    assert node.found == []


async def test_error_of_the_driver_before_any_test_accuses_none(node: Node, machine: Machine) -> None:
    machine.cuda.error("cuDevicePrimaryCtxRetain", 999, gpu=0)
    assert await node.proved(restart(ONE)) == {ONE: (ProofState.UNKNOWN, "CudaError")}


async def test_worker_that_dies_accuses_none(node: Node, machine: Machine) -> None:
    machine.cuda.wrong(Wrong.END, gpu=0)
    assert await node.proved(restart(ONE)) == {ONE: (ProofState.UNKNOWN, "Incomplete")}


async def test_node_without_cuda_is_asked_once(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", "/nowhere")
    assert await node.proved(restart(ONE)) == {ONE: (ProofState.SKIPPED, "NoCuda")}
    for node.clock_set in (0.0, 10 * 3600.0, -10 * 3600.0):  # the node's clock decides about nothing
        assert await node.proved(restart(ONE)) == {}
    node.now += 2 * 3600
    assert await node.proved(restart(ONE)) == {ONE: (ProofState.SKIPPED, "NoCuda")}


async def test_gpu_in_use_is_skipped(node: Node) -> None:
    node.nvml.users[ONE] = (4711,)
    assert await node.proved(restart(ONE)) == {ONE: (ProofState.SKIPPED, "InUse")}


async def test_mps_server_is_named(node: Node) -> None:
    node.nvml.users[ONE] = (4711,)
    (node.proc / "4711").mkdir(parents=True)
    (node.proc / "4711" / "comm").write_text("nvidia-cuda-mps\n")
    assert await node.proved(restart(ONE)) == {ONE: (ProofState.SKIPPED, "Mps")}


async def test_mig_is_skipped(node: Node) -> None:
    first, second = node.nvml.inventory.gpus
    instance = DevicePartition(DeviceId("MIG-1"), 1, 0)
    node.nvml.inventory = DeviceInventory((replace(first, partitions=(instance,)), second), complete=True)
    assert await node.proved(restart(instance.uuid)) == {instance.uuid: (ProofState.SKIPPED, "Mig")}


async def test_mig_instance_in_the_place_of_a_gpu_is_not_used(node: Node, machine: Machine) -> None:
    with machine.cuda.gpu(0) as gpu:
        gpu.instance = 1  # MIG was enabled since NVML's last poll
    assert await node.proved(restart(ONE)) == {ONE: (ProofState.UNKNOWN, "NotVisible")}
    measured = await workers.run(measurements.ONE_GPU, [ONE], deadline=AMPLE, timeout=AMPLE)
    assert measured.facts is not None
    assert (measured.facts.memory_free, measured.steps) == (None, ()), "it has a context on the instance"


@pytest.mark.parametrize(
    ("allocations", "state"),
    [
        pytest.param(Allocations((held(), held("other")), known=True), ProofState.SKIPPED, id="another-pod"),
        pytest.param(Allocations((held(), held(container="side")), known=True), ProofState.SKIPPED, id="same-pod"),
        pytest.param(Allocations((held(shared=True),), known=True), ProofState.SKIPPED, id="a-share"),
        pytest.param(Allocations(), ProofState.UNKNOWN, id="kubelet-silent"),
    ],
)
async def test_shared_gpu_is_not_proved(node: Node, allocations: Allocations, state: ProofState) -> None:
    node.holders.allocations = allocations
    assert await node.proved(restart(ONE)) == {ONE: (state, "Shared")}


async def test_silent_nvml_accuses_none(node: Node) -> None:
    node.nvml.silent = True
    assert await node.proved(restart(ONE)) == {ONE: (ProofState.UNKNOWN, "NvmlUnclear")}


def due(node: Node, subject: Subject) -> frozenset[DeviceId]:
    prepared = node.proofs.prepare(subject)
    return prepared.devices if prepared is not None else frozenset()


async def test_only_the_gpu_that_a_fault_concerns_is_proved_in_a_first_restart(node: Node) -> None:
    assert not due(node, restart(attempt=1))
    node.fault(TWO, ago=30.0)
    assert await node.proved(restart(attempt=0)) == {TWO: (ProofState.PASSED, "")}


async def test_fault_concerns_a_restart_for_a_while_after_its_process_has_ended(node: Node) -> None:
    node.fault(ONE)
    node.process_ended(ONE)
    node.nvml.users[ONE] = (4711,)
    assert node.verdict_store.active_faults(ONE) == ()
    for node.clock_set in (0.0, 3600.0, -3600.0):  # the node's clock decides about nothing
        assert set(await node.proved(restart(attempt=0))) == {ONE}
    node.now += 61.0
    for node.clock_set in (0.0, -3600.0):
        assert not due(node, restart(attempt=0))


async def test_gpu_at_fault_is_proved_although_its_health_is_unknown(node: Node) -> None:
    node.nvml.users[ONE] = (4711,)
    assert set(await node.proved(replace(restart(attempt=0), device=ONE))) == {ONE}


@pytest.mark.parametrize("timeout", [0.0])
async def test_proofs_can_be_switched_off(node: Node) -> None:
    assert await node.proved() == {}


async def test_interrupted_proof_is_counted_and_ends_its_workers(node: Node, machine: Machine) -> None:
    machine.cuda.hang("cuMemcpyDtoH_v2", gpu=0)
    prepared = node.proofs.prepare(restart(ONE))
    assert prepared is not None
    work = asyncio.create_task(prepared.run())
    async with asyncio.timeout(30):
        await node.nvml.queried.wait()
    work.cancel()
    await asyncio.wait({work})
    await prepared.ended()
    assert work.cancelled()
    assert node.counted("Unknown", "Incomplete") == 1
