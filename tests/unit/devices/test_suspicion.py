"""End suspicions against devices by evidence from the device, also in the next agent."""

from dataclasses import dataclass

import pytest

from kubemend.agent.clients.journal.store import Store
from kubemend.agent.devices.suspicion import LASTING, SuspicionTracker
from kubemend.agent.devices.verdict_store import VerdictStore
from kubemend.agent.model.actions import ActionClass
from kubemend.agent.model.devices import DeviceId, DeviceInventory, locator
from kubemend.agent.model.findings import Finding, FindingKind, Source
from kubemend.agent.model.verdicts import Health, Verdict
from kubemend.common import contained
from tests.environments.node import verdicts
from tests.fakes import outside
from tests.fakes.gpu_host import GpuHost

GPU = outside.GPU.uuid
BOOTED_AT = 1_000_000.0
INVENTORY = DeviceInventory(gpus=(outside.GPU,), complete=True)
STUCK, INEFFECTIVE = FindingKind.PROCESS_STUCK, FindingKind.RESTARTS_INEFFECTIVE


@dataclass
class Env:
    verdict_store: VerdictStore
    host: GpuHost
    now: float = BOOTED_AT + 5000.0
    clock_set: float = 0.0
    suspended: float = 0.0

    def __post_init__(self) -> None:
        self.suspects = SuspicionTracker(
            verdict_store=self.verdict_store,
            driver=self.host,
            processes=self.host,
            submit=self._fold,
            classify=lambda _, __: ActionClass.OBSERVE,
            now=lambda: self.now + self.clock_set,
            since_boot=lambda: self.now - BOOTED_AT,
            awake=lambda: self.now - BOOTED_AT - self.suspended,
        )

    def _fold(self, finding: Finding) -> None:
        self.verdict_store.apply(finding, inventory=INVENTORY)

    def verdict(self) -> Verdict:
        return self.verdict_store.verdict(GPU, inventory=INVENTORY)

    def work(self, pid: int) -> None:
        """Start a process on the device now."""
        self.host.put(GPU, pid, container="new", started=self.now - BOOTED_AT)


@pytest.fixture
def env(store: Store) -> Env:
    """A GPU without processes."""
    host = GpuHost(listed={DeviceId(GPU): {}})
    return Env(verdicts(store), host)


async def test_suspicion_degrades_device_with_reason(env: Env) -> None:
    env.suspects.mark_suspect(STUCK, device=GPU, text="pid 11 of a/b/c uses it and cannot be killed (state D)")
    verdict = env.verdict()
    assert (verdict.health, verdict.action, verdict.reason) == (Health.DEGRADED, ActionClass.OBSERVE, "ProcessStuck")
    assert verdict.message.startswith("pid 11")


async def test_suspicion_of_stuck_process_ends_when_process_ends(env: Env) -> None:
    env.work(11)
    env.host.in_d_state.add(11)
    env.suspects.mark_suspect(STUCK, device=GPU, text="stuck")
    await env.suspects.check()
    assert env.verdict().health is Health.DEGRADED
    env.host.in_d_state.clear()
    await env.suspects.check()
    assert env.verdict().health is Health.HEALTHY


@pytest.mark.parametrize(
    ("device", "answers"),
    [(GPU, False), ("GPU-that-it-omits", True), ("0000:3b:00.0", True)],
    ids=["silent", "omitted", "known-by-its-address-only"],
)
async def test_suspicion_survives_driver_that_shows_nothing_of_the_device(env: Env, device: str, answers: bool) -> None:
    before = contained.count()
    env.suspects.mark_suspect(STUCK, device=device, text="stuck")
    env.host.answers = answers
    await env.suspects.check()
    assert env.verdict_store.verdict(device, inventory=INVENTORY).health is Health.DEGRADED
    assert contained.count() == before


async def test_suspicion_does_not_end_by_time_alone(env: Env) -> None:
    env.work(1)  # it existed before: it proves nothing
    env.now += 10
    env.suspects.mark_suspect(INEFFECTIVE, device=GPU, text="did not last")
    await env.suspects.check()
    env.now += 100 * LASTING
    await env.suspects.check()
    assert env.verdict().reason == "RestartsIneffective"


async def test_work_ends_no_other_fault(env: Env) -> None:
    lost = Finding(
        Source.NVML, FindingKind.XID, "79", locator(GPU), ActionClass.REBOOT_NODE, observed_at=env.now, text="lost"
    )
    env.verdict_store.apply(lost, inventory=INVENTORY)
    env.work(1)
    await env.suspects.check()
    env.now += LASTING
    await env.suspects.check()
    assert env.verdict().reason == "Xid79"


async def test_suspicion_ends_after_process_worked_long_enough(env: Env) -> None:
    env.suspects.mark_suspect(INEFFECTIVE, device=GPU, text="did not last")
    env.now += 10
    env.work(2)
    await env.suspects.check()
    env.now += LASTING - 1
    await env.suspects.check()
    assert env.verdict().health is Health.DEGRADED
    env.now += 1
    await env.suspects.check()
    assert env.verdict().health is Health.HEALTHY


async def test_clock_that_was_set_is_no_evidence_of_work(env: Env) -> None:
    env.work(1)
    env.now += 2 * LASTING
    env.suspects.mark_suspect(INEFFECTIVE, device=GPU, text="did not last")
    await env.suspects.check()
    env.clock_set = 36_000.0
    await env.suspects.check()
    assert env.verdict().health is Health.DEGRADED
    env.work(2)
    await env.suspects.check()
    env.now += LASTING
    await env.suspects.check()
    assert env.verdict().health is Health.HEALTHY


async def test_suspend_of_the_node_is_no_work(env: Env) -> None:
    env.suspects.mark_suspect(INEFFECTIVE, device=GPU, text="did not last")
    env.work(2)
    await env.suspects.check()
    env.now += 100 * LASTING
    env.suspended = 100 * LASTING
    await env.suspects.check()
    assert env.verdict().health is Health.DEGRADED
    env.now += LASTING
    await env.suspects.check()
    assert env.verdict().health is Health.HEALTHY


async def test_process_that_left_the_device_and_came_back_begins_again(env: Env) -> None:
    env.suspects.mark_suspect(INEFFECTIVE, device=GPU, text="did not last")
    env.work(2)
    await env.suspects.check()
    left = env.host.listed[DeviceId(GPU)].copy()
    env.host.listed[DeviceId(GPU)].clear()
    env.now += LASTING
    await env.suspects.check()
    env.host.listed[DeviceId(GPU)] |= left
    await env.suspects.check()
    assert env.verdict().health is Health.DEGRADED


async def test_suspicion_end_leaves_other_suspicions(env: Env) -> None:
    env.suspects.mark_suspect(INEFFECTIVE, device=GPU, text="did not last")
    env.suspects.mark_suspect(STUCK, device=GPU, text="stuck")
    await env.suspects.check()
    assert env.verdict().reason == "RestartsIneffective"


async def test_suspicion_of_previous_agent_is_checked(env: Env, store: Store) -> None:
    env.suspects.mark_suspect(STUCK, device=GPU, text="stuck")
    await env.verdict_store.save()
    verdict_store = verdicts(store)
    await verdict_store.load()
    later = Env(verdict_store, env.host)
    assert later.verdict().health is Health.DEGRADED
    await later.suspects.check()
    assert later.verdict().health is Health.HEALTHY
