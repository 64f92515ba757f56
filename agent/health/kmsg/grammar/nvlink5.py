"""The unit and the registers in Xids 144-150, errors of fifth-generation NVLinks.

::

    NETIR_LINK_EVT  Fatal   XC0 i0 Link 08 (0x004505c6 0x00000000 0x00000000 0x00000000 0x00000000 0x00000000)
    SAW_MVB Nonfatal XC0 i0 Link -1 (0x00000001 0x00000008)
    RLW_REMAP Nonfatal XC 1 i 0 Link 03 (0x00000004 0x00000001 0x00000000 0x00000000)
"""

import re
from dataclasses import dataclass

from kubemend.agent.health.catalog.subcodes import Registers

_LINE = re.compile(
    r"""
    (?P<unit>[A-Z][A-Z0-9_]{0,30}(?:/[A-Z][A-Z0-9_]{0,30})?)\s+
    (?:Non-?fatal|(?:Link\s+)?Fatal)\s+
    XC\s*\d\s+i\s*\d{1,2}\s+
    Link\s+(?P<link>-?\d{1,4})\s+
    \(\s*(?P<info>0x[0-9a-f]{1,8})\s+(?P<status>0x[0-9a-f]{1,8})(?=\s+0x|\s*\))
    """,
    re.VERBOSE | re.IGNORECASE | re.ASCII,
)


@dataclass(frozen=True, slots=True)
class Nvlink5:
    """The content of such an Xid's text. A ``link`` of -1 means no particular link."""

    registers: Registers
    link: int


def parse(text: str) -> Nvlink5 | None:
    """Parse the text of an Xid; None unless it has at least the two registers that decide."""
    match = _LINE.match(text)
    if match is None:
        return None
    registers = Registers(unit=match["unit"].upper(), info=int(match["info"], 16), status=int(match["status"], 16))
    return Nvlink5(registers=registers, link=int(match["link"]))
