"""``NVRM: GPU at PCI:0000:3b:00: GPU-…``: printed before the first Xid of a GPU, it gives the GPU's UUID."""

import re

from kubemend.agent.model.devices import DeviceId, PciAddress

_GPU_AT = re.compile(
    r"NVRM:\s+GPU\s+at\s+(?P<pci>(?:PCI:)?[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}(?:\.[0-7])?):\s+"
    r"(?P<uuid>GPU-[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12})\b",
    re.IGNORECASE | re.ASCII,
)


def parse(text: str) -> tuple[PciAddress, DeviceId] | None:
    """Return the address and UUID of the GPU, or None for any other text."""
    match = _GPU_AT.match(text)
    return (PciAddress.parse(match["pci"]), DeviceId(match["uuid"])) if match is not None else None
