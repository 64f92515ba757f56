"""When pods' conditions change: by a clock that is never set, and whether kubelet answers or not."""

import asyncio
import time
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kubemend.agent.clients.podresources.client import AllocationCache
from kubemend.agent.devices import condition_publisher, pod_conditions
from kubemend.agent.model import conditions
from kubemend.agent.model.actions import ActionClass
from kubemend.agent.model.conditions import Condition, ConditionStatus
from kubemend.agent.model.devices import DeviceLocator, PciAddress
from kubemend.agent.model.findings import Finding, FindingKind, Source
from kubemend.agent.model.workloads import Allocation, Allocations, ClaimDevice, PluginDevice, PodRef, PodUid
from kubemend.common import contained
from tests.environments import node
from tests.fakes import outside
from tests.unit.restart import builders

NIC = "0000:3b:00.0"
PATIENCE = pod_conditions.LINK_GRACE_PERIOD
LINK_DOWN = Finding(
    source=Source.NETLINK,
    kind=FindingKind.LINK_DOWN,
    code="",
    device=DeviceLocator(pci=PciAddress.parse(NIC)),
    action=ActionClass.REPLACE,
    observed_at=1000.0,
)


class Clocks:
    """The wall clock, and one that is never set; both in seconds."""

    def __init__(self) -> None:
        self.wall = LINK_DOWN.observed_at
        self.steady = 50.0

    def pass_by(self, seconds: float) -> None:
        self.wall += seconds
        self.steady += seconds


@pytest.fixture
def clocks() -> Clocks:
    return Clocks()


@pytest.mark.parametrize("step", [0.0, 86_400.0, -86_400.0])
async def test_step_of_the_wall_clock_changes_no_patience(clocks: Clocks, tmp_path: Path, step: float) -> None:
    async with node.node_in(tmp_path) as here:
        here.pods = outside.Pods(builders.pod())
        publisher = here.publisher(now=lambda: clocks.wall, clock=lambda: clocks.steady)

        def fails() -> ConditionStatus:
            publisher.publish(Allocations(known=True))
            return here.said.said[builders.POD, conditions.DEVICE_FAILURE].status

        here.verdict_store.apply(LINK_DOWN, inventory=here.devices.inventory)
        publisher.verdict_changed(device=NIC, named=builders.POD)
        assert fails() is ConditionStatus.FALSE
        clocks.wall += step
        clocks.pass_by(PATIENCE - 1)
        assert fails() is ConditionStatus.FALSE
        assert publisher.verdicts_of(builders.POD, Allocations(known=True)).returning == {NIC}
        clocks.pass_by(1)
        assert fails() is ConditionStatus.TRUE
        assert publisher.verdicts_of(builders.POD, Allocations(known=True)).returning == frozenset()


async def test_link_that_has_just_gone_down_hides_no_other_fault_of_its_nic(tmp_path: Path) -> None:
    async with node.node_in(tmp_path) as here:
        here.pods = outside.Pods(builders.pod())
        publisher = here.publisher()
        publisher.verdict_changed(device=NIC, named=builders.POD)
        down = replace(LINK_DOWN, observed_at=time.time())
        for fault in (down, replace(down, kind=FindingKind.NIC_FATAL, action=ActionClass.RESET_DEVICE)):
            here.verdict_store.apply(fault, inventory=here.devices.inventory)

        publisher.publish(Allocations(known=True))

        assert here.said.said[builders.POD, conditions.DEVICE_FAILURE].status is ConditionStatus.TRUE


LOST = Finding(
    source=Source.NVML,
    kind=FindingKind.DEVICE_LOST,
    code="",
    device=DeviceLocator(uuid=outside.GPU.uuid),
    action=ActionClass.REBOOT_NODE,
    observed_at=1000.0,
)


class Kubelet:
    """Returns that the trainer holds the GPU, until it ``hangs``."""

    def __init__(self) -> None:
        self.hangs = False
        self.asked = asyncio.Event()

    async def fetch(self) -> Allocations:
        self.asked.set()
        if self.hangs:
            await asyncio.Event().wait()
        items = (Allocation(builders.POD.namespace, builders.POD.name, "trainer", frozenset({outside.GPU.uuid})),)
        return Allocations(items=items, known=True)


