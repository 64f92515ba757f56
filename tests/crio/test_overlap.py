"""A successor imports while its predecessor dies, and waits at the GPU driver's libraries, on the real CRI-O."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from hack.devnode import crio
from kubemend.agent.model.outcomes import Result
from kubemend.agent.restart import overlap
from tests.devnode.pods import Pods
from tests.environments.overlaps import OverlapEnv

pytestmark = [pytest.mark.crio, pytest.mark.long]


@pytest.fixture
async def env(runtime: crio.Crio, tmp_path: Path) -> AsyncIterator[OverlapEnv]:
    async with OverlapEnv.on(runtime.node, directory=tmp_path) as made:
        yield made


async def test_successor_imports_and_waits_at_the_driver_until_the_devices_are_free(
    pods: Pods, env: OverlapEnv
) -> None:
    running = await pods.run(name="overlap", **env.pod())
    await env.has_run(running, "imports-0", "driver-0")
    swapping = asyncio.create_task(env.swap(running))
    await env.gates.reached.wait()
    await env.has_run(running, "imports-0", "driver-0", "imports-1")
    await env.waits_at_driver()
    assert env.runs(running) == ["imports-0", "driver-0", "imports-1"]
    env.gates.freed.set()
    outcome = await swapping
    assert (outcome.result, outcome.notes) == (Result.SWAPPED, (overlap.note("main", None),))
    await env.has_run(running, "imports-0", "driver-0", "imports-1", "driver-1")
