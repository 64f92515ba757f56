"""``SXid`` lines of the NVSwitch driver.

One event prints three lines; the one with the severity (Fatal, Non-fatal) is the event, ``Severity`` and
``Data`` lines are its details::

    nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 12028, Non-fatal, Link 32 egress non-posted PRIV error (First)
    nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 12028, Severity 0 Engine instance 32 Sub-engine instance 00
    nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 12028, Data {0x00000020, 0x00000020}
    nvidia-nvswitch1: SXid (PCI:0000:06:00.0): 26006, Fatal, SOE HALT
"""

import re
from dataclasses import dataclass

from kubemend.agent.model.devices import PciAddress

_SXID = re.compile(
    r"""
    (?:(?P<switch>nvidia-nvswitch\d{1,4})|NVRM):\s+SXid\s+\(
        \s*(?P<pci>(?:PCI:)?[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}(?:\.[0-7])?)
    \s*\):\s*
    (?P<code>\d{1,9})
    (?>\s*,\s*|\s+|$)                                       # atomic: no way around the next line
    (?!Severity\s+\d|Data\s+\{)
    (?:(?P<non>non-?)?(?P<fatal>fatal)\b(?:\s*,\s*|\s+|$))?
    (?P<text>.*)
    """,
    re.VERBOSE | re.IGNORECASE | re.DOTALL | re.ASCII,
)
_LINK = re.compile(r"\bLink\s+(-?\d{1,4})\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class SxidLine:
    """One SXid line. ``pci`` is the switch; ``link`` is None where the fault does not concern one link."""

    pci: PciAddress
    code: str
    switch: str | None = None
    severity: str | None = None
    link: int | None = None
    text: str = ""


def parse(text: str) -> SxidLine | None:
    """Parse a line; None unless it is an SXid line. Lines with details only return None as well."""
    match = _SXID.match(text)
    if match is None:
        return None
    rest = match["text"].strip()
    link = _LINK.search(rest)
    return SxidLine(
        pci=PciAddress.parse(match["pci"]),
        code=str(int(match["code"])),
        switch=match["switch"],
        severity=("Non-fatal" if match["non"] else "Fatal") if match["fatal"] else None,
        link=int(link[1]) if link is not None else None,
        text=rest,
    )
