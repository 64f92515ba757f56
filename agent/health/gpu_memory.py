"""Which GPUs were there on this boot, in a form that outlives the agent.

Without it a GPU that is lost while no agent runs would be missed by nobody.
"""

import json
from collections.abc import Mapping
from types import MappingProxyType

from agent.model.devices import GpuUuid, PciAddress


def encode(gpus: Mapping[GpuUuid, PciAddress], *, boot_id: str) -> str:
    """Return the memory as text, to be read by ``decode``."""
    return json.dumps({"boot_id": boot_id, "gpus": {uuid: str(pci) for uuid, pci in gpus.items()}}, sort_keys=True)


def decode(text: str | None, *, boot_id: str) -> Mapping[GpuUuid, PciAddress]:
    """Return what is known on this boot: nothing, where no text was kept, or it is of another boot.

    Raises ValueError where the text is not one of ``encode``.
    """
    if text is None:
        return MappingProxyType({})
    try:
        stored = json.loads(text)
        if stored["boot_id"] != boot_id:
            return MappingProxyType({})
        gpus = {GpuUuid(str(uuid)): PciAddress.parse(pci) for uuid, pci in stored["gpus"].items()}
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not a memory of GPUs: {error!r}") from error
    return MappingProxyType(gpus)
