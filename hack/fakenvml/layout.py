"""Mirror the fake NVML's shared state (``fakenvml.h``) as ctypes structures."""

import ctypes
import enum

MAGIC = 0x4C4D564E
VERSION = 3
GPUS = 16
MIGS = 8
PROCESSES = 16
FIELDS = 32
LINKS = 18
LINK_COUNTERS = 4
ERRORS = 8
EVENTS = 256
TEXT = 96
NOT_AVAILABLE = (1 << 64) - 1


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


class Event(ctypes.Structure):
    """One queued NVML event."""

    _fields_ = (
        ("type", ctypes.c_uint64),
        ("data", ctypes.c_uint64),
        ("gpu", ctypes.c_uint32),
        ("gpu_instance", ctypes.c_uint32),
        ("compute_instance", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32),
    )


class Field(ctypes.Structure):
    """One value of nvmlDeviceGetFieldValues, with an nvmlReturn and an nvmlValueType of its own."""

    _fields_ = (
        ("value", ctypes.c_uint64),
        ("id", ctypes.c_uint32),
        ("result", ctypes.c_uint32),
        ("type", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32),
    )


class Link(ctypes.Structure):
    """One NVLink; ``counters``: replays, recoveries, receive errors, recovery events."""

    _fields_ = (
        ("counters", ctypes.c_uint64 * LINK_COUNTERS),
        ("present", ctypes.c_uint32),
        ("active", ctypes.c_uint32),
    )


class Error(ctypes.Structure):
    """The answer of one function on one GPU, in any state of the GPU."""

    _fields_ = (("function", ctypes.c_char * TEXT), ("result", ctypes.c_uint32), ("reserved", ctypes.c_uint32))


class Process(ctypes.Structure):
    """One process on a GPU; ``used`` in bytes, NOT_AVAILABLE where the driver does not report it."""

    _fields_ = (
        ("used", ctypes.c_uint64),
        ("pid", ctypes.c_uint32),
        ("gpu_instance", ctypes.c_uint32),
        ("compute_instance", ctypes.c_uint32),
        ("kind", ctypes.c_uint32),
    )


class Mig(ctypes.Structure):
    """One MIG device of a GPU."""

    _fields_ = (
        ("uuid", ctypes.c_char * TEXT),
        ("memory_total", ctypes.c_uint64),
        ("present", ctypes.c_uint32),
        ("gpu_instance", ctypes.c_uint32),
        ("compute_instance", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32),
    )


class Gpu(ctypes.Structure):
    """One GPU. Memory in bytes, clocks in MHz, temperatures in °C, utilization in percent.

    ``ecc_…``: corrected and uncorrected, of each the volatile and the aggregate count. ``remapped``: correctable,
    uncorrectable, pending, failure. ``link_results`` is the nvmlReturn of each of the links' counters as a field.
    """

    _fields_ = (
        ("name", ctypes.c_char * TEXT),
        ("uuid", ctypes.c_char * TEXT),
        ("serial", ctypes.c_char * TEXT),
        ("memory_total", ctypes.c_uint64),
        ("memory_used", ctypes.c_uint64),
        ("supported_events", ctypes.c_uint64),
        ("clocks_event_reasons", ctypes.c_uint64),
        ("ecc_dram", ctypes.c_uint64 * 2 * 2),
        ("ecc_sram", ctypes.c_uint64 * 2 * 2),
        ("present", ctypes.c_uint32),
        ("fault", ctypes.c_uint32),
        ("hang_groups", ctypes.c_uint32),
        ("domain", ctypes.c_uint32),
        ("bus", ctypes.c_uint32),
        ("device", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("remapped", ctypes.c_uint32 * 4),
        ("mig_mode", ctypes.c_uint32),
        ("persistence", ctypes.c_uint32),
        ("temperature", ctypes.c_uint32),
        ("power_mw", ctypes.c_uint32),
        ("slowdown_temperature", ctypes.c_uint32),
        ("memory_max_temperature", ctypes.c_uint32),
        ("utilization", ctypes.c_uint32),
        ("sm_clock", ctypes.c_uint32),
        ("sm_clock_max", ctypes.c_uint32),
        ("pstate", ctypes.c_uint32),
        ("pcie_generation", ctypes.c_uint32),
        ("pcie_generation_max", ctypes.c_uint32),
        ("pcie_width", ctypes.c_uint32),
        ("pcie_width_max", ctypes.c_uint32),
        ("pcie_replays", ctypes.c_uint32),
        ("retirement_pending", ctypes.c_uint32),
        ("sram_threshold_exceeded", ctypes.c_uint32),
        ("fabric_state", ctypes.c_uint32),
        ("fabric_status", ctypes.c_uint32),
        ("fabric_mask", ctypes.c_uint32),
        ("fabric_summary", ctypes.c_uint32),
        ("link_results", ctypes.c_uint32 * LINK_COUNTERS),
        ("process_count", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32),
        ("links", Link * LINKS),
        ("errors", Error * ERRORS),
        ("fields", Field * FIELDS),
        ("processes", Process * PROCESSES),
        ("migs", Mig * MIGS),
    )


class State(ctypes.Structure):
    """The whole file."""

    _fields_ = (
        ("magic", ctypes.c_uint32),
        ("version", ctypes.c_uint32),
        ("size", ctypes.c_uint32),
        ("generation", ctypes.c_uint32),
        ("driver", ctypes.c_uint32),
        ("hang_groups", ctypes.c_uint32),
        ("slow_groups", ctypes.c_uint32),
        ("slow_ms", ctypes.c_uint32),
        ("event_head", ctypes.c_uint32),
        ("cuda_version", ctypes.c_uint32),
        ("clock_event_ms", ctypes.c_uint32),
        ("call_cost_us", ctypes.c_uint32),
        ("driver_version", ctypes.c_char * TEXT),
        ("events", Event * EVENTS),
        ("gpus", Gpu * GPUS),
    )
