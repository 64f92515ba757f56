"""Control the fake CUDA driver from outside: build it, describe its GPUs, break them while a client runs.

The state is one memory-mapped file (``hack.fakelibrary``). The GPUs have the UUIDs of the fake NVML's.
"""

import contextlib
import ctypes
import enum
import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, Self
from uuid import UUID

from hack import fakelibrary
from hack.fakenvml import control as fakenvml

LIBRARY = "libcuda.so.1"
STATE_VARIABLE = "KUBEMEND_FAKECUDA_STATE"

MIB = 1 << 20

_MEMORY = 72 * MIB  # small: it is real memory of this machine, and all of it is written and read
_HEADER: Final = fakelibrary.Header.read(Path(__file__).with_name("fakecuda.h"))
_State, _Gpu = _HEADER.structures["fake_state"], _HEADER.structures["fake_gpu"]


class Wrong(enum.IntEnum):
    """What a GPU does wrong: one bit, or (IDLE) nothing at all although every call succeeds; END ends the process."""

    NOTHING = 0
    MEMORY = 1
    INTEGER = 2
    FLOAT = 3
    FLOAT_ALWAYS = 4
    TO_DEVICE = 5
    TO_HOST = 6
    FROM_PEER = 7
    IDLE = 8
    TENSOR = 9
    END = 10


def build(directory: Path) -> Path:
    """Compile the library into ``directory`` and return its path. Raises the errors of ``compiler.build``."""
    exact = "-ffp-contract=off"  # a product and a sum are rounded once only where fmaf says so
    return fakelibrary.build(Path(__file__).with_name("fakecuda.c"), directory / LIBRARY, exact, "-lm")


class FakeCuda:
    """Control the fake CUDA driver of one state file, which it creates: ``gpus`` GPUs that work.

    Use it as a context manager, or call ``close``.
    """

    def __init__(self, state_path: Path, lib_dir: Path, *, gpus: int = 8) -> None:
        self.state_path = state_path
        self.lib_dir = lib_dir
        self._file = state_path.open("x+b")
        self._file.truncate(ctypes.sizeof(_State))
        self._map = mmap.mmap(self._file.fileno(), 0)
        self._state = _State.from_buffer(self._map)
        self._state.size = ctypes.sizeof(_State)
        for number in range(gpus):
            self._state.gpus[number] = _Gpu(
                uuid=(ctypes.c_uint8 * 16)(*UUID(fakenvml.gpu_uuid(number).removeprefix("GPU-")).bytes),
                memory_total=_MEMORY,
                slowness=1,
                peers=1,
                present=1,
            )
        self._state.magic = _HEADER.numbers["FAKE_MAGIC"]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file. Clients keep their mappings."""
        del self._state
        self._map.close()
        self._file.close()

    def env(self) -> dict[str, str]:
        """Return the environment that makes a child process load this driver."""
        return {**fakelibrary.environment(self.lib_dir), STATE_VARIABLE: str(self.state_path)}

    @contextlib.contextmanager
    def gpu(self, number: int) -> Iterator[Any]:
        """Provide the data of a GPU for changes, published when the block ends."""
        yield self._state.gpus[number]
        fakelibrary.publish(self._state)

    def wrong(self, wrong: Wrong, *, gpu: int) -> None:
        """Make a GPU answer wrong."""
        with self.gpu(gpu) as it:
            it.wrong = wrong

    def slow(self, factor: int, *, gpu: int) -> None:
        """Make a GPU need ``factor`` times as long, by its own clock; 1 ends it."""
        with self.gpu(gpu) as it:
            it.slowness = factor

    def error(self, function: str, result: int, *, gpu: int) -> None:
        """Make one function return this CUresult on a GPU; 0 ends it."""
        with self.gpu(gpu) as it:
            it.failing, it.result = function.encode(), result

    def hang(self, function: str, *, gpu: int) -> None:
        """Make one function block on a GPU until ``resume``."""
        with self.gpu(gpu) as it:
            it.hanging = function.encode()

    def resume(self) -> None:
        """Release all blocked calls."""
        for gpu in self._state.gpus:
            gpu.hanging = b""
        fakelibrary.publish(self._state)
