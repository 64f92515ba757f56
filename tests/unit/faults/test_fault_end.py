"""A fault whose process is known ends with that process, although its container runs on."""

import errno
import os

import pytest

from kubemend.agent.model import conditions
from kubemend.agent.model.conditions import ConditionStatus
from kubemend.agent.model.workloads import ContainerId
from kubemend.agent.restarts.requests import Request
from tests import eventually
from tests.fakes import outside
from tests.unit.faults.test_pipeline import TRAINER, PipelineEnv, Restarts, env, running, stopped_env, xid

__all__ = ["env", "stopped_env"]

TRAINER_0 = ContainerId("trainer-0")


async def test_fault_ends_with_its_process_in_a_container_that_runs_on(env: PipelineEnv) -> None:
    env.queue.submit(xid(pid=4242))
    await env.restarted()
    assert (await env.condition(conditions.DEVICES_HEALTHY, "Xid31")).status is ConditionStatus.FALSE
    env.processes.ends[4242].set()
    assert (await env.condition(conditions.DEVICES_HEALTHY, "Healthy")).status is ConditionStatus.TRUE
    assert [view.id for view in env.events.containers()] == [TRAINER_0]


async def test_fault_after_one_whose_process_ended_ends_with_its_own(env: PipelineEnv) -> None:
    for pid, code in ((4242, 31), (4243, 13)):
        env.processes.add(pid, container=TRAINER_0)
        env.queue.submit(xid(code, pid=pid))
        await env.restarted()
        await env.condition(conditions.DEVICES_HEALTHY, f"Xid{code}")
        env.processes.ends[pid].set()
        await env.condition(conditions.DEVICES_HEALTHY, "Healthy")


async def test_fault_ends_if_another_process_has_its_pid(env: PipelineEnv, monkeypatch: pytest.MonkeyPatch) -> None:
    async def replaced(request: Request) -> None:
        env.processes.add(4242, container=TRAINER_0, started=60.0)
        await Restarts.submit(env.restarts, request)

    monkeypatch.setattr(env.restarts, "submit", replaced)
    env.queue.submit(xid(pid=4242))
    await env.restarted()
    await env.condition(conditions.DEVICES_HEALTHY, "Healthy")


async def test_fault_of_a_process_outside_pods_ends_if_another_process_has_its_pid(
    env: PipelineEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have ended before the agent follows it: that other process may never end."""
    original = env.processes.ended

    async def late(pid: int, *, started: float = 0.0) -> None:
        env.processes.add(77, container=None, started=60.0)
        await original(pid, started=started)

    monkeypatch.setattr(env.processes, "ended", late)
    env.processes.add(77, container=None, started=40.0)
    env.queue.submit(xid(pid=77))
    await env.condition(conditions.DEVICES_HEALTHY, "Xid31")
    await env.condition(conditions.DEVICES_HEALTHY, "Healthy", within=10)


async def test_fault_of_a_process_that_cannot_be_followed_ends_with_its_container(
    env: PipelineEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refused(_: int, *, started: float) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(env.processes, "ended", refused)
    env.queue.submit(xid(pid=4242))
    await env.restarted()
    await env.condition(conditions.DEVICES_HEALTHY, "Xid31")
    await env.nothing_restarted()
    assert [fault.code for fault in env.verdict_store.active_faults(outside.GPU.uuid)] == ["31"]
    env.events.stop(TRAINER_0)
    await env.condition(conditions.DEVICES_HEALTHY, "Healthy")


@pytest.mark.parametrize("earlier", [False, True], ids=["this agent's", "an earlier agent's"])
async def test_fault_without_a_process_ends_when_a_launcher_has_started_another_program(
    stopped_env: PipelineEnv, earlier: bool
) -> None:
    """A round, or the launcher by itself, has restarted the program: the container runs on."""
    env = stopped_env
    env.holders.hold(TRAINER)
    env.events.run(TRAINER, name="trainer-0")
    if earlier:
        env.verdict_store.apply(xid(), inventory=env.devices.inventory, pod="")
    async with running(env):
        if not earlier:
            env.queue.submit(xid())
            await env.restarted()
        access = await env.access.wait()
        access.programs.started(TRAINER_0, age=101.0)
        await env.condition(conditions.DEVICES_HEALTHY, "Xid31")
        await env.nothing_restarted()
        assert [fault.code for fault in env.verdict_store.active_faults(outside.GPU.uuid)] == ["31"]
        access.programs.started(TRAINER_0, age=99.0)
        await env.condition(conditions.DEVICES_HEALTHY, "Healthy")


async def test_faults_of_one_process_wait_once_for_its_end(env: PipelineEnv, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that fails every second would use up this process's file descriptors."""
    waits: list[int] = []
    ended = env.processes.ended

    async def counted(pid: int, *, started: float) -> None:
        waits.append(pid)
        await ended(pid, started=started)

    monkeypatch.setattr(env.processes, "ended", counted)
    for code in (31, 13, 43):
        env.queue.submit(xid(code, pid=4242))
        await env.restarted()
    await env.nothing_restarted()
    assert {fault.code for fault in env.verdict_store.active_faults(outside.GPU.uuid)} == {"31", "13", "43"}
    await eventually.true(lambda: len(waits) > 0)
    assert waits == [4242]
    env.processes.ends[4242].set()
    await env.condition(conditions.DEVICES_HEALTHY, "Healthy")
