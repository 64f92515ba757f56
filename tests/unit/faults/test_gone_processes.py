"""A program can die of its fault before the agent has read its facts: its container is known all the same.

The container's first process has pid 4000, and the fault is from second 100.
"""

from collections.abc import Callable

import pytest

from kubemend.agent.model import conditions
from kubemend.agent.model.conditions import ConditionStatus
from kubemend.agent.model.workloads import ContainerId
from tests.fakes import outside
from tests.unit.faults.test_pipeline import TRAINER, PipelineEnv, env, stopped_env, xid

__all__ = ["env", "stopped_env"]

OLD, NEW = ContainerId("trainer-0"), ContainerId("trainer-1")
FIRST = 4000


def _exited(env: PipelineEnv, *, at: float | None) -> None:
    env.events.exit(OLD, code=1)
    if at is not None:
        env.runtime.ended_at[OLD] = at


def _runs(env: PipelineEnv) -> None:
    """Leave the container as it is: the runtime has not reported its end yet."""


def _ended_since(env: PipelineEnv) -> None:
    _exited(env, at=100.2)


def _has_a_successor(env: PipelineEnv) -> None:
    _exited(env, at=100.2)
    env.events.run(TRAINER, name=NEW, attempt=1, created_at=int(100.4e9))


def _began_before_the_clock_was_set_back(env: PipelineEnv) -> None:
    env.events.run(TRAINER, name=OLD, created_at=int(3600e9))
    _exited(env, at=100.2)


@pytest.mark.parametrize("happened", [_runs, _ended_since, _has_a_successor, _began_before_the_clock_was_set_back])
async def test_container_of_a_first_process_that_is_gone_is_restarted(
    env: PipelineEnv, happened: Callable[[PipelineEnv], None]
) -> None:
    happened(env)
    env.queue.submit(xid(pid=FIRST))
    request = await env.restarted()
    cause = request.cause()
    assert (request.target, cause.code, cause.happened_at, cause.names_process) == (TRAINER, "Xid31", 100.0, True)
    assert cause.container == OLD
    assert await request.lapsed() == ""


async def test_fault_of_a_first_process_that_is_gone_is_over_while_its_successor_runs(env: PipelineEnv) -> None:
    _has_a_successor(env)
    env.queue.submit(xid(pid=FIRST))
    await env.restarted()
    assert (await env.condition(conditions.DEVICES_HEALTHY, "Healthy")).status is ConditionStatus.TRUE
    assert env.verdict_store.active_faults(outside.GPU.uuid) == ()


def _ended_before(env: PipelineEnv) -> None:
    _exited(env, at=99.0)


def _ended_at_an_unknown_time(env: PipelineEnv) -> None:
    _exited(env, at=None)


def _is_younger(env: PipelineEnv) -> None:
    env.events.stop(OLD)
    env.events.run(TRAINER, name=NEW, attempt=1, created_at=int(100.4e9))
    env.runtime.first = {NEW: FIRST}


def _is_not_known(env: PipelineEnv) -> None:
    env.runtime.first = {}


def _has_another_first_process(env: PipelineEnv) -> None:
    env.runtime.first = {OLD: FIRST - 1}


def _pid_is_used_again(env: PipelineEnv) -> None:
    env.processes.add(FIRST, container=None, started=60.0)  # the fault is from second 50 after the boot


@pytest.mark.parametrize(
    "happened",
    [
        _ended_before,
        _ended_at_an_unknown_time,
        _is_younger,
        _is_not_known,
        _has_another_first_process,
        _pid_is_used_again,
    ],
)
async def test_container_that_may_not_have_had_the_process_is_not_restarted(
    env: PipelineEnv, happened: Callable[[PipelineEnv], None]
) -> None:
    happened(env)
    env.queue.submit(xid(pid=FIRST))
    await env.nothing_restarted()
