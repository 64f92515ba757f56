"""What was seen of the node's NICs on this boot, in a form that outlives the agent.

Without it a restarted agent could not tell a link that was lost from one that was never cabled.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from agent.model.devices import PciAddress


@dataclass(frozen=True, slots=True)
class KnownNic:
    """One NIC that was there. ``links`` are those that were up, each with the best speed it had in Mb/s, if known."""

    driver: str
    links: Mapping[str, int | None] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True)
class NicMemory:
    """All NICs that were there on one boot of the node."""

    boot_id: str
    nics: Mapping[PciAddress, KnownNic] = field(default_factory=lambda: MappingProxyType({}))


def encode(memory: NicMemory) -> str:
    """Return the memory as text, to be read by ``decode``."""
    nics = {str(pci): {"driver": nic.driver, "links": dict(nic.links)} for pci, nic in memory.nics.items()}
    return json.dumps({"boot_id": memory.boot_id, "nics": nics}, sort_keys=True)


def decode(text: str | None, *, boot_id: str) -> NicMemory:
    """Return what is known on this boot: nothing, where no text was kept, or it is of another boot.

    Raises ValueError where the text is not one of ``encode``.
    """
    if text is None:
        return NicMemory(boot_id)
    try:
        stored = json.loads(text)
        if stored["boot_id"] != boot_id:
            return NicMemory(boot_id)
        nics = {PciAddress.parse(pci): _known(nic) for pci, nic in stored["nics"].items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not a memory of NICs: {error!r}") from error
    return NicMemory(boot_id, MappingProxyType(nics))


def _known(nic: Mapping[str, Mapping[str, int | None]]) -> KnownNic:
    links = {str(name): int(speed) if speed is not None else None for name, speed in nic["links"].items()}
    return KnownNic(driver=str(nic["driver"]), links=MappingProxyType(links))