async def test_fault_is_published_while_kubelet_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(condition_publisher, "_FRESH", 0.0)
    async with node.node_in(tmp_path) as here:
        here.pods, kubelet = outside.Pods(builders.pod()), Kubelet()
        publisher = here.publisher(holders=AllocationCache(kubelet.fetch, floor=0.0), period=3600.0)
        running = asyncio.create_task(publisher.run())
        try:
            async with asyncio.timeout(60):
                await here.said.wait_for(builders.POD, conditions.DEVICES_HEALTHY, "Healthy")
                kubelet.hangs = True
                kubelet.asked.clear()
                publisher.holders_changed()
                await kubelet.asked.wait()
                here.verdict_store.apply(LOST, inventory=here.devices.inventory)
                publisher.verdict_changed(device=outside.GPU.uuid)
                await here.said.wait_for(builders.POD, conditions.DEVICE_FAILURE, "DeviceLost")
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


class NodeHealth:
    """Remembers the holders of the devices, as they were last published."""

    def __init__(self) -> None:
        self.holders: Mapping[str, Collection[PodRef]] | None = None

    def publish(self, holders: Mapping[str, Collection[PodRef]] | None) -> None:
        self.holders = holders


async def test_health_of_the_node_is_published_with_the_holders_that_kubelet_names(tmp_path: Path) -> None:
    async with node.node_in(tmp_path) as here:
        here.pods, health = outside.Pods(builders.pod()), NodeHealth()
        publisher = here.publisher(node=health)
        publisher.publish(await Kubelet().fetch())
        assert health.holders == {outside.GPU.uuid: {builders.POD}}
        publisher.publish(Allocations(known=False))
        assert health.holders is None


class Nics:
    """A device plugin offers the NIC by an id of its own."""

    def nics_for_gpus(self, gpus: Collection[str]) -> frozenset[str]:
        return frozenset()

    def nic_for_plugin_id(self, device_id: str) -> str | None:
        return NIC if device_id == "port-1" else None


async def test_fault_of_a_nic_is_published_on_the_pod_that_holds_it_by_a_device_plugin(tmp_path: Path) -> None:
    other = PodRef(builders.POD.namespace, "fpga", PodUid("uid-fpga"))
    held = {"not-listed-yet": {"port-1"}, other.name: {"fpga-0"}, builders.POD.name: {"port-1", "fpga-1"}}
    items = [
        Allocation(
            builders.POD.namespace,
            pod,
            "trainer",
            frozenset(),
            plugin_devices=frozenset(PluginDevice("vendor.com/device", each) for each in ids),
        )
        for pod, ids in held.items()
    ]
    before = contained.count()
    async with node.node_in(tmp_path) as here:
        here.pods, health = outside.Pods(builders.pod(), builders.pod(ref=other)), NodeHealth()
        here.verdict_store.apply(replace(LINK_DOWN, kind=FindingKind.NIC_LOST), inventory=here.devices.inventory)
        here.publisher(nics=Nics(), node=health).publish(Allocations(items=tuple(items), known=True))
        assert here.said.said[builders.POD, conditions.DEVICE_FAILURE].reason == "NicLost"
        assert health.holders == {NIC: {builders.POD}}
    assert contained.count() == before


async def test_last_answer_of_kubelet_counts_for_the_pods_that_are_still_there(tmp_path: Path) -> None:
    async with node.node_in(tmp_path) as here:
        here.pods = outside.Pods(builders.pod())
        publisher = here.publisher()
        publisher.publish(await Kubelet().fetch())
        here.verdict_store.apply(LOST, inventory=here.devices.inventory)
        publisher.publish(Allocations(known=False))
        assert here.said.said[builders.POD, conditions.DEVICE_FAILURE].status is ConditionStatus.TRUE
        here.pods.drop(builders.POD.uid)
        here.said.said.clear()
        publisher.publish(Allocations(known=False))
        assert here.said.said == {}


