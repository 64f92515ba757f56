"""Persist the GPUs that were present on this boot.

Without it, a GPU that is lost while no agent runs would never be missed.
"""

import json
from collections.abc import Mapping
from types import MappingProxyType

from kubemend.agent.model.devices import DeviceId, PciAddress


def encode(gpus: Mapping[DeviceId, PciAddress], *, boot_id: str) -> str:
    """Return the inventory as text, to be read by ``decode``."""
    return json.dumps({"boot_id": boot_id, "gpus": {uuid: str(pci) for uuid, pci in gpus.items()}}, sort_keys=True)


def decode(text: str | None, *, boot_id: str) -> Mapping[DeviceId, PciAddress]:
    """Return the GPUs known on this boot; empty if no text was kept, or it is of another boot.

    Raises ValueError where the text was not written by ``encode``.
    """
    if text is None:
        return MappingProxyType({})
    try:
        stored = json.loads(text)
        if stored["boot_id"] != boot_id:
            return MappingProxyType({})
        gpus = {DeviceId(str(uuid)): PciAddress.parse(pci) for uuid, pci in stored["gpus"].items()}
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not an inventory of GPUs: {error!r}") from error
    return MappingProxyType(gpus)
