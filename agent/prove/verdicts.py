"""The verdict on one GPU, or on the copies between two."""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any


class Outcome(enum.Enum):
    """The state of a GPU. Only ``PASSED`` means that it was proven to work; ``UNKNOWN`` accuses nothing."""

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
    SHARED = "Shared"
    COMPUTE_MODE = "ComputeMode"
    TOO_LITTLE_MEMORY = "TooLittleMemory"
    NO_CUDA = "NoCuda"
    NO_PEER_ACCESS = "NoPeerAccess"

    NOT_VISIBLE = "NotVisible"
    NVML_UNCLEAR = "NvmlUnclear"
    INCOMPLETE = "Incomplete"


@dataclass(frozen=True, slots=True)
class Verdict:
    """An outcome, with its reason (None: passed), one line for people, and the evidence as plain JSON values."""

    outcome: Outcome
    reason: Reason | None = None
    message: str = ""
    evidence: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
