"""Sub-codes: what the registers in an NVLink line add to its Xid. Values only.

A fifth-generation NVLink error (Xids 144-150) names the unit that met it and prints registers; which unit and which
bits decide whether it can be ignored. The form is that of the sheet "Xid 144-150 Decode" in NVIDIA's Xid catalog
(docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html).
"""

from dataclasses import dataclass
from typing import NamedTuple

from agent.model.actions import ActionClass

_NUMBER_SHIFT = 20
_NUMBER_MASK = 0x3F


class Registers(NamedTuple):
    """What an NVLink line says: its unit (``NETIR_LINK_EVT``), its first register (intrinfo), its error status."""

    unit: str
    info: int
    status: int

    @property
    def number(self) -> int:
        """The number of the sub-code, bits 20 to 25 of the first register: for a link that went down, why."""
        return self.info >> _NUMBER_SHIFT & _NUMBER_MASK


@dataclass(frozen=True, slots=True)
class Bits:
    """The bits of a register that are looked at, and how they must be."""

    value: int
    mask: int

    def fit(self, register: int) -> bool:
        """Whether the register has them so."""
        return register & self.mask == self.value


@dataclass(frozen=True, slots=True)
class SubCode:
    """One rule: for which registers it stands, what it asks for, and NVIDIA's advice in the words of its catalog.

    ``info`` are the encodings of the unit in the low bits of the first register; drivers before R575 have another.
    """

    name: str
    action: ActionClass
    units: frozenset[str]
    info: tuple[Bits, ...]
    numbers: frozenset[int]
    statuses: frozenset[int]
    nvidia: str = ""

    def fits(self, registers: Registers) -> bool:
        """Whether the rule is about these registers."""
        return (
            registers.status in self.statuses
            and registers.number in self.numbers
            and not self.units.isdisjoint(registers.unit.split("/"))
            and any(bits.fit(registers.info) for bits in self.info)
        )
