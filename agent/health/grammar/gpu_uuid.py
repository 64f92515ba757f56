"""``NVRM: GPU at PCI:0000:3b:00: GPU-…``: printed before the first Xid of a GPU, it names the GPU by its UUID."""

import re

from agent.model.devices import GpuUuid, PciAddress

_GPU_AT = re.compile(
    r"NVRM:\s+GPU\s+at\s+(?P<pci>(?:PCI:)?[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}(?:\.[0-7])?):\s+"
    r"(?P<uuid>GPU-[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12})\b",
    re.IGNORECASE | re.ASCII,
)


def parse(text: str) -> tuple[PciAddress, GpuUuid] | None:
    """Return which GPU sits at which address, or None where the words do not say it."""
    match = _GPU_AT.match(text)
    return (PciAddress.parse(match["pci"]), GpuUuid(match["uuid"])) if match is not None else None
