"""How the steps of a round are drawn: the same in every chart. Pure.

The colours are those of Okabe and Ito, which colour-blind people tell apart too.
"""

import zlib
from dataclasses import dataclass
from typing import Final

from controller.rounds import laid_out


@dataclass(frozen=True, slots=True)
class Ink:
    """``colour`` is RGB for pictures, ``terminal`` is click's name of a colour, ``glyph`` does without colours."""

    colour: str
    terminal: str
    glyph: str


DARK: Final = "#333333"
FAULT: Final = "#D55E00"
DEAD: Final = "#000000"

_INKS: Final = {
    laid_out.ORDER: Ink("#BBBBBB", "bright_black", "·"),
    laid_out.RECREATE: Ink("#0072B2", "blue", "▚"),
    laid_out.STOP: Ink("#D55E00", "red", "█"),
    "create": Ink("#E69F00", "yellow", "▓"),
    "start": Ink("#F0E442", "bright_yellow", "▒"),
    laid_out.HELD: Ink("#9AD3F2", "cyan", "░"),
    laid_out.RELEASE: Ink("#009E73", "green", "▬"),
}
_OTHERS: Final = (Ink("#CC79A7", "magenta", "▞"), Ink("#8C6BB1", "bright_magenta", "▟"), Ink("#7F6A3F", "white", "▙"))

_MEANINGS: Final = {
    laid_out.ORDER: "order on its way",
    laid_out.RECREATE: "pod recreated",
    laid_out.HELD: "new one held until all old are dead",
    laid_out.RELEASE: "let run",
}


def ink(step: str) -> Ink:
    """Return how a step is drawn; steps that are not known here get one by their name, always the same."""
    return _INKS.get(step) or _OTHERS[zlib.crc32(step.encode()) % len(_OTHERS)]


def meaning(step: str) -> str:
    """Return what a step is called in the legend."""
    return _MEANINGS.get(step, step)
