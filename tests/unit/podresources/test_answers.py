"""Device allocations from kubelet's answers, and ids that are not UUIDs."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubemend.agent.clients.podresources import convert
from kubemend.agent.clients.podresources.client import AllocationCache, GpuHolders
from kubemend.agent.model.devices import DeviceId, DeviceInventory, DevicePartition, Gpu, PciAddress
from kubemend.agent.model.workloads import Allocations, ClaimDevice, ContainerRef, PluginDevice, PodRef, PodUid
from tests.fakes.podresources_server import pod

WHOLE = Gpu(uuid=DeviceId("GPU-a"), pci=PciAddress(0, 1, 0), index=0, minor=3)
ONE_SLICE = Gpu(
    uuid=DeviceId("GPU-b"),
    pci=PciAddress(0, 2, 0),
    index=1,
    minor=1,
    partitions=(DevicePartition(uuid=DeviceId("MIG-b1"), gpu_instance=7, compute_instance=0),),
)
TWO_SLICES = Gpu(
    uuid=DeviceId("GPU-c"),
    pci=PciAddress(0, 3, 0),
    index=2,
    minor=2,
    partitions=(
        DevicePartition(uuid=DeviceId("MIG-c1"), gpu_instance=1, compute_instance=0),
        DevicePartition(uuid=DeviceId("MIG-c2"), gpu_instance=2, compute_instance=0),
    ),
)
INVENTORY = DeviceInventory(gpus=(WHOLE, ONE_SLICE, TWO_SLICES), complete=True)


def held(
    *, devices: list[tuple[str, str]] | None = None, claims: list[tuple[str, str, str]] | None = None
) -> Allocations:
    return convert.allocations([pod("p", devices=devices or [], claims=claims or [])])


def resolved(
    *, devices: list[tuple[str, str]] | None = None, claims: list[tuple[str, str, str]] | None = None
) -> Allocations:
    return convert.resolve(held(devices=devices, claims=claims), inventory=INVENTORY)


def test_uuids_are_kept_and_replicas_are_one_device() -> None:
    [item] = held(
        devices=[
            ("nvidia.com/gpu", "GPU-a"),
            ("nvidia.com/gpu.shared", "GPU-b::0"),
            ("nvidia.com/gpu.shared", "GPU-b::11"),
            ("nvidia.com/mig-1g.10gb", "MIG-c1"),
            ("nvidia.com/mig-1g.10gb", "MIG-GPU-c/1/0"),
        ]
    ).items

    assert item.devices == {"GPU-a", "GPU-b", "MIG-c1", "MIG-GPU-c/1/0"}
    assert (item.namespace, item.pod_name, item.container) == ("default", "p", "trainer")


def test_containers_without_devices_hold_none_and_are_known() -> None:
    assert convert.allocations([pod("idle")]) == Allocations(items=(), known=True)


def test_indices_and_device_nodes_resolve_by_inventory() -> None:
    [by_index] = resolved(devices=[("nvidia.com/gpu", "0"), ("nvidia.com/gpu", "1::4")]).items
    [by_node] = resolved(devices=[("nvidia.com/gpu", "nvidia3"), ("nvidia.com/gpu", "nvidia2/gi2/vgpu0")]).items

    assert by_index.devices == {"GPU-a", "GPU-b"}
    assert by_node.devices == {"GPU-a", "MIG-c2"}
    assert by_index.plugin_devices == by_node.plugin_devices == frozenset()


def test_unresolvable_ids_stay() -> None:
    devices = [("rdma/hca", "0"), ("nvidia.com/gpu", "17"), ("nvidia.com/gpu", "nvidia2/gi9")]

    [item] = resolved(devices=devices).items

    assert item.devices == frozenset()
    assert item.plugin_devices == {PluginDevice(resource=resource, id=name) for resource, name in devices}


@pytest.mark.parametrize(
    "lost",
    [
        pytest.param(dataclasses.replace(TWO_SLICES, index=0, minor=3), id="seen-by-this-agent"),
        pytest.param(Gpu(uuid=DeviceId("GPU-c"), pci=PciAddress(0, 3, 0), index=-1), id="seen-by-an-earlier-agent"),
    ],
)
@pytest.mark.parametrize("index", ["0", "1"])
def test_index_that_may_have_become_another_gpus_names_none(lost: Gpu, index: str) -> None:
    """NVML numbers the GPUs that are left again: the container of the lost one would be blamed for another's fault."""
    inventory = DeviceInventory(gpus=(lost, WHOLE, ONE_SLICE), complete=True)

    [item] = convert.resolve(held(devices=[("nvidia.com/gpu", index)]), inventory=inventory).items

    assert item.devices == frozenset()
    assert convert.hides_gpu(item)


