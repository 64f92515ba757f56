"""What one NVML call can come to, as values. "Not supported" is no fault, and an error is no answer."""

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
    """Any other error: it says nothing about the device. ``code`` is the nvmlReturn_t, ``text`` its name for people."""

    code: int
    text: str


Failure = Unsupported | Lost | ResetRequired | ReadError
Outcome = Value[T] | Failure
