"""Sub-codes: the meaning of the registers in an NVLink line beyond its Xid. Values only.

A fifth-generation NVLink error (Xids 144-150) names the unit that detected it and prints registers; unit and bits
decide whether it can be ignored. The form follows the sheet "Xid 144-150 Decode" in NVIDIA's Xid catalog
(docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html).
"""

from dataclasses import dataclass
from typing import NamedTuple

from kubemend.agent.model.actions import ActionClass

_NUMBER_SHIFT = 20
_NUMBER_MASK = 0x3F


class Registers(NamedTuple):
    """The fields of an NVLink line: its unit (``NETIR_LINK_EVT``), its first register (intrinfo), its error status."""

    unit: str
    info: int
    status: int

    @property
    def number(self) -> int:
        """The number of the sub-code, bits 20 to 25 of the first register: the reason of a link that went down."""
        return self.info >> _NUMBER_SHIFT & _NUMBER_MASK


@dataclass(frozen=True, slots=True)
class Bits:
    """The relevant bits of a register, and their required value."""

    value: int
    mask: int

    def fit(self, register: int) -> bool:
        """Return whether the register has that value in these bits."""
        return register & self.mask == self.value


@dataclass(frozen=True, slots=True)
class SubCode:
    """One rule: the registers that it matches, the action it calls for, and NVIDIA's advice quoted from its catalog.

    ``info`` are the encodings of the unit in the low bits of the first register; drivers before R575 use another
    encoding.
    """

    name: str
    action: ActionClass
    units: frozenset[str]
    info: tuple[Bits, ...]
    numbers: frozenset[int]
    statuses: frozenset[int]
    nvidia: str = ""

    def fits(self, registers: Registers) -> bool:
        """Return whether the rule matches these registers."""
        return (
            registers.status in self.statuses
            and registers.number in self.numbers
            and not self.units.isdisjoint(registers.unit.split("/"))
            and any(bits.fit(registers.info) for bits in self.info)
        )
