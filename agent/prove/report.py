"""The report of a proof as values, and its exit code."""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

from kubemend.agent.model.devices import GpuUuid
from kubemend.agent.scan.report import Unseen


class Outcome(enum.Enum):
    """What is known about a GPU. Only ``PASSED`` means that it was proven to work; ``UNKNOWN`` accuses nothing."""

    PASSED = "Passed"
    FAILED = "Failed"
    SKIPPED = "Skipped"
    UNKNOWN = "Unknown"


class Reason(enum.Enum):
    """Why a GPU did not pass. The first group are failures, or unknown where the GPU may not be the cause."""

    WRONG_RESULT = "WrongResult"
    WRONG_MEMORY = "WrongMemory"
    WRONG_COPY = "WrongCopy"
    SLOW_MEMORY = "SlowMemory"
    DID_NOT_ANSWER = "DidNotAnswer"
    CUDA_ERROR = "CudaError"

    MIG = "Mig"
    MPS = "Mps"
    IN_USE = "InUse"
    COMPUTE_MODE = "ComputeMode"
    TOO_LITTLE_MEMORY = "TooLittleMemory"
    NO_CUDA = "NoCuda"

    NOT_VISIBLE = "NotVisible"
    NVML_UNCLEAR = "NvmlUnclear"
    INCOMPLETE = "Incomplete"


EXIT_CODES: Final[Mapping[Outcome, int]] = MappingProxyType(
    {Outcome.PASSED: 0, Outcome.FAILED: 2, Outcome.SKIPPED: 3, Outcome.UNKNOWN: 3}
)
"""As of ``kubemend scan``. A GPU that was skipped is not proven."""

_RANK: Final = (Outcome.PASSED, Outcome.SKIPPED, Outcome.UNKNOWN, Outcome.FAILED)


@dataclass(frozen=True, slots=True)
class Verdict:
    """An outcome, with its reason (None: passed), one line for people, and the evidence as plain JSON values."""

    outcome: Outcome
    reason: Reason | None = None
    message: str = ""
    evidence: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True)
class GpuRow:
    """One GPU and its verdict. ``pci`` may be empty."""

    uuid: GpuUuid
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
    """All GPUs, the pairs that can copy to each other, what could not be checked, and notes that are no problems."""

    gpus: tuple[GpuRow, ...] = ()
    pairs: tuple[PairRow, ...] = ()
    unseen: tuple[Unseen, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def outcome(self) -> Outcome:
        """The worst outcome: failures first, then what is unknown or was skipped. No GPU at all is not a failure."""
        outcomes = [each.verdict.outcome for each in self.gpus] + [each.verdict.outcome for each in self.pairs]
        return max([*outcomes, *[Outcome.UNKNOWN] * len(self.unseen)], key=_RANK.index, default=Outcome.PASSED)

    @property
    def exit_code(self) -> int:
        """The exit code of ``kubemend prove`` (``EXIT_CODES``)."""
        return EXIT_CODES[self.outcome]
