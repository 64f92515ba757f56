"""Suspicions against devices: what ends them is seen on the device, by whichever agent looks."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from agent.engine.ledger import HealthLedger
from agent.engine.metrics import Metrics
from agent.engine.suspects import LASTING, Suspects
from agent.history.store import Store
from agent.model.actions import ActionClass
from agent.model.devices import GpuUuid, Inventory
from agent.model.findings import Finding, FindingKind
from agent.model.verdicts import Health, Verdict
from tests.fakes import outside
from tests.fakes.gpu_host import GpuHost

GPU = outside.GPU.uuid
BOOTED_AT = 1_000_000.0
INVENTORY = Inventory(gpus=(outside.GPU,), complete=True)
STUCK, IN_VAIN = FindingKind.PROCESS_STUCK, FindingKind.RESTARTS_IN_VAIN


@dataclass
class Bench:
    ledger: HealthLedger
    host: GpuHost
    now: float = BOOTED_AT + 5000.0

    def __post_init__(self) -> None:
        self.suspects = Suspects(
            ledger=self.ledger,
            driver=self.host,
            processes=self.host,
            submit=self._fold,
            classify=lambda _, __: ActionClass.OBSERVE,
            now=lambda: self.now,
            since_boot=lambda: self.now - BOOTED_AT,
        )

    def _fold(self, finding: Finding) -> None:
        self.ledger.apply(finding, inventory=INVENTORY)

    def verdict(self) -> Verdict:
        return self.ledger.verdict(GPU, inventory=INVENTORY)

    def work(self, pid: int) -> None:
        """Let a process begin on the device now."""
        self.host.put(GPU, pid, container="new", started=self.now - BOOTED_AT)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    opened = await Store.open(tmp_path / "state.db")
    yield opened
    await opened.close()


@pytest.fixture
def bench(store: Store) -> Bench:
    """A GPU on which nobody is."""
    host = GpuHost(listed={GpuUuid(GPU): {}})
    return Bench(HealthLedger(store=store, metrics=Metrics(CollectorRegistry()), boot_id="b"), host)


async def test_a_suspicion_degrades_the_device_and_says_why(bench: Bench) -> None:
    bench.suspects.suspect(STUCK, device=GPU, text="pid 11 of a/b/c is on it and cannot be killed (state D)")
    verdict = bench.verdict()
    assert (verdict.health, verdict.action, verdict.reason) == (Health.DEGRADED, ActionClass.OBSERVE, "ProcessStuck")
    assert verdict.message.startswith("pid 11")


async def test_a_stuck_process_is_suspect_until_it_is_stuck_no_more(bench: Bench) -> None:
    bench.work(11)
    bench.host.in_d_state.add(11)
    bench.suspects.suspect(STUCK, device=GPU, text="stuck")
    await bench.suspects.look()
    assert bench.verdict().health is Health.DEGRADED
    bench.host.in_d_state.clear()
    await bench.suspects.look()
    assert bench.verdict().health is Health.HEALTHY


async def test_a_driver_that_does_not_answer_ends_no_suspicion(bench: Bench) -> None:
    bench.suspects.suspect(STUCK, device=GPU, text="stuck")
    bench.host.answers = False
    await bench.suspects.look()
    assert bench.verdict().health is Health.DEGRADED


async def test_time_alone_ends_no_suspicion(bench: Bench) -> None:
    bench.suspects.suspect(IN_VAIN, device=GPU, text="in vain")
    bench.now += 100 * LASTING
    await bench.suspects.look()
    assert bench.verdict().reason == "RestartsInVain"


async def test_a_process_that_has_worked_long_enough_since_ends_it(bench: Bench) -> None:
    bench.work(1)  # it was there before: it proves nothing
    bench.now += 10
    bench.suspects.suspect(IN_VAIN, device=GPU, text="in vain")
    bench.now += 10
    bench.work(2)
    bench.now += LASTING - 1
    await bench.suspects.look()
    assert bench.verdict().health is Health.DEGRADED
    bench.now += 1
    await bench.suspects.look()
    assert bench.verdict().health is Health.HEALTHY


async def test_the_end_of_one_suspicion_leaves_the_other(bench: Bench) -> None:
    bench.suspects.suspect(IN_VAIN, device=GPU, text="in vain")
    bench.suspects.suspect(STUCK, device=GPU, text="stuck")
    await bench.suspects.look()
    assert bench.verdict().reason == "RestartsInVain"


async def test_what_an_earlier_agent_suspected_is_looked_at_too(bench: Bench, store: Store) -> None:
    bench.suspects.suspect(STUCK, device=GPU, text="stuck")
    await bench.ledger.save()
    ledger = HealthLedger(store=store, metrics=Metrics(CollectorRegistry()), boot_id="b")
    await ledger.load()
    later = Bench(ledger, bench.host)
    assert later.verdict().health is Health.DEGRADED
    await later.suspects.look()
    assert later.verdict().health is Health.HEALTHY