def test_minor_number_of_two_gpus_names_none() -> None:
    inventory = DeviceInventory(gpus=(WHOLE, dataclasses.replace(TWO_SLICES, minor=3)), complete=True)

    [item] = convert.resolve(held(devices=[("nvidia.com/gpu", "nvidia3")]), inventory=inventory).items

    assert convert.hides_gpu(item)


def test_dra_names_resolve_by_minor_number() -> None:
    [item] = resolved(claims=[("gpu.nvidia.com", "node-1", "gpu-3")]).items

    assert item.devices == {"GPU-a"}
    assert item.claims == frozenset()


def test_dra_mig_device_resolves_on_a_gpu_with_only_one() -> None:
    [item] = resolved(claims=[("gpu.nvidia.com", "node-1", "gpu-1-mig-1g10gb-19-0")]).items

    assert item.devices == {"MIG-b1"}
    assert item.claims == frozenset()


def test_dra_mig_device_among_several_counts_for_parent_and_claim() -> None:
    [item] = resolved(claims=[("gpu.nvidia.com", "node-1", "gpu-2-mig-1g10gb-19-4")]).items

    assert item.devices == {"GPU-c"}
    assert item.claims == {ClaimDevice(driver="gpu.nvidia.com", pool="node-1", device="gpu-2-mig-1g10gb-19-4")}


def test_unresolvable_claims_stay() -> None:
    claims = [
        ("gpu.nvidia.com", "node-1", "gpu-9"),
        ("gpu.nvidia.com", "node-1", "gpu-vfio-0"),
        ("gpu.example.com", "node-1", "gpu-3"),
    ]

    [item] = resolved(claims=claims).items

    assert item.devices == frozenset()
    assert item.claims == {ClaimDevice(*claim) for claim in claims}


def test_cdi_devices_are_those_of_the_containers_own_claims() -> None:
    claims = [("gpu.nvidia.com", "n", "gpu-0"), ("gpu.nvidia.com", "n", "gpu-1")]
    mine = pod("p", claims=claims, cdi=["k8s.gpu.nvidia.com/claim=1", "k8s.gpu.nvidia.com/device=b"])
    others = [pod("p", container="other", claims=claims, cdi=["a/b=other"]), pod("idle")]

    allocations = convert.allocations([mine, *others])

    found = {name: convert.cdi_devices(ref(name), allocations) for name in ("trainer", "absent")}
    assert found == {"trainer": ("k8s.gpu.nvidia.com/claim=1", "k8s.gpu.nvidia.com/device=b"), "absent": ()}
    assert convert.resolve(allocations, inventory=INVENTORY).items[0].cdi_devices == found["trainer"]


def ref(container: str) -> ContainerRef:
    return ContainerRef(PodRef("default", "p", PodUid("u")), container)


@given(
    ids=st.lists(st.text(max_size=20) | st.from_regex(r"(nvidia)?\d(/gi\d)?(::\d)?", fullmatch=True)),
    names=st.lists(st.text(max_size=20) | st.from_regex(r"gpu-\d(-mig-.{1,3})?", fullmatch=True)),
)
def test_no_device_is_ever_dropped(ids: list[str], names: list[str]) -> None:
    devices, claims = [("nvidia.com/gpu", name) for name in ids], [("gpu.nvidia.com", "n", name) for name in names]
    before = held(devices=devices, claims=claims)
    after = convert.resolve(before, inventory=INVENTORY)

    assert len(after.items) == (1 if ids or names else 0)
    for item in after.items:
        assert item.devices or item.claims or item.plugin_devices
    assert convert.resolve(before, inventory=DeviceInventory()) == before
    assert convert.resolve(after, inventory=INVENTORY) == after


async def test_holders_are_resolved_by_inventory_of_each_call() -> None:
    inventory = DeviceInventory()

    async def fetch() -> Allocations:
        return held(devices=[("nvidia.com/gpu", "0")])

    holders = GpuHolders(cache=AllocationCache(fetch), inventory=lambda: inventory)
    [before] = (await holders.current(max_age=3600)).items
    inventory = INVENTORY
    [after] = (await holders.current(max_age=3600)).items
    assert not before.devices
    assert after.devices == {"GPU-a"}
