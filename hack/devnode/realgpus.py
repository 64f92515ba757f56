"""Let a dev node use this machine's own GPUs: what there is, and what a container needs to compute on them.

A real node has NVIDIA's container toolkit for that. Here the device plugin's answer names the device nodes and the few
libraries of the driver that CUDA loads, so that any image with a libc works.
"""

import ctypes
import json
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

LIBRARIES: Final = "/opt/driver/lib"
"""The directory of the driver's libraries in a container."""

_LIST: Final = """
import json, pynvml as nvml
nvml.nvmlInit()
handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
print(json.dumps([[nvml.nvmlDeviceGetUUID(each), nvml.nvmlDeviceGetMinorNumber(each)] for each in handles]))
"""
_COMMON_NODES: Final = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset")
_LIBRARY_NAMES: Final = ("libcuda", "libnvidia-ml", "libnvidia-ptxjitcompiler", "libnvidia-nvvm", "libnvidia-gpucomp")
_SECONDS: Final = 60.0


class NoGpusError(RuntimeError):
    """This machine has no GPU that can be used. The message is one line: the reason."""


@dataclass(frozen=True, slots=True)
class RealGpu:
    """Describe a GPU. ``minor`` is the number of its device node."""

    uuid: str
    minor: int

    @property
    def node(self) -> Path:
        """Return its device node."""
        return Path(f"/dev/nvidia{self.minor}")


def find() -> tuple[RealGpu, ...]:
    """Return the machine's GPUs, in NVML's order. Raises NoGpusError.

    A process of its own asks the driver, as a stuck one may hang it.
    """
    try:
        asked = subprocess.run(
            [sys.executable, "-c", _LIST], capture_output=True, text=True, timeout=_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        raise NoGpusError("the NVIDIA driver does not answer") from None
    if asked.returncode != 0:
        raise NoGpusError(f"no usable NVIDIA GPU: {asked.stderr.strip().splitlines()[-1]}")
    return tuple(RealGpu(uuid, minor) for uuid, minor in json.loads(asked.stdout))


def device_nodes(gpus: Iterable[RealGpu], *, directory: Path = Path("/dev")) -> list[Path]:
    """Return the device nodes with which a process computes on these GPUs."""
    common = (directory / name for name in _COMMON_NODES)
    return [*(directory / each.node.name for each in gpus), *(path for path in common if path.exists())]


def libraries() -> dict[str, Path]:
    """Return the driver's libraries by their paths in a container. Raises NoGpusError."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise NoGpusError(f"no usable CUDA driver: {error}") from None
    return named_libraries(_directory_of("libcuda.so", Path("/proc/self/maps").read_text().splitlines()))


def named_libraries(directory: Path) -> dict[str, Path]:
    """Return what a container needs of the driver's directory: each name that programs load, and its file."""
    found = (path for name in _LIBRARY_NAMES for path in sorted(directory.glob(f"{name}*.so*")))
    return {f"{LIBRARIES}/{path.name}": path.resolve() for path in found}


def _directory_of(library: str, maps: Sequence[str]) -> Path:
    """Return the directory of a library that this process has loaded (proc(5), maps)."""
    return next(Path(line.split(maxsplit=5)[5]).parent for line in maps if f"/{library}" in line)
