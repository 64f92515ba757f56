"""What a scan says, as values, and as an exit code."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from agent.model.verdicts import Health, Verdict

EXIT_CODES: Final[Mapping[Health, int]] = MappingProxyType(
    {Health.HEALTHY: 0, Health.DEGRADED: 1, Health.UNHEALTHY: 2, Health.UNKNOWN: 3}
)
"""As monitoring plugins have it: OK, WARNING, CRITICAL, UNKNOWN."""

_RANK = {Health.HEALTHY: 0, Health.UNKNOWN: 1, Health.DEGRADED: 2, Health.UNHEALTHY: 3}
"""What is known to be bad goes before what is not known (``agent.health.node_summary``)."""


@dataclass(frozen=True, slots=True)
class Row:
    """One device: its verdict, and how people call it. What is not known is empty."""

    label: str
    name: str
    pci: str
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Unseen:
    """A part that could not be looked at, or not wholly: what is wrong and where, in one line, and what to do."""

    part: str
    what: str
    mend: str


@dataclass(frozen=True, slots=True)
class Report:
    """All devices, what could not be looked at, and what is worth knowing though nothing is wrong."""

    rows: tuple[Row, ...] = ()
    unseen: tuple[Unseen, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def health(self) -> Health:
        """The worst verdict. A part that could not be looked at is at best unknown; no device at all is no fault."""
        verdicts = [row.verdict.health for row in self.rows]
        return max([*verdicts, *[Health.UNKNOWN] * len(self.unseen)], key=_RANK.__getitem__, default=Health.HEALTHY)

    @property
    def exit_code(self) -> int:
        """The exit code of ``kubemend scan`` (``EXIT_CODES``)."""
        return EXIT_CODES[self.health]
