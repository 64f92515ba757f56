"""Reports that name no process: the kernel log's mean the only holder, NVML's mean none."""

import asyncio

import pytest

from kubemend.agent.model import conditions
from kubemend.agent.model.actions import ActionClass
from kubemend.agent.model.conditions import ConditionStatus
from kubemend.agent.model.devices import DeviceId
from kubemend.agent.model.findings import Source
from kubemend.agent.model.workloads import Allocation, Allocations, ContainerId
from tests.fakes import outside
from tests.unit.faults.test_pipeline import MONITOR, TRAINER, PipelineEnv, env, stopped_env, xid

__all__ = ["env", "stopped_env"]


async def test_line_without_process_hits_only_holder(env: PipelineEnv) -> None:
    env.queue.submit(xid(94))
    assert (await env.restarted()).target == TRAINER


async def test_line_without_process_and_with_two_holders_restarts_none(env: PipelineEnv) -> None:
    env.holders.hold(TRAINER, MONITOR)
    env.queue.submit(xid(94))
    await env.nothing_restarted()


async def test_line_without_process_does_not_hit_the_holder_of_another_device(env: PipelineEnv) -> None:
    env.holders.hold(MONITOR, device=DeviceId("GPU-1"))
    env.queue.submit(xid(94))
    await env.nothing_restarted()
    held = ((TRAINER, outside.GPU.uuid), (MONITOR, DeviceId("GPU-1")))
    items = tuple(Allocation(ref.pod.namespace, ref.pod.name, ref.name, frozenset({gpu})) for ref, gpu in held)
    env.holders.allocations = Allocations(items=items, known=True)
    env.queue.submit(xid(94, observed_at=103.0))
    assert (await env.restarted()).target == TRAINER


@pytest.mark.parametrize("code", [31, 94])
async def test_fault_that_only_nvml_reports_restarts_none_and_lasts_until_holders_are_replaced(
    env: PipelineEnv, code: int
) -> None:
    """The kernel log may be unreadable, and the process one of the host, or of a container that has just ended."""
    env.queue.submit(xid(code, source=Source.NVML))
    said = await env.condition(conditions.DEVICES_HEALTHY, f"Xid{code}")
    await env.nothing_restarted()
    assert said.status is ConditionStatus.FALSE
    assert env.said.said[TRAINER.pod, conditions.DEVICES_HEALTHY] == said
    env.events.stop(ContainerId("trainer-0"))
    await env.condition(conditions.DEVICES_HEALTHY, "Healthy")


@pytest.mark.parametrize("first", [Source.NVML, Source.KERNEL_LOG])
async def test_line_without_process_counts_next_to_the_report_of_nvml(env: PipelineEnv, first: Source) -> None:
    for source in sorted((Source.NVML, Source.KERNEL_LOG), key=lambda each: each is not first):
        env.queue.submit(xid(94, source=source))
    assert (await env.restarted()).target == TRAINER
    await env.nothing_restarted()


async def test_line_that_the_driver_must_judge_counts_next_to_the_report_of_nvml(env: PipelineEnv) -> None:
    for source in (Source.NVML, Source.KERNEL_LOG):
        env.queue.submit(xid(109, ActionClass.ASK_DRIVER, source=source))
    await env.nothing_restarted()
    env.devices.recovery = 0  # the driver answers late
    assert (await env.restarted()).target == TRAINER
    await env.nothing_restarted()


async def test_fault_of_host_process_restarts_none_despite_nvml(env: PipelineEnv) -> None:
    env.processes.add(77, container=None)
    env.queue.submit(xid(31, source=Source.NVML))  # without a pid, and first
    env.queue.submit(xid(31, pid=77))
    await env.nothing_restarted()


async def test_line_with_the_process_that_is_read_late_ends_the_wait_for_the_holders(env: PipelineEnv) -> None:
    env.processes.add(77, container=None)
    env.queue.submit(xid(31, source=Source.NVML))
    await env.condition(conditions.DEVICES_HEALTHY, "Xid31")
    await env.nothing_restarted()
    env.queue.submit(xid(31, pid=77))
    await env.nothing_restarted()
    env.processes.ends[77].set()
    await env.condition(conditions.DEVICES_HEALTHY, "Healthy")


async def test_program_error_without_process_takes_that_of_another_code(env: PipelineEnv) -> None:
    env.processes.add(77, container=None)
    env.queue.submit(xid(13))  # the driver names the process of a stack overflow in the Xid 43 after it
    env.queue.submit(xid(43, pid=77))
    await env.nothing_restarted()


async def test_fault_of_another_code_a_second_later_is_its_own(env: PipelineEnv) -> None:
    env.processes.add(77, container=None)
    env.queue.submit(xid(31, pid=77))
    env.queue.submit(xid(94, observed_at=101.0))
    await env.restarted()


async def test_silent_kubelet_does_not_mean_no_holder(env: PipelineEnv) -> None:
    env.holders.allocations = Allocations(known=False)
    env.queue.submit(xid(94))
    await asyncio.sleep(0.1)
    assert env.restarts.requests.empty()
    assert not env.queue.idle()  # so the source does not forget it
    env.holders.hold(TRAINER)
    assert (await env.restarted()).target == TRAINER