async def test_recovery_is_published_on_a_pod_whose_process_alone_was_found_on_the_device(tmp_path: Path) -> None:
    """Kubelet has allocated it no device, as where all devices are mounted into it."""
    async with node.node_in(tmp_path) as here:
        here.pods = outside.Pods(builders.pod())
        publisher, said = here.publisher(), here.said.said
        here.verdict_store.apply(LOST, inventory=here.devices.inventory)
        publisher.verdict_changed(device=outside.GPU.uuid, named=builders.POD)
        publisher.publish(Allocations(known=True))
        assert said[builders.POD, conditions.DEVICE_FAILURE].status is ConditionStatus.TRUE
        back = replace(LOST, kind=FindingKind.DEVICE_BACK, action=ActionClass.NONE)
        here.verdict_store.apply(back, inventory=here.devices.inventory)
        publisher.publish(Allocations(known=True))
        assert said[builders.POD, conditions.DEVICE_FAILURE].status is ConditionStatus.FALSE
        assert said[builders.POD, conditions.DEVICES_HEALTHY].status is ConditionStatus.TRUE
        said.clear()
        publisher.publish(Allocations(known=True))
        assert said == {}


async def test_fault_is_published_on_a_pod_whose_process_was_found_until_the_pod_ends(tmp_path: Path) -> None:
    async with node.node_in(tmp_path) as here:
        publisher, said = here.publisher(), here.said.said
        here.verdict_store.apply(LOST, inventory=here.devices.inventory)
        publisher.verdict_changed(device=outside.GPU.uuid, named=builders.POD)
        for pod in (None, builders.pod()):  # the API server lists it only later
            if pod is not None:
                await here.pods.put(pod)
            said.clear()
            publisher.publish(Allocations(known=True))
            assert said[builders.POD, conditions.DEVICE_FAILURE].status is ConditionStatus.TRUE
        await here.pods.put(builders.pod(phase="Failed"))
        said.clear()
        publisher.publish(Allocations(known=True))
        assert said == {}, "its Job may still read why it has failed"


@pytest.mark.parametrize("phase", ["Running", "Failed"])
async def test_recovery_is_published_on_a_pod_for_which_a_previous_agent_found_the_device(
    tmp_path: Path, phase: str
) -> None:
    async with node.node_in(tmp_path) as here:
        here.verdict_store.apply(LOST, inventory=here.devices.inventory)
        verdict = here.verdict_store.verdict(outside.GPU.uuid, inventory=here.devices.inventory)
        restart = Condition(
            conditions.IN_PLACE_RESTART, ConditionStatus.FALSE, "Failed", "trainer restart by swap: why"
        )
        published = restart, *pod_conditions.for_devices([verdict])
        here.pods = outside.Pods(builders.pod(conditions=published, phase=phase))
        publisher, said = here.publisher(), here.said.said
        back = replace(LOST, kind=FindingKind.DEVICE_BACK, action=ActionClass.NONE)
        here.verdict_store.apply(back, inventory=here.devices.inventory)
        publisher.publish(Allocations(known=False))
        assert said == {}, "it may hold other devices, too"
        listed = Allocation(builders.POD.namespace, builders.POD.name, "trainer", frozenset())
        publisher.publish(Allocations(items=(listed,), known=True))
        if phase == "Running":
            assert said[builders.POD, conditions.DEVICES_HEALTHY].status is ConditionStatus.TRUE
        else:
            assert said == {}, "its Job may still read why it has failed"


@pytest.mark.parametrize(
    "unmatched",
    [
        {"claims": frozenset({ClaimDevice("gpu.nvidia.com", "n", "gpu-0")})},
        {"plugin_devices": frozenset({PluginDevice("nvidia.com/gpu", "0")})},
    ],
    ids=["claim", "plugin-device"],
)
async def test_recovery_of_one_device_is_not_published_on_a_pod_with_another_one_that_is_unknown(
    tmp_path: Path, unmatched: dict[str, Any]
) -> None:
    async with node.node_in(tmp_path) as here:
        here.verdict_store.apply(LOST, inventory=here.devices.inventory)
        verdict = here.verdict_store.verdict(outside.GPU.uuid, inventory=here.devices.inventory)
        here.pods = outside.Pods(builders.pod(conditions=pod_conditions.for_devices([verdict])))
        back = replace(LOST, kind=FindingKind.DEVICE_BACK, action=ActionClass.NONE)
        here.verdict_store.apply(back, inventory=here.devices.inventory)
        held = Allocation(builders.POD.namespace, builders.POD.name, "trainer", frozenset(), **unmatched)
        here.publisher().publish(Allocations(items=(held,), known=True))
        assert here.said.said == {}
