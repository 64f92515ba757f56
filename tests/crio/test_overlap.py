"""A successor imports while its predecessor dies, and waits at the GPU driver's libraries, on the real CRI-O."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from hack.devnode import crio
from kubemend.agent.model.outcomes import Result
from kubemend.agent.restart import overlap
from tests.devnode.pods import Pods
from tests.environments.overlaps import Rig

pytestmark = [pytest.mark.crio, pytest.mark.long]


@pytest.fixture
async def rig(runtime: crio.Crio, tmp_path: Path) -> AsyncIterator[Rig]:
    async with Rig.on(runtime.node, directory=tmp_path) as made:
        yield made


async def test_successor_imports_and_waits_at_the_driver_until_the_devices_are_free(pods: Pods, rig: Rig) -> None:
    running = await pods.run(name="overlap", **rig.pod())
    await rig.has_run(running, "imports-0", "driver-0")
    swapping = asyncio.create_task(rig.swap(running))
    await rig.gates.reached.wait()
    await rig.has_run(running, "imports-0", "driver-0", "imports-1")
    await rig.waits_at_driver()
    assert rig.runs(running) == ["imports-0", "driver-0", "imports-1"]
    rig.gates.freed.set()
    outcome = await swapping
    assert (outcome.result, outcome.notes) == (Result.SWAPPED, (overlap.note("main", None),))
    await rig.has_run(running, "imports-0", "driver-0", "imports-1", "driver-1")
