"""Define how the steps of a round are drawn, the same in every chart. Pure.

The colours are those of Okabe and Ito, which are distinguishable for colour-blind readers.
"""

import zlib
from dataclasses import dataclass
from typing import Final

from kubemend.controller.rounds import timeline


@dataclass(frozen=True, slots=True)
class Ink:
    """Define a style.

    ``colour`` is RGB for pictures, ``terminal`` is click's name of a colour, ``glyph`` needs no colour.
    """

    colour: str
    terminal: str
    glyph: str


DARK: Final = "#333333"
FAULT: Final = "#D55E00"
DEAD: Final = "#000000"

_INKS: Final = {
    timeline.ORDER: Ink("#BBBBBB", "bright_black", "·"),
    timeline.RECREATE: Ink("#0072B2", "blue", "▚"),
    timeline.STOP: Ink("#D55E00", "red", "█"),
    "create": Ink("#E69F00", "yellow", "▓"),
    "start": Ink("#F0E442", "bright_yellow", "▒"),
    timeline.HELD: Ink("#9AD3F2", "cyan", "░"),
    timeline.RELEASE: Ink("#009E73", "green", "▬"),
}
_OTHERS: Final = (Ink("#CC79A7", "magenta", "▞"), Ink("#8C6BB1", "bright_magenta", "▟"), Ink("#7F6A3F", "white", "▙"))

_MEANINGS: Final = {
    timeline.ORDER: "order in transit",
    timeline.RECREATE: "pod recreated",
    timeline.FREE: "driver is freeing memory",
    "device": "old process leaves its GPUs",
    "proof": "GPUs are proved",
    "keep": "kept paths are moved to the successor",
    timeline.HELD: "successor held until all old are dead",
    timeline.RELEASE: "released",
}


def ink(step: str) -> Ink:
    """Return the style of a step; an unknown step gets a fixed one that depends on its name."""
    return _INKS.get(step) or _OTHERS[zlib.crc32(step.encode()) % len(_OTHERS)]


def meaning(step: str) -> str:
    """Return the step's name in the legend."""
    return _MEANINGS.get(step, step)
