"""The report of a scan as values, and its exit code."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from kubemend.agent.model.verdicts import Health, Verdict

EXIT_CODES: Final[Mapping[Health, int]] = MappingProxyType(
    {Health.HEALTHY: 0, Health.DEGRADED: 1, Health.UNHEALTHY: 2, Health.UNKNOWN: 3}
)
"""As for monitoring plugins: OK, WARNING, CRITICAL, UNKNOWN."""

_RANK = {Health.HEALTHY: 0, Health.UNKNOWN: 1, Health.DEGRADED: 2, Health.UNHEALTHY: 3}
"""Known faults rank above unknown states (``agent.health.state.node_summary``)."""


@dataclass(frozen=True, slots=True)
class Row:
    """One device: its verdict, and its names for people. Unknown fields are empty."""

    label: str
    name: str
    pci: str
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Unseen:
    """A component that could not be checked completely: the problem in one line, and the hint."""

    part: str
    what: str
    hint: str


@dataclass(frozen=True, slots=True)
class Report:
    """All devices, the components that could not be checked, and notes that are not problems."""

    rows: tuple[Row, ...] = ()
    unseen: tuple[Unseen, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def health(self) -> Health:
        """The worst verdict.

        A component that could not be checked is at best unknown; no device at all is not a fault.
        """
        verdicts = [row.verdict.health for row in self.rows]
        return max([*verdicts, *[Health.UNKNOWN] * len(self.unseen)], key=_RANK.__getitem__, default=Health.HEALTHY)

    @property
    def exit_code(self) -> int:
        """The exit code of ``kubemend scan`` (``EXIT_CODES``)."""
        return EXIT_CODES[self.health]
