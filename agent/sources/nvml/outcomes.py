"""The possible outcomes of one NVML call, as values. "Not supported" is not a fault, and an error is not an answer."""

from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Value(Generic[T]):
    """The call answered."""

    value: T


@dataclass(frozen=True, slots=True)
class Unsupported:
    """This device or driver does not have it (NOT_SUPPORTED, FUNCTION_NOT_FOUND). Never a fault."""


@dataclass(frozen=True, slots=True)
class Lost:
    """GPU_IS_LOST: the GPU has fallen off the bus or is otherwise inaccessible."""


@dataclass(frozen=True, slots=True)
class ResetRequired:
    """RESET_REQUIRED: every call on this GPU fails until it is reset."""


@dataclass(frozen=True, slots=True)
class ReadError:
    """Any other error: no evidence about the device. ``code`` is the nvmlReturn_t, ``text`` its name for people."""

    code: int
    text: str


Failure = Unsupported | Lost | ResetRequired | ReadError
Outcome = Value[T] | Failure
