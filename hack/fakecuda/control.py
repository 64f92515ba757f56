"""Control the fake CUDA driver from outside: build it, describe its GPUs, break them while a client runs.

The state is one memory-mapped file, as of ``hack.fakenvml.control``. The GPUs have the UUIDs of the fake NVML's.
"""

import contextlib
import ctypes
import enum
import mmap
import os
import platform
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Self
from uuid import UUID

from hack.fakenvml import control as fakenvml

LIBRARY = "libcuda.so.1"
STATE_VARIABLE = "KUBEMEND_FAKECUDA_STATE"

MIB = 1 << 20

_MAGIC = 0x41445543
_GPUS = 16
_TEXT = 48
_MEMORY = 72 * MIB  # small: it is real memory of this machine, and all of it is written and read
_SYS_FUTEX = {"x86_64": 202, "aarch64": 98}
_FUTEX_WAKE = 1
_EVERYONE = 0x7FFFFFFF


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


class Gpu(ctypes.Structure):
    """One GPU (``fakecuda.h``)."""

    _fields_ = (
        ("uuid", ctypes.c_uint8 * 16),
        ("hanging", ctypes.c_char * _TEXT),
        ("failing", ctypes.c_char * _TEXT),
        ("memory_total", ctypes.c_uint64),
        ("memory_used", ctypes.c_uint64),
        ("result", ctypes.c_uint32),
        ("wrong", ctypes.c_uint32),
        ("slowness", ctypes.c_uint32),
        ("compute_mode", ctypes.c_uint32),
        ("peers", ctypes.c_uint32),
        ("present", ctypes.c_uint32),
    )


class State(ctypes.Structure):
    """The whole file (``fakecuda.h``)."""

    _fields_ = (
        ("magic", ctypes.c_uint32),
        ("size", ctypes.c_uint32),
        ("generation", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32),
        ("gpus", Gpu * _GPUS),
    )


def build(directory: Path) -> Path:
    """Compile the library with ``cc`` into ``directory`` and return its path.

    Raises subprocess.CalledProcessError when the compiler fails, FileNotFoundError when there is none.
    """
    directory.mkdir(parents=True, exist_ok=True)
    target = directory / LIBRARY
    fresh = directory / f".{LIBRARY}.{os.getpid()}"
    source = Path(__file__).with_name("fakecuda.c")
    flags = ["-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", "-fvisibility=hidden"]
    exact = "-ffp-contract=off"  # a product and a sum are rounded once only where fmaf says so
    subprocess.run(["cc", *flags, exact, f"-Wl,-soname,{LIBRARY}", str(source), "-o", str(fresh), "-lm"], check=True)
    return fresh.replace(target)


class FakeCuda:
    """Control the fake CUDA driver of one state file, which it creates: ``gpus`` GPUs that work.

    Use it as a context manager, or call ``close``.
    """

    def __init__(self, state_path: Path, lib_dir: Path, *, gpus: int = 8) -> None:
        self.state_path = state_path
        self.lib_dir = lib_dir
        self._file = state_path.open("x+b")
        self._file.truncate(ctypes.sizeof(State))
        self._map = mmap.mmap(self._file.fileno(), 0)
        self._state = State.from_buffer(self._map)
        self._state.size = ctypes.sizeof(State)
        for number in range(gpus):
            self._state.gpus[number] = Gpu(
                uuid=(ctypes.c_uint8 * 16)(*UUID(fakenvml.gpu_uuid(number).removeprefix("GPU-")).bytes),
                memory_total=_MEMORY,
                slowness=1,
                peers=1,
                present=1,
            )
        self._state.magic = _MAGIC

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
        path = os.environ.get("LD_LIBRARY_PATH")
        return {
            "LD_LIBRARY_PATH": f"{self.lib_dir}:{path}" if path else str(self.lib_dir),
            STATE_VARIABLE: str(self.state_path),
        }

    @contextlib.contextmanager
    def gpu(self, number: int) -> Iterator[Gpu]:
        """Provide the data of a GPU for changes, published when the block ends."""
        yield self._state.gpus[number]
        self._publish()

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
        self._publish()

    def _publish(self) -> None:
        self._state.generation += 1
        word = ctypes.addressof(self._state) + State.generation.offset
        ctypes.CDLL(None).syscall(_SYS_FUTEX[platform.machine()], ctypes.c_void_p(word), _FUTEX_WAKE, _EVERYONE)
