"""A fault whose process is known ends with that process, although its container runs on."""

import errno
import os

import pytest

from kubemend.agent.model import conditions
from kubemend.agent.model.conditions import ConditionStatus
from kubemend.agent.model.workloads import ContainerId
from kubemend.agent.restarts.requests import Request
from tests.fakes import outside
from tests.unit.faults.test_pipeline import Restarts, World, stopped_world, world, xid

__all__ = ["stopped_world", "world"]

TRAINER_0 = ContainerId("trainer-0")


async def test_fault_ends_with_its_process_in_a_container_that_runs_on(world: World) -> None:
    world.queue.submit(xid(pid=4242))
    await world.restarted()
    assert (await world.condition(conditions.DEVICES_HEALTHY, "Xid31")).status is ConditionStatus.FALSE
    world.processes.ends[4242].set()
    assert (await world.condition(conditions.DEVICES_HEALTHY, "Healthy")).status is ConditionStatus.TRUE
    assert [view.id for view in world.events.containers()] == [TRAINER_0]


async def test_fault_after_one_whose_process_ended_ends_with_its_own(world: World) -> None:
    for pid, code in ((4242, 31), (4243, 13)):
        world.processes.add(pid, container=TRAINER_0)
        world.queue.submit(xid(code, pid=pid))
        await world.restarted()
        await world.condition(conditions.DEVICES_HEALTHY, f"Xid{code}")
        world.processes.ends[pid].set()
        await world.condition(conditions.DEVICES_HEALTHY, "Healthy")


async def test_fault_ends_if_another_process_has_its_pid(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async def replaced(request: Request) -> None:
        world.processes.add(4242, container=TRAINER_0, started=60.0)
        await Restarts.submit(world.restarts, request)

    monkeypatch.setattr(world.restarts, "submit", replaced)
    world.queue.submit(xid(pid=4242))
    await world.restarted()
    await world.condition(conditions.DEVICES_HEALTHY, "Healthy")


async def test_fault_of_a_process_that_cannot_be_followed_ends_with_its_container(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refused(_: int) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(world.processes, "ended", refused)
    world.queue.submit(xid(pid=4242))
    await world.restarted()
    await world.condition(conditions.DEVICES_HEALTHY, "Xid31")
    await world.nothing_restarted()
    assert [fault.code for fault in world.verdict_store.active_faults(outside.GPU.uuid)] == ["31"]
    world.events.stop(TRAINER_0)
    await world.condition(conditions.DEVICES_HEALTHY, "Healthy")
