"""Lines of the kernel log that the next agent reads again restart containers, and are not folded twice."""

from dataclasses import replace
from typing import Any

import pytest

from kubemend.agent.clients.journal.store import Store
from kubemend.agent.health.state import fold
from kubemend.agent.model.actions import ActionClass
from kubemend.agent.model.findings import Finding, FindingKind, Source
from kubemend.agent.model.verdicts import Health
from kubemend.agent.model.workloads import ContainerId
from tests.fakes import outside
from tests.unit.faults.test_pipeline import HERE, TRAINER, PipelineEnv, running, xid

ON_HOLD = xid(31, pid=4242, observed_at=90.0, key="kmsg:5:40000000")
NEEDS_RESET = xid(95, ActionClass.RESET_DEVICE, key="kmsg:6:50000000")
WANTS_RESET = Finding(
    source=Source.NVML,
    kind=FindingKind.RECOVERY_ACTION,
    code="1",
    device=HERE,
    action=ActionClass.RESET_DEVICE,
    observed_at=110.0,
)
WAS_RESET = replace(WANTS_RESET, code="0", action=ActionClass.NONE, observed_at=150.0)


def node_of(store: Store, **options: Any) -> PipelineEnv:
    """Return an agent on a node where the trainer, which is older than all faults, holds the GPU."""
    env = PipelineEnv(store=store, **options)
    env.holders.hold(TRAINER)
    env.events.run(TRAINER, name="trainer-0", created_at=1)
    env.processes.add(4242, container=ContainerId("trainer-0"))
    return env


async def after(store: Store, *findings: Finding, **options: Any) -> PipelineEnv:
    """Return the next agent on the node. The previous one folded the findings, saved the verdicts and was killed."""
    first = node_of(store, **options)
    for finding in findings:
        first.verdict_store.apply(finding, inventory=first.devices.inventory)
    await first.verdict_store.save()
    second = node_of(store)
    await second.verdict_store.load()
    return second


def faults(env: PipelineEnv) -> list[str]:
    return [fault.reason for fault in env.verdict_store.active_faults(outside.GPU.uuid)]


async def test_line_read_again_after_its_end_raises_no_fault(store: Store) -> None:
    env = await after(store, ON_HOLD, NEEDS_RESET, WANTS_RESET, WAS_RESET)
    async with running(env):
        env.queue.submit(NEEDS_RESET)
        await env.nothing_restarted()
    assert faults(env) == ["Xid31"]


async def test_line_read_again_restarts_its_container(store: Store) -> None:
    env = await after(store, ON_HOLD, NEEDS_RESET, WANTS_RESET, WAS_RESET)
    async with running(env):
        env.queue.submit(ON_HOLD)
        assert (await env.restarted()).target == TRAINER
        (fault,) = env.verdict_store.active_faults(outside.GPU.uuid)
        assert fault.count == 1


async def test_line_read_again_does_not_lift_a_fault(store: Store) -> None:
    """The driver's earlier answer says nothing about a later one."""
    usable = xid(154, ActionClass.NONE, key="kmsg:4:30000000")
    env = await after(store, usable, NEEDS_RESET)
    async with running(env):
        env.queue.submit(usable)
        await env.nothing_restarted()
    assert faults(env) == ["Xid95"]


async def test_line_after_the_last_folded_one_is_folded(store: Store) -> None:
    env = await after(store, ON_HOLD)
    async with running(env):
        env.queue.submit(NEEDS_RESET)
        await env.nothing_restarted()
    assert faults(env) == ["Xid31", "Xid95"]


async def test_line_of_verdicts_that_were_not_saved_is_folded(store: Store) -> None:
    killed = node_of(store)
    killed.verdict_store.apply(NEEDS_RESET, inventory=killed.devices.inventory)
    env = node_of(store)
    await env.verdict_store.load()
    async with running(env):
        env.queue.submit(NEEDS_RESET)
        await env.nothing_restarted()
    assert faults(env) == ["Xid95"]


async def test_line_of_an_earlier_boot_does_not_hide_one_of_this_boot(store: Store) -> None:
    env = await after(store, NEEDS_RESET, boot_id="boot-0")
    async with running(env):
        env.queue.submit(NEEDS_RESET)
        await env.nothing_restarted()
    assert faults(env) == ["Xid95"]


async def test_line_that_only_the_driver_can_judge_is_asked_about_again(store: Store) -> None:
    unknown = xid(999, ActionClass.ASK_DRIVER, pid=4242, key="kmsg:6:50000000")
    env = await after(store, unknown)
    env.devices.recovery = 0
    async with running(env):
        env.queue.submit(unknown)
        assert (await env.restarted()).target == TRAINER


@pytest.mark.parametrize("end", [WAS_RESET, None])
async def test_same_finding_twice_in_one_agent_is_folded_twice(store: Store, end: Finding | None) -> None:
    """The driver's answer to a finding makes it one of a program: it has the same key."""
    env = node_of(store)
    for finding in (NEEDS_RESET, *([end] if end is not None else []), NEEDS_RESET):
        env.verdict_store.apply(finding, inventory=env.devices.inventory)
    verdict = env.verdict_store.verdict(outside.GPU.uuid, inventory=env.devices.inventory)
    assert verdict.health is Health.UNHEALTHY


def test_fold_of_an_earlier_finding_keeps_the_newest_key() -> None:
    state = fold.HealthState(boot_id="boot-1")
    for finding in (ON_HOLD, NEEDS_RESET, ON_HOLD, replace(WAS_RESET, key="nvml:1:1"), replace(ON_HOLD, key="")):
        state = fold.fold(state, finding, device=outside.GPU.uuid)
    assert state.newest_key == NEEDS_RESET.key
