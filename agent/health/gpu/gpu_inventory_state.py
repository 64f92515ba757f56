"""Persist the GPUs that were present on this boot, and their NVLinks that were up.

Without it, a GPU that is lost while no agent runs would never be missed, and a link that goes down would count as not
cabled.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from kubemend.agent.model.devices import DeviceId, PciAddress


@dataclass(frozen=True, slots=True)
class KnownGpus:
    """The GPUs with their addresses, the links of each that were up, and the GPUs that required a reset.

    Where a driver does not report what it requires, only the answer of such a GPU shows the reset.
    """

    gpus: Mapping[DeviceId, PciAddress] = field(default_factory=lambda: MappingProxyType({}))
    links: Mapping[DeviceId, frozenset[int]] = field(default_factory=lambda: MappingProxyType({}))
    reset_required: frozenset[DeviceId] = frozenset()


def encode(known: KnownGpus, *, boot_id: str) -> str:
    """Return the inventory as text, to be read by ``decode``."""
    gpus = {uuid: str(pci) for uuid, pci in known.gpus.items()}
    links = {uuid: sorted(up) for uuid, up in known.links.items()}
    state = {"boot_id": boot_id, "gpus": gpus, "links": links, "reset_required": sorted(known.reset_required)}
    return json.dumps(state, sort_keys=True)


def decode(text: str | None, *, boot_id: str) -> KnownGpus:
    """Return the GPUs known on this boot; empty if no text was kept, or it is of another boot.

    Raises ValueError where the text was not written by ``encode``.
    """
    found = _decoded(text)
    return found[1] if found is not None and found[0] == boot_id else KnownGpus()


def places(text: str | None) -> dict[str, str]:
    """Return the PCI address of each GPU by its UUID, of whichever boot. Raises ValueError as ``decode``."""
    found = _decoded(text)
    return {uuid: str(pci) for uuid, pci in found[1].gpus.items()} if found is not None else {}


def _decoded(text: str | None) -> tuple[str, KnownGpus] | None:
    if text is None:
        return None
    try:
        stored = json.loads(text)
        boot = str(stored["boot_id"])
        gpus = {DeviceId(str(uuid)): PciAddress.parse(pci) for uuid, pci in stored["gpus"].items()}
        links = {DeviceId(str(uuid)): frozenset(map(int, up)) for uuid, up in stored.get("links", {}).items()}
        required = frozenset(DeviceId(str(uuid)) for uuid in stored.get("reset_required", ()))
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not an inventory of GPUs: {error!r}") from error
    return boot, KnownGpus(MappingProxyType(gpus), MappingProxyType(links), required)
