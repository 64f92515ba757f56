"""End suspicions against devices by evidence from the device, also in the next agent."""

from dataclasses import dataclass

import pytest

from kubemend.agent.clients.journal.store import Store
from kubemend.agent.devices.suspicion import LASTING, SuspicionTracker
from kubemend.agent.devices.verdict_store import VerdictStore
from kubemend.agent.model.actions import ActionClass
from kubemend.agent.model.devices import DeviceId, DeviceInventory
from kubemend.agent.model.findings import Finding, FindingKind
from kubemend.agent.model.verdicts import Health, Verdict
from tests.environments.node import verdicts
from tests.fakes import outside
from tests.fakes.gpu_host import GpuHost

GPU = outside.GPU.uuid
BOOTED_AT = 1_000_000.0
INVENTORY = DeviceInventory(gpus=(outside.GPU,), complete=True)
STUCK, IN_VAIN = FindingKind.PROCESS_STUCK, FindingKind.RESTARTS_IN_VAIN


@dataclass
class Bench:
    verdict_store: VerdictStore
    host: GpuHost
    now: float = BOOTED_AT + 5000.0

    def __post_init__(self) -> None:
        self.suspects = SuspicionTracker(
            verdict_store=self.verdict_store,
            driver=self.host,
            processes=self.host,
            submit=self._fold,
            classify=lambda _, __: ActionClass.OBSERVE,
            now=lambda: self.now,
            since_boot=lambda: self.now - BOOTED_AT,
        )

    def _fold(self, finding: Finding) -> None:
        self.verdict_store.apply(finding, inventory=INVENTORY)

    def verdict(self) -> Verdict:
        return self.verdict_store.verdict(GPU, inventory=INVENTORY)

    def work(self, pid: int) -> None:
        """Start a process on the device now."""
        self.host.put(GPU, pid, container="new", started=self.now - BOOTED_AT)


@pytest.fixture
def bench(store: Store) -> Bench:
    """A GPU without processes."""
    host = GpuHost(listed={DeviceId(GPU): {}})
    return Bench(verdicts(store), host)


async def test_suspicion_degrades_device_with_reason(bench: Bench) -> None:
    bench.suspects.suspect(STUCK, device=GPU, text="pid 11 of a/b/c uses it and cannot be killed (state D)")
    verdict = bench.verdict()
    assert (verdict.health, verdict.action, verdict.reason) == (Health.DEGRADED, ActionClass.OBSERVE, "ProcessStuck")
    assert verdict.message.startswith("pid 11")


async def test_suspicion_of_stuck_process_ends_when_process_ends(bench: Bench) -> None:
    bench.work(11)
    bench.host.in_d_state.add(11)
    bench.suspects.suspect(STUCK, device=GPU, text="stuck")
    await bench.suspects.check()
    assert bench.verdict().health is Health.DEGRADED
    bench.host.in_d_state.clear()
    await bench.suspects.check()
    assert bench.verdict().health is Health.HEALTHY


async def test_suspicion_survives_silent_driver(bench: Bench) -> None:
    bench.suspects.suspect(STUCK, device=GPU, text="stuck")
    bench.host.answers = False
    await bench.suspects.check()
    assert bench.verdict().health is Health.DEGRADED


async def test_suspicion_does_not_end_by_time_alone(bench: Bench) -> None:
    bench.suspects.suspect(IN_VAIN, device=GPU, text="did not last")
    bench.now += 100 * LASTING
    await bench.suspects.check()
    assert bench.verdict().reason == "RestartsInVain"


async def test_suspicion_ends_after_process_worked_long_enough(bench: Bench) -> None:
    bench.work(1)  # it existed before: it proves nothing
    bench.now += 10
    bench.suspects.suspect(IN_VAIN, device=GPU, text="did not last")
    bench.now += 10
    bench.work(2)
    bench.now += LASTING - 1
    await bench.suspects.check()
    assert bench.verdict().health is Health.DEGRADED
    bench.now += 1
    await bench.suspects.check()
    assert bench.verdict().health is Health.HEALTHY


async def test_suspicion_end_leaves_other_suspicions(bench: Bench) -> None:
    bench.suspects.suspect(IN_VAIN, device=GPU, text="did not last")
    bench.suspects.suspect(STUCK, device=GPU, text="stuck")
    await bench.suspects.check()
    assert bench.verdict().reason == "RestartsInVain"


async def test_suspicion_of_previous_agent_is_checked(bench: Bench, store: Store) -> None:
    bench.suspects.suspect(STUCK, device=GPU, text="stuck")
    await bench.verdict_store.save()
    verdict_store = verdicts(store)
    await verdict_store.load()
    later = Bench(verdict_store, bench.host)
    assert later.verdict().health is Health.DEGRADED
    await later.suspects.check()
    assert later.verdict().health is Health.HEALTHY
