"""Restarts on GPUs whose old process does not leave at once, with real processes of real containers."""

import asyncio
import contextlib
import datetime as dt
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from hack.devnode import node, readyz
from hack.devnode.observer import Observer, Seen
from hack.fakenvml.control import GIB
from kubemend.agent.model.workloads import ContainerId
from tests.devnode.looks import Looks
from tests.scenarios import training

pytestmark = [pytest.mark.devnode, pytest.mark.asyncio(loop_scope="package")]

LINGERS = 1.0  # seconds for which the driver lists a process that is dead


@pytest.fixture
def own_state(tmp_path: Path) -> str:
    return f"--state-dir={tmp_path / 'state'}"


@contextlib.asynccontextmanager
async def kubelet_looks_away(looks: Looks) -> AsyncIterator[None]:
    """Kubelet restarts an ended container at its next relist, without a wait for devices; kubemend's then gives way."""
    await looks.hold()
    try:
        yield
    finally:
        await looks.release()


async def stopped(observer: Observer, name: str, container: ContainerId) -> Seen:
    return await observer.until(
        name,
        lambda s: container not in s.running.get("trainer", ()),
        timeout=training.DEADLINE,
        what=f"the end of {container}",
    )


async def test_successor_waits_until_the_driver_drops_the_old_process(
    dev: node.DevNode, looks: Looks, observer: Observer, own_state: str
) -> None:
    async with dev.agent(own_state) as agent, training.pod(dev, observer, "lingers") as before:
        await readyz.until_ready(agent)
        gpu = await dev.first_gpu("lingers")
        (old,) = before.running["trainer"]
        dev.nvml.processes({await observer.pid(old): 40 * GIB}, gpu=gpu)
        try:
            async with kubelet_looks_away(looks):
                await training.xid(dev, observer, "lingers", 31)
                await stopped(observer, "lingers", old)
                await asyncio.sleep(LINGERS)  # the driver's delay, not a wait for an event
                waiting = await observer.see("lingers")
                held = [each for each in waiting.running.get("trainer", ()) if each != old]
                spoke = [observer.log("lingers", before.uid, container="trainer", restart=1) for _ in held]
                dev.nvml.processes({}, gpu=gpu)
                await observer.until(
                    "lingers",
                    lambda s: len(s.running.get("trainer", ())) == 1,
                    timeout=training.DEADLINE,
                    what="the successor",
                )
            after = await training.restarted(observer, "lingers", before)
        finally:
            dev.nvml.processes({}, gpu=gpu)
        assert not any(spoke), "the successor ran while the driver still listed the old process"
        _, ended = await observer.times(old)
        first_line = (await training.log_of(observer, "lingers", after)).splitlines()[0]
        assert dt.datetime.fromisoformat(first_line.split(" ", 1)[0]).timestamp() - ended >= LINGERS
        assert "device " in after.condition("InPlaceRestart")["message"]


async def test_memory_that_is_never_freed_delays_and_is_reported(
    dev: node.DevNode, observer: Observer, own_state: str
) -> None:
    async with (
        dev.agent(own_state, "--device-release-timeout=5s") as agent,
        training.pod(dev, observer, "leaks") as before,
    ):
        await readyz.until_ready(agent)
        gpu = await dev.first_gpu("leaks")
        (old,) = before.running["trainer"]
        dev.nvml.processes({await observer.pid(old): 40 * GIB}, gpu=gpu)
        try:
            await training.xid(dev, observer, "leaks", 31)
            await stopped(observer, "leaks", old)
            dev.nvml.processes({}, gpu=gpu, used=40 * GIB)
            reported = await observer.until(
                "leaks",
                lambda s: s.condition("InPlaceRestart").get("reason") == "DeviceMemoryHeld",
                timeout=training.DEADLINE,
                what="DeviceMemoryHeld",
            )
            assert "40.0 GiB" in reported.condition("InPlaceRestart")["message"]
            await training.trains_on(observer, "leaks", reported)
        finally:
            dev.nvml.processes({}, gpu=gpu)


async def test_hanging_driver_does_not_block_a_restart(dev: node.DevNode, observer: Observer, own_state: str) -> None:
    async with dev.agent(own_state) as agent, training.pod(dev, observer, "hung-driver") as before:
        await readyz.until_ready(agent)
        gpu = await dev.first_gpu("hung-driver")
        (old,) = before.running["trainer"]
        dev.nvml.processes({await observer.pid(old): 40 * GIB}, gpu=gpu)
        dev.nvml.hang()
        try:
            await training.xid(dev, observer, "hung-driver", 31)
            reported = await observer.until(
                "hung-driver",
                lambda s: (
                    s.condition("InPlaceRestart")
                    .get("message", "")
                    .endswith("could not verify devices-answer, devices-free")
                ),
                timeout=training.DEADLINE,
                what="the restart, unverified",
            )
            await training.trains_on(observer, "hung-driver", reported)
        finally:
            dev.nvml.resume()
            dev.nvml.processes({}, gpu=gpu)
