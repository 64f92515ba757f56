"""Location of an Xid 13 or 31 on the chip: repetition at one location points to the chip, not the program.

::

    Graphics SM Warp Exception on (GPC 2, TPC 0, SM 1): Out Of Range Address
    MMU Fault: ENGINE GRAPHICS GPC3 GPCCLIENT_T1_0 faulted @ 0x7f16_3e000000. Fault is of type FAULT_PDE ...
    Graphics Exception: ESR 0x524648=0xf 0x524650=0x20 ...                      (no place)
"""

import re
from dataclasses import dataclass

_SM = re.compile(r"\(\s*GPC\s*(\d{1,3})\s*,\s*TPC\s*(\d{1,3})\s*(?:,\s*SM\s*(\d{1,3})\s*)?\)", re.IGNORECASE | re.ASCII)
_MMU = re.compile(
    r"MMU Fault: ENGINE \S{1,40}(?: GPC(?P<gpc>\d{1,3}))? (?P<client>[A-Z]{3}CLIENT_\w{1,40}) faulted\b", re.ASCII
)


@dataclass(frozen=True, slots=True)
class Place:
    """GPU cluster, texture cluster, processor and memory-unit client; None where the line does not name them."""

    gpc: str | None = None
    tpc: str | None = None
    sm: str | None = None
    mmu_client: str | None = None


NOWHERE = Place()


def parse(text: str) -> Place:
    """Return the location named in the text of an Xid."""
    if (match := _SM.search(text)) is not None:
        return Place(gpc=match[1], tpc=match[2], sm=match[3])
    if (match := _MMU.search(text)) is not None:
        return Place(gpc=match["gpc"], mmu_client=match["client"])
    return NOWHERE
