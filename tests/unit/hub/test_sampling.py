"""Send samples of members' devices while there is a stream; unknown values are marked as such."""

import asyncio

from kubemend.agent.health.gpu.readings import Vital, Vitals
from kubemend.agent.hub.member_devices import Sampler
from kubemend.agent.hub.open_faults import OpenFaults
from kubemend.agent.hub.outbox import HelloInfo, Outbox
from kubemend.agent.model.devices import DeviceId, Gpu, Load, PciAddress
from kubemend.agent.model.workloads import Allocations
from kubemend.agent.sources.nvml import utilization
from kubemend.agent.sources.nvml.protocol import Condition, Slot, Snapshot
from tests.fakes import outside
from tests.fakes.hub import SECONDS
from tests.unit.hub import builders
from tests.unit.hub.env import HubEnv, Loads


async def test_samples_cover_devices_held_by_members(env: HubEnv) -> None:
    await env.pods.put(builders.member(0))
    await env.pods.put(builders.member(1, labels={}))
    env.holders.hold(builders.trainer(0), builders.trainer(1), device=builders.GPU)
    env.loads.now = {builders.GPU: Load(utilization=0.5, clock=None, power=0.25), DeviceId("GPU-1"): Load(1, 1, 1)}
    async with env.replica() as hub, env.running(env.agent(hub)):
        stream, _ = await hub.welcomed()
        (sample,) = (await stream.next("samples")).devices
    assert (sample.pod_uid, sample.device) == ("uid-0", "GPU-0")
    assert (sample.utilization, sample.clock, sample.power) == (0.5, -1.0, 0.25)


async def test_sampler_queries_nothing_without_hub() -> None:
    asked: list[float] = []

    class Counting(outside.Holders):
        async def current(self, *, max_age: float) -> Allocations:
            asked.append(max_age)
            return await super().current(max_age=max_age)

    pods, holders = outside.Pods(builders.member(0)), Counting()
    holders.hold(builders.trainer(0))
    about = HelloInfo("n", epoch=lambda: 0, step_results=tuple)
    outbox = Outbox(introduction=about, faults=OpenFaults())
    known = Loads({builders.GPU: Load(0.5, 0.5, 0.5)})
    sampler = Sampler(pods=pods, holders=holders, loads=known, outbox=outbox, period=0.001)
    running = asyncio.create_task(sampler.run())
    await asyncio.sleep(0.02)
    assert asked == []
    outbox.open()
    async with asyncio.timeout(SECONDS):
        assert (hello := await outbox.next()) is not None
        assert hello.WhichOneof("body") == "hello"
        assert (samples := await outbox.next()) is not None
        assert samples.WhichOneof("body") == "samples"
    running.cancel()
    await asyncio.wait({running})
    assert asked


def test_samples_are_shares_of_capacity() -> None:
    def slot(index: int, vitals: Vitals | None) -> Slot:
        gpu = Gpu(DeviceId(f"GPU-{index}"), PciAddress(0, index, 0), index)
        return Slot(index=index, condition=Condition.ANSWERS, gpu=gpu, vitals=vitals)

    readings = {
        Vital.UTILIZATION: 97,
        Vital.SM_CLOCK: 990,
        Vital.SM_CLOCK_MAX: 1980,
        Vital.POWER: 350_000,
        Vital.POWER_LIMIT: 700_000,
    }
    full = Vitals(values={(vital, 0): value for vital, value in readings.items()})
    poor = Vitals(values={(Vital.SM_CLOCK, 0): 990, (Vital.POWER, 0): 350_000, (Vital.POWER_LIMIT, 0): 0})
    snapshot = Snapshot(0.0, 0.0, "580", (slot(0, full), slot(1, poor), slot(2, None), Slot(3, Condition.LOST)))

    assert utilization.of(snapshot) == {
        "GPU-0": Load(utilization=0.97, clock=0.5, power=0.5),
        "GPU-1": Load(utilization=None, clock=None, power=None),
    }
