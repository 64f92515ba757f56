"""A GPU that fell off the bus, in the forms that carry no Xid (the Xid 79 may never come).

::

    NVRM: GPU 0000:41:00.0: GPU has fallen off the bus.
    NVRM: GPU at 0000:41:00.0 has fallen off the bus.
    NVRM: The NVIDIA GPU 0000:41:00.0
    NVRM: (PCI ID: 10de:2330) installed in this system has
    NVRM: fallen off the bus and is not responding to commands.

The last one is a single kernel record of three lines; tools that print it split it, so ``Joiner`` joins it.
"""

import re

from kubemend.agent.model.devices import PciAddress

_ADDRESS = r"(?P<pci>(?:PCI:)?[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}(?:\.[0-7])?)"
_SHORT = re.compile(
    rf"NVRM:\s+(?:GPU\s+(?:at\s+)?)?{_ADDRESS}:?\s+(?:GPU\s+)?has\s+fallen\s+off\s+the\s+bus\b",
    re.IGNORECASE | re.ASCII,
)
_GAP = r"(?:\s+NVRM:)?\s+"
_LONG = re.compile(
    rf"NVRM:\s+The\s+NVIDIA\s+GPU\s+{_ADDRESS}"
    rf"(?:{_GAP}\(PCI\s+ID:[^)\n]{{1,20}}\))?"
    rf"(?:{_GAP}installed\s+in\s+this\s+system)?"
    rf"{_GAP}has{_GAP}fallen\s+off\s+the\s+bus\b",
    re.IGNORECASE | re.ASCII,
)
_LONG_HEAD = re.compile(rf"NVRM:\s+The\s+NVIDIA\s+GPU\s+{_ADDRESS}", re.IGNORECASE | re.ASCII)
_LONG_TAIL = re.compile(r"\s*(?:NVRM:)?\s*(?:\(PCI\s+ID:|installed\s+in|fallen\s+off)", re.IGNORECASE | re.ASCII)
_LONGEST = 4
"""Maximum number of lines of the long form."""


def parse(text: str) -> PciAddress | None:
    """Return the GPU that a line declares off the bus, or None."""
    match = _SHORT.match(text) or _LONG.match(text)
    return PciAddress.parse(match["pci"]) if match is not None else None


class Joiner:
    """Joins the lines of the long form where a log tool has split them. Keeps at most four lines."""

    def __init__(self) -> None:
        self._held: list[str] = []

    def join(self, text: str) -> str:
        """Return the text, or the whole message so far where this line continues one."""
        if _LONG_HEAD.match(text):
            self._held = [text]
        elif self._held and _LONG_TAIL.match(text):
            self._held.append(text)
            text = "\n".join(self._held)
            if len(self._held) == _LONGEST or parse(text) is not None:
                self._held = []
        return text
