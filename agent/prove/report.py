"""The report of a proof as values, and its exit code."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from kubemend.agent.model.devices import DeviceId
from kubemend.agent.prove.verdicts import Outcome, Reason, Verdict
from kubemend.agent.scan.report import Unseen

EXIT_CODES: Final[Mapping[Outcome, int]] = MappingProxyType(
    {Outcome.PASSED: 0, Outcome.FAILED: 2, Outcome.SKIPPED: 3, Outcome.UNKNOWN: 3}
)
"""As of ``kubemend scan``. A GPU that was skipped is not proven."""

_RANK: Final = (Outcome.PASSED, Outcome.SKIPPED, Outcome.UNKNOWN, Outcome.FAILED)


@dataclass(frozen=True, slots=True)
class GpuRow:
    """One GPU and its verdict. ``pci`` may be empty."""

    uuid: DeviceId
    label: str
    name: str
    pci: str
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class PairRow:
    """Copies from one GPU to another, by their labels."""

    source: str
    target: str
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Report:
    """All GPUs, the pairs of those that passed, what could not be checked, and notes that are no problems."""

    gpus: tuple[GpuRow, ...] = ()
    pairs: tuple[PairRow, ...] = ()
    unseen: tuple[Unseen, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def outcome(self) -> Outcome:
        """The worst outcome: failures first, then unknown and skipped. No GPU at all is not a failure.

        GPUs that cannot access each other leave it as it is: many boards and virtual machines have no such access.
        """
        verdicts = [each.verdict for each in self.gpus] + [each.verdict for each in self.pairs]
        outcomes = [each.outcome for each in verdicts if each.reason is not Reason.NO_PEER_ACCESS]
        return max([*outcomes, *[Outcome.UNKNOWN] * len(self.unseen)], key=_RANK.index, default=Outcome.PASSED)

    @property
    def exit_code(self) -> int:
        """The exit code of ``kubemend prove`` (``EXIT_CODES``)."""
        return EXIT_CODES[self.outcome]
