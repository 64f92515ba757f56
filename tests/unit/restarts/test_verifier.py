"""Verify a restart: the checks, and how long they last. The last status of a kubelet that hangs proves nothing."""

import asyncio
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest
import structlog

from kubemend.agent.model.devices import DeviceId
from kubemend.agent.restart.verification import CheckState
from kubemend.agent.restarts.verifier import RestartVerifier
from tests import virtual_time
from tests.environments.restarts import RestartEnv
from tests.fakes import outside
from tests.unit.restarts.test_recovery import killed_after_the_stop, recovery

PATIENCE = 3600.0  # seconds; no test waits until it ends


@pytest.mark.parametrize(
    ("answers", "state"),
    [(True, "failed"), (False, "unknown")],
    ids=["kubelet shows another one", "no API server"],
)
async def test_verifier_fails_by_fresh_status_and_not_stale_one(env: RestartEnv, answers: bool, state: str) -> None:
    await killed_after_the_stop(env)
    env.pod.pods.answers = answers
    with structlog.testing.capture_logs() as logs:
        await recovery(env, timeouts=0.0).run()
    (verified,) = [each for each in logs if each["event"] == "restart.verified"]
    assert verified["checks"] == {"devices-answer": "unknown", "kubelet-agrees": state, "one-running": "passed"}


async def test_verifier_stops_waiting_if_successor_exits(env: RestartEnv, monkeypatch: pytest.MonkeyPatch) -> None:
    await killed_after_the_stop(env)
    waits, wait_for = asyncio.Event(), env.pod.pods.wait_for

    async def noted_wait_for(*arguments: Any, timeout: float) -> Any:
        if timeout > PATIENCE / 2:
            waits.set()
        return await wait_for(*arguments, timeout=timeout)

    monkeypatch.setattr(env.pod.pods, "wait_for", noted_wait_for)
    with structlog.testing.capture_logs() as logs:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(recovery(env, timeouts=PATIENCE).run())
            await waits.wait()
            (successor,) = await env.pod.cri_env.running()
            env.pod.cri_env.server.runtime.exit(successor.id, exit_code=1)
    (verified,) = [each for each in logs if each["event"] == "restart.verified"]
    assert verified["result"] == "SuccessorExited"
    assert await env.store.unfinished() == ()


class BusyNode(outside.Devices):
    """A driver that answers, but late."""

    async def answering(self, uuids: Iterable[DeviceId], *, timeout: float) -> frozenset[DeviceId] | None:
        try:
            async with asyncio.timeout(timeout):
                await virtual_time.passes(5.0)
        except TimeoutError:
            return None
        return await super().answering(uuids, timeout=timeout)


def test_verification_on_a_busy_node_waits_for_the_driver() -> None:
    dependencies: Any = SimpleNamespace(devices=BusyNode())

    async def asked() -> CheckState:
        check = await RestartVerifier(dependencies=dependencies).devices_answer(frozenset({outside.GPU.uuid}))
        return check.state

    assert virtual_time.run(asked()) is CheckState.PASSED
