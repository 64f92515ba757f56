"""Persist the NICs and links that were seen on this boot.

Without it, a restarted agent could not distinguish a lost link from one that was never cabled.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from kubemend.agent.model.devices import PciAddress


@dataclass(frozen=True, slots=True)
class KnownNic:
    """One NIC that was present. ``links`` are those that were up, each with its best speed in Mb/s, if known."""

    driver: str
    links: Mapping[str, int | None] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True)
class NicMemory:
    """All NICs that were present on one boot of the node."""

    boot_id: str
    nics: Mapping[PciAddress, KnownNic] = field(default_factory=lambda: MappingProxyType({}))


def encode(memory: NicMemory) -> str:
    """Return the memory as text, to be read by ``decode``."""
    nics = {str(pci): {"driver": nic.driver, "links": dict(nic.links)} for pci, nic in memory.nics.items()}
    return json.dumps({"boot_id": memory.boot_id, "nics": nics}, sort_keys=True)


def decode(text: str | None, *, boot_id: str) -> NicMemory:
    """Return the memory of this boot; empty if no text was kept, or it is of another boot.

    Raises ValueError where the text was not written by ``encode``.
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
