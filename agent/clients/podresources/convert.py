"""Convert kubelet's pod-resources answers into allocations, and ids that are not UUIDs into GPUs. Pure."""

import dataclasses
import re
from collections.abc import Iterable, Iterator

from kubemend.agent.model.devices import DeviceId, DeviceInventory, Gpu
from kubemend.agent.model.workloads import Allocation, Allocations, ClaimDevice, ContainerRef, PluginDevice
from kubemend.common.pb.podresources.v1 import api_pb2

NVIDIA_DRA_DRIVER = "gpu.nvidia.com"
_NVIDIA_RESOURCES = "nvidia.com/"

# The device plugin's ids are UUIDs; with time-slicing or MPS each replica has `::n` added.
_UUID = re.compile(r"(?P<uuid>(?:GPU|MIG)-.+?)(?:::\d+)?")
# Indices, which some plugins use.
_INDEX = re.compile(r"(?P<index>\d+)(?:::\d+)?")
# GKE's device plugin: the device node's name, then MIG's GPU instance, then the time-sharing replica.
_DEVICE_NODE = re.compile(r"nvidia(?P<minor>\d+)(?:/gi(?P<gpu_instance>\d+))?(?:/vgpu\d+)?")
# The end of an id that stands for a share of a GPU, in all these forms.
_SHARE = re.compile(r"(?:::|/vgpu)\d+\Z")
# The DRA driver: gpu-<minor>, and gpu-<parent's minor>-mig-<profile…>-<placement…>.
_DRA_NAME = re.compile(r"gpu-(?P<minor>\d+)(?P<mig>-mig-.+)?")


def allocations(pods: Iterable[api_pb2.PodResources]) -> Allocations:
    """Return the allocations in kubelet's answer."""
    return Allocations(items=tuple(_allocations(pods)), known=True)


def _allocations(pods: Iterable[api_pb2.PodResources]) -> Iterator[Allocation]:
    for pod in pods:
        for container in pod.containers:
            uuids, others, shared = set(), set(), False
            for entry in container.devices:
                for device_id in entry.device_ids:
                    shared |= _SHARE.search(device_id) is not None
                    if (match := _UUID.fullmatch(device_id)) is not None:
                        uuids.add(DeviceId(match["uuid"]))
                    else:
                        others.add(PluginDevice(resource=entry.resource_name, id=device_id))
            claims = frozenset(_claim_devices(container))
            if uuids or others or claims:
                yield Allocation(
                    namespace=pod.namespace,
                    pod_name=pod.name,
                    container=container.name,
                    devices=frozenset(uuids),
                    claims=claims,
                    plugin_devices=frozenset(others),
                    shared=shared,
                    cdi_devices=tuple(dict.fromkeys(_cdi_devices(container))),
                )


def _claim_devices(container: api_pb2.ContainerResources) -> Iterator[ClaimDevice]:
    for dynamic in container.dynamic_resources:
        for resource in dynamic.claim_resources:
            yield ClaimDevice(driver=resource.driver_name, pool=resource.pool_name, device=resource.device_name)


def _cdi_devices(container: api_pb2.ContainerResources) -> Iterator[str]:
    for dynamic in container.dynamic_resources:
        for resource in dynamic.claim_resources:
            yield from (device.name for device in resource.cdi_devices)


def resolve(held: Allocations, *, inventory: DeviceInventory) -> Allocations:
    """Return the allocations with claims and plugin ids resolved to UUIDs by the inventory.

    Unknown ones stay as they are. A MIG device of the DRA driver is named by profile and placement, which do not
    identify the instance unless the GPU has only one: it then counts as held on its parent GPU, so that a fault of the
    whole GPU concerns it, and the claim is kept.
    """
    by_minor, by_index = inventory.by_minor(), inventory.by_index()
    return dataclasses.replace(
        held, items=tuple(_resolved(item, by_minor=by_minor, by_index=by_index) for item in held.items)
    )


def held_by(container: ContainerRef, allocations: Allocations) -> frozenset[DeviceId] | None:
    """Return the GPUs that a container holds; None if kubelet did not answer, or names them in an unknown form."""
    mine = _of(container, allocations)
    if not allocations.known or any(map(hides_gpu, mine)):
        return None
    return frozenset(uuid for item in mine for uuid in item.devices)


def cdi_devices(container: ContainerRef, allocations: Allocations) -> tuple[str, ...]:
    """Return the full names of the CDI devices of a container's claims; none if kubelet did not answer."""
    return tuple(name for item in _of(container, allocations) for name in item.cdi_devices)


def _of(container: ContainerRef, allocations: Allocations) -> list[Allocation]:
    names = (container.pod.namespace, container.pod.name, container.name)
    return [item for item in allocations.items if (item.namespace, item.pod_name, item.container) == names]


def hides_gpu(item: Allocation) -> bool:
    """Return whether a container holds a GPU, or a part of one, that could not be resolved to a UUID."""
    return any(claim.driver == NVIDIA_DRA_DRIVER for claim in item.claims) or any(
        other.resource.startswith(_NVIDIA_RESOURCES) for other in item.plugin_devices
    )


def _resolved(item: Allocation, *, by_minor: dict[int, Gpu], by_index: dict[int, Gpu]) -> Allocation:
    devices, claims, others = set(item.devices), set(item.claims), set(item.plugin_devices)
    for claim in item.claims:
        match = _DRA_NAME.fullmatch(claim.device) if claim.driver == NVIDIA_DRA_DRIVER else None
        gpu = by_minor.get(int(match["minor"])) if match is not None else None
        if match is None or gpu is None:
            continue
        if match["mig"] is None:
            devices.add(gpu.uuid)
            claims.discard(claim)
        elif len(gpu.partitions) == 1:
            devices.add(gpu.partitions[0].uuid)
            claims.discard(claim)
        else:
            devices.add(gpu.uuid)
    for other in item.plugin_devices:
        if (uuid := _plugin_uuid(other, by_minor=by_minor, by_index=by_index)) is not None:
            devices.add(uuid)
            others.discard(other)
    return dataclasses.replace(
        item, devices=frozenset(devices), claims=frozenset(claims), plugin_devices=frozenset(others)
    )


def _plugin_uuid(held: PluginDevice, *, by_minor: dict[int, Gpu], by_index: dict[int, Gpu]) -> DeviceId | None:
    if not held.resource.startswith(_NVIDIA_RESOURCES):
        return None
    if (match := _INDEX.fullmatch(held.id)) is not None:
        gpu = by_index.get(int(match["index"]))
        return gpu.uuid if gpu is not None else None
    if (match := _DEVICE_NODE.fullmatch(held.id)) is None or (gpu := by_minor.get(int(match["minor"]))) is None:
        return None
    if match["gpu_instance"] is None:
        return gpu.uuid
    instance = int(match["gpu_instance"])
    return next((mig.uuid for mig in gpu.partitions if mig.gpu_instance == instance), None)
