"""Results of a worker as values, and as lines of JSON on its stdout. Pure."""

import dataclasses
import enum
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final


class Test(enum.Enum):
    """The parts of a proof."""

    __test__ = False  # not a test of pytest's

    INTEGER_PRODUCT = "integer-product"
    FLOAT_PRODUCT = "float-product"
    TENSOR_PRODUCT = "tensor-product"
    HOST_TO_DEVICE = "host-to-device"
    DEVICE_TO_HOST = "device-to-host"
    MEMORY = "memory"
    PEER = "peer"


PEERS: Final = "peers"
ONE_GPU: Final = "gpu"
"""What a worker is started for: its first argument."""

OF_ONE_GPU: Final = (
    Test.INTEGER_PRODUCT,
    Test.FLOAT_PRODUCT,
    Test.TENSOR_PRODUCT,
    Test.HOST_TO_DEVICE,
    Test.DEVICE_TO_HOST,
    Test.MEMORY,
)
"""Without one of these, a GPU is not proven."""


@dataclass(frozen=True, slots=True)
class Facts:
    """A GPU as CUDA shows it. Memory in bytes; None until a context exists.

    ``compute_mode``: CU_COMPUTEMODE_*; ``nominal_rate``: memory bandwidth in bytes per second, 0: unknown; ``needed``:
    the least free memory for a proof, in bytes.
    """

    uuid: str
    compute_mode: int = 0
    multiprocessors: int = 0
    nominal_rate: float = 0.0
    memory_free: int | None = None
    memory_total: int | None = None
    needed: int = 0

    def are_of(self, uuid: str) -> bool:
        """Return whether they are of the GPU with this UUID, and not of another device or a MIG instance."""
        return self.uuid.removeprefix("GPU-") == uuid.removeprefix("GPU-")


@dataclass(frozen=True, slots=True)
class Step:
    """One comparison: ``wrong`` of ``compared`` units differ, of ``planned`` ones.

    The first difference found is at ``offset`` (bytes from the start of the compared memory, None: no difference).
    ``moved`` bytes took ``seconds`` of the GPU's own clock. ``pair``: UUIDs of the source and the destination of a peer
    copy.
    """

    test: Test
    planned: int
    compared: int
    wrong: int
    offset: int | None = None
    expected: int = 0
    got: int = 0
    moved: int = 0
    seconds: float = 0.0
    detail: str = ""
    pair: tuple[str, str] | None = None


@dataclass(frozen=True, slots=True)
class NoAccess:
    """No copy was tried: by the driver, the pair's destination cannot access the memory of its source."""

    pair: tuple[str, str]


@dataclass(frozen=True, slots=True)
class CudaFailure:
    """A call of the driver API that returned an error. ``test`` is None before the first test."""

    call: str
    code: int
    name: str
    test: Test | None = None
    pair: tuple[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Hanging:
    """A call of the driver API that has not returned for ``seconds``."""

    call: str
    seconds: float
    test: Test | None = None
    pair: tuple[str, str] | None = None


@dataclass(frozen=True, slots=True)
class NoLibrary:
    """libcuda.so.1 cannot be loaded, or lacks a function."""

    error: str


@dataclass(frozen=True, slots=True)
class Finished:
    """All steps were done. The last message."""


Message = Facts | Step | NoAccess | CudaFailure | Hanging | NoLibrary | Finished


@dataclass(frozen=True, slots=True)
class Measured:
    """All that one worker reported. ``ended`` is how it ended, if without ``Finished`` or another reason."""

    facts: Facts | None = None
    steps: tuple[Step, ...] = ()
    no_access: tuple[NoAccess, ...] = ()
    failure: CudaFailure | None = None
    hanging: Hanging | None = None
    no_library: str | None = None
    finished: bool = False
    ended: str = ""


class MessageError(ValueError):
    """A line that is not a valid message of the worker."""


def encode(message: Message) -> bytes:
    """Return the message as one line."""
    body = {"type": type(message).__name__, **dataclasses.asdict(message)}
    return json.dumps(body, default=lambda each: each.value, separators=(",", ":")).encode() + b"\n"


def decode(line: bytes) -> Message:
    """Decode one line. Raises MessageError when it is not a valid message."""
    try:
        body = json.loads(line)
        return _TYPES[body.pop("type")](**_plain(body))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise MessageError(f"not a message of the prove worker: {line[:200]!r}") from error


def gathered(messages: Iterable[Message], *, ended: str = "") -> Measured:
    """Fold the messages of one worker, in their order, into one value."""
    measured = Measured(ended=ended)
    for message in messages:
        match message:
            case Facts():
                measured = replace(measured, facts=message)
            case Step():
                measured = replace(measured, steps=(*measured.steps, message))
            case NoAccess():
                measured = replace(measured, no_access=(*measured.no_access, message))
            case CudaFailure():
                measured = replace(measured, failure=message)
            case Hanging():
                measured = replace(measured, hanging=message)
            case NoLibrary():
                measured = replace(measured, no_library=message.error)
            case Finished():
                measured = replace(measured, finished=True)
    return measured


def _plain(body: Mapping[str, Any]) -> dict[str, Any]:
    test, pair = body.get("test"), body.get("pair")
    changed = {"test": Test(test) if test is not None else None, "pair": tuple(pair) if pair is not None else None}
    return {**body, **{name: value for name, value in changed.items() if name in body}}


_TYPES: Final[Mapping[str, Callable[..., Message]]] = {
    each.__name__: each for each in (Facts, Step, NoAccess, CudaFailure, Hanging, NoLibrary, Finished)
}
