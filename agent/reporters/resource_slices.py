"""Read which devices a node's DRA drivers publish, and under which names their health is kept. Pure."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from kubemend.agent.model.devices import PciAddress
from kubemend.agent.model.workloads import ClaimDevice

Object = Mapping[str, Any]

_UUIDS: Final = frozenset({"uuid", "parentUUID"})
"""Attributes that name a GPU: its own UUID, or of a MIG device its GPU's, whose faults are its own, too."""

_ADDRESSES: Final = frozenset({"pciBusID", "pciAddress"})
"""``resource.kubernetes.io/pciBusID`` is Kubernetes' own; drivers of NICs used the other one before."""


def published(slices: Iterable[Object]) -> dict[ClaimDevice, frozenset[str]]:
    """Return the devices in ResourceSlices, each with the names under which its health may be kept.

    Of a pool only the newest generation counts: old slices stay until a driver has replaced them all (KEP-4381).
    """
    slices = list(slices)
    newest: dict[tuple[str, str], int] = {}
    for item in slices:
        pool, generation = _pool(item)
        newest[pool] = max(generation, newest.get(pool, generation))
    found: dict[ClaimDevice, frozenset[str]] = {}
    for item in slices:
        (driver, pool_name), generation = _pool(item)
        if generation == newest[driver, pool_name]:
            for device in item["spec"].get("devices") or ():
                name = ClaimDevice(driver=driver, pool=pool_name, device=device["name"])
                found[name] = frozenset(_names(device))
    return found


def _pool(item: Object) -> tuple[tuple[str, str], int]:
    spec = item["spec"]
    return (spec["driver"], spec["pool"]["name"]), int(spec["pool"].get("generation", 0))


def _names(device: Object) -> Iterator[str]:
    attributes = device.get("attributes") or (device.get("basic") or {}).get("attributes") or {}  # basic: v1beta1
    for qualified, value in attributes.items():
        text = value.get("string")
        attribute = qualified.rpartition("/")[2]
        if text and attribute in _UUIDS:
            yield text
        elif text and attribute in _ADDRESSES:
            try:
                yield str(PciAddress.parse(text))
            except ValueError:
                continue  # not a PCI address: it names nothing
