"""Control the fake CUDA driver from outside: build it, describe its GPUs, break them while a client runs.

The state is one memory-mapped file (``hack.fakelibrary``). The GPUs have the UUIDs of the fake NVML's.
"""

import ctypes
import enum
from pathlib import Path
from typing import Final
from uuid import UUID

from hack import fakelibrary
from hack.fakenvml import control as fakenvml

LIBRARY = "libcuda.so.1"
STATE_VARIABLE = "KUBEMEND_FAKECUDA_STATE"

MIB = 1 << 20

_MEMORY = 72 * MIB  # small: it is real memory of this machine, and all of it is written and read
_HEADER: Final = fakelibrary.Header.read(Path(__file__).with_name("fakecuda.h"))


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


class FakeCuda(fakelibrary.Controlled):
    """Control the fake CUDA driver of one state file: ``gpus`` GPUs that work."""

    structure = _HEADER.structures["fake_state"]
    variable = STATE_VARIABLE

    def __init__(self, state_path: Path, lib_dir: Path, *, gpus: int = 8) -> None:
        super().__init__(state_path, lib_dir)
        with self._change() as state:
            state.magic, state.size = _HEADER.numbers["FAKE_MAGIC"], ctypes.sizeof(self.structure)
            for number in range(gpus):
                state.gpus[number] = _HEADER.structures["fake_gpu"](
                    uuid=(ctypes.c_uint8 * 16)(*UUID(fakenvml.gpu_uuid(number).removeprefix("GPU-")).bytes),
                    memory_total=_MEMORY,
                    slowness=1,
                    peers=1,
                    present=1,
                )

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
        with self._change() as state:
            for gpu in state.gpus:
                gpu.hanging = b""
