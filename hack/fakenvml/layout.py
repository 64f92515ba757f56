"""Name the structures of the fake NVML's shared state (``fakenvml.h``), and the values of their enumerations."""

import ctypes
import enum
from pathlib import Path
from typing import Any, Final

from hack.fakelibrary import Header

_HEADER: Final = Header.read(Path(__file__).with_name("fakenvml.h"))
MAGIC, VERSION, GPUS, MIGS, EVENTS = (
    _HEADER.numbers[f"FAKE_{name}"] for name in ("MAGIC", "VERSION", "GPUS", "MIGS", "EVENTS")
)
NOT_AVAILABLE = (1 << 64) - 1

# Memory is in bytes, clocks in MHz, temperatures in °C, utilization in percent.
State: Final[Any] = _HEADER.structures["fake_state"]
Gpu: Final[Any] = _HEADER.structures["fake_gpu"]
Mig: Final[Any] = _HEADER.structures["fake_mig"]
Process: Final[Any] = _HEADER.structures["fake_process"]
Field: Final[Any] = _HEADER.structures["fake_field"]
Event: Final[Any] = _HEADER.structures["fake_event"]

NUMBERS: Final = tuple(name for name, kind in Gpu._fields_ if kind in (ctypes.c_uint32, ctypes.c_uint64))
"""The names of a GPU's plain numbers."""


class Driver(enum.IntEnum):
    """The driver's state at nvmlInit."""

    LOADED = 0
    ABSENT = 1
    MISMATCH = 2


class Fault(enum.IntEnum):
    """The answer of every getter of a GPU: nothing special, GPU_IS_LOST, RESET_REQUIRED or UNKNOWN."""

    NONE = 0
    LOST = 1
    RESET_REQUIRED = 2
    UNKNOWN = 3


class Group(enum.IntFlag):
    """Functions that hang or are slow together."""

    INIT = 1
    HANDLES = 2
    GETTERS = 4
    EVENTS = 8
    ALL = 15


class Kind(enum.IntEnum):
    """NVML's three lists of processes."""

    COMPUTE = 0
    GRAPHICS = 1
    MPS = 2
