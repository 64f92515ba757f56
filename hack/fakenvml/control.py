"""Control the fake NVML from outside: build it, describe its GPUs, break and fix them while a client runs.

The state is one memory-mapped file (``hack.fakelibrary``) that any number of client processes read.
"""

import ctypes
import enum
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hack import fakelibrary
from hack.fakenvml import healthy, layout
from hack.fakenvml.layout import Driver, Fault, Group

LIBRARY = "libnvidia-ml.so.1"
STATE_VARIABLE = "KUBEMEND_FAKENVML_STATE"

GIB = healthy.GIB
RECOVERY_ACTION_FIELD = healthy.RECOVERY_ACTION_FIELD
EVENT_XID = 0x8
EVENT_CLOCK = 0x10
EVENT_POWER_SOURCE = 0x80
EVENT_CORRECTED_ECC_STORM = 0x200
EVENT_RECOVERY_ACTION = 0x8000
NO_INSTANCE = 0xFFFFFFFF

_UNSIGNED_LONG_LONG = 3  # NVML_VALUE_TYPE_UNSIGNED_LONG_LONG
_CLOCK_EVENT_MS = 200  # an H100 reports its clock changes several times a second


class RecoveryAction(enum.IntEnum):
    """Values of NVML field 230 (``NVML_GPU_RECOVERY_ACTION_*``)."""

    NONE = 0
    GPU_RESET = 1
    NODE_REBOOT = 2
    DRAIN_P2P = 3
    DRAIN_AND_RESET = 4


@dataclass(frozen=True, slots=True)
class MigSpec:
    """Describe a MIG device to put on a GPU."""

    gpu_instance: int
    compute_instance: int = 0
    memory_total: int = 10 * GIB


def build(directory: Path, *, old_driver: bool = False) -> Path:
    """Compile the library into ``directory`` and return its path. Raises the errors of ``compiler.build``.

    One of an ``old_driver`` (before R535) lacks the functions that came later.
    """
    flags = ("-pthread", *(("-DOLD_DRIVER",) if old_driver else ()))
    return fakelibrary.build(Path(__file__).with_name("fakenvml.c"), directory / LIBRARY, *flags)


def gpu_uuid(gpu: int) -> str:
    """Return the UUID of the fake GPU with that number."""
    return f"GPU-fa4e0000-0000-4000-8000-{gpu:012x}"


def kernel_address(gpu: int) -> str:
    """Return the address of the fake GPU with that number, as the driver writes it in the kernel log."""
    return f"0000:{_bus(gpu):02x}:00"


def _bus(gpu: int) -> int:
    return 0x10 + 0x0D * gpu


def mig_uuid(gpu: int, slot: int) -> str:
    """Return the UUID of a MIG device of a fake GPU."""
    return f"MIG-fa4e0000-0000-4000-8{slot:03x}-{gpu:012x}"


class FakeNvml(fakelibrary.Controlled):
    """Control the fake NVML of one state file; creates the file (8 healthy H100s) when there is none.

    GPUs are numbered as in the file, from 0 to 15; clients see the present ones in that order.
    """

    structure = layout.State
    variable = STATE_VARIABLE

    def __init__(self, state_path: Path, lib_dir: Path, *, gpus: int = 8) -> None:
        super().__init__(state_path, lib_dir)
        if self.is_fresh:
            self.reset(gpus=gpus)

    def reset(self, *, gpus: int = 8) -> None:
        """Repair everything: ``gpus`` GPUs, no faults, nothing hangs. Queued events stay queued."""
        with self._change() as state:
            state.magic, state.version, state.size = layout.MAGIC, layout.VERSION, ctypes.sizeof(layout.State)
            state.driver, state.hang_groups, state.slow_groups, state.slow_ms = Driver.LOADED, 0, 0, 0
            state.driver_version, state.cuda_version = b"595.71.05", 13010
            state.clock_event_ms, state.call_cost_us = _CLOCK_EVENT_MS, 0
            for number in range(layout.GPUS):
                state.gpus[number] = healthy.gpu(number, uuid=gpu_uuid(number), bus=_bus(number), present=number < gpus)

    # ---- the node ----

    def driver(self, driver: Driver) -> None:
        """Load or unload the driver, or upgrade it under the running clients (MISMATCH)."""
        with self._change() as state:
            state.driver = driver

    def hang(self, groups: Group = Group.ALL, *, gpu: int | None = None) -> None:
        """Make every call of these groups block until ``resume``: on the whole node, or on one GPU."""
        with self._change() as state:
            target = state if gpu is None else state.gpus[gpu]
            target.hang_groups |= groups

    def resume(self) -> None:
        """Release all blocked calls."""
        with self._change() as state:
            state.hang_groups = 0
            for gpu in state.gpus:
                gpu.hang_groups = 0

    def slow(self, groups: Group, *, milliseconds: int) -> None:
        """Delay every call of these groups; 0 ms ends it."""
        with self._change() as state:
            state.slow_groups, state.slow_ms = (groups if milliseconds else 0), milliseconds

    def cost(self, *, microseconds: int) -> None:
        """Have every getter use the processor so long, as the calls of a real driver do; 0 ends it."""
        with self._change() as state:
            state.call_cost_us = microseconds

    # ---- one GPU ----

    def fault(self, fault: Fault, *, gpu: int) -> None:
        """Set the answer of this GPU's getters."""
        with self._change() as state:
            state.gpus[gpu].fault = fault

    def lost(self, *, gpu: int) -> None:
        """Make the GPU answer GPU_IS_LOST, also in nvmlEventSetWait."""
        self.fault(Fault.LOST, gpu=gpu)

    def healthy(self, *, gpu: int) -> None:
        """Repair the GPU; clients that saw it lost see it again after their next nvmlInit."""
        self.fault(Fault.NONE, gpu=gpu)

    def remove(self, *, gpu: int) -> None:
        """Take the GPU off the bus."""
        with self._change() as state:
            state.gpus[gpu].present = 0

    def add(self, *, gpu: int) -> None:
        """Put the GPU back on the bus; clients list it after their next nvmlInit."""
        with self._change() as state:
            state.gpus[gpu].present = 1

    def recovery(self, action: int, *, gpu: int, event: bool = True) -> None:
        """Set field 230 of the GPU, and announce it by an event unless ``event`` is False."""
        self.field(RECOVERY_ACTION_FIELD, gpu=gpu, value=action)
        if event:
            self.event(EVENT_RECOVERY_ACTION, gpu=gpu)

    def field(
        self,
        field_id: int,
        *,
        gpu: int,
        value: int = 0,
        result: int = 0,
        value_type: int = _UNSIGNED_LONG_LONG,
    ) -> None:
        """Set one field value, its own nvmlReturn and its nvmlValueType (a negative value needs a signed one)."""
        with self._change() as state:
            fields = state.gpus[gpu].fields
            slot = next(entry for wanted in (field_id, 0) for entry in fields if entry.id == wanted)
            slot.id, slot.value, slot.result = field_id, value & layout.NOT_AVAILABLE, result
            slot.type = value_type

    def set(self, *, gpu: int, **readings: int) -> None:
        """Set plain numbers of the GPU (``layout.NUMBERS``). Raises ValueError for others."""
        if unknown := set(readings) - set(layout.NUMBERS):
            raise ValueError(f"a GPU has no {', '.join(sorted(unknown))}; there are {', '.join(layout.NUMBERS)}")
        with self._change() as state:
            for name, value in readings.items():
                setattr(state.gpus[gpu], name, value)

    def busy(self, *, gpu: int) -> None:
        """Make the GPU busy as a healthy one is: full utilization at full clocks, no clocks event reason."""
        with self._change() as state:
            target = state.gpus[gpu]
            target.utilization, target.clocks_event_reasons, target.sm_clock = 100, 0, target.sm_clock_max

    def ecc(self, *, gpu: int, corrected: int = 0, uncorrected: int = 0, sram: bool = False) -> None:
        """Set the volatile error counts of DRAM or SRAM."""
        with self._change() as state:
            counts = state.gpus[gpu].ecc_sram if sram else state.gpus[gpu].ecc_dram
            counts[0][0], counts[1][0] = corrected, uncorrected

    def link(
        self, number: int, *, gpu: int, active: bool = True, replays: int | None = None, recoveries: int | None = None
    ) -> None:
        """Set an NVLink's state, and, if given, its error counts since the driver was loaded."""
        with self._change() as state:
            link = state.gpus[gpu].links[number]
            link.active = int(active)
            for slot, count in enumerate((replays, recoveries)):
                if count is not None:
                    link.counters[slot] = count

    def links(self, count: int, *, gpu: int) -> None:
        """Set the number of the GPU's NVLinks; the others answer NOT_SUPPORTED."""
        with self._change() as state:
            for number, link in enumerate(state.gpus[gpu].links):
                link.present = int(number < count)

    def error(self, function: str, result: int, *, gpu: int) -> None:
        """Make one function answer this nvmlReturn on this GPU; 0 (SUCCESS) ends it."""
        with self._change() as state:
            errors = state.gpus[gpu].errors
            slot = next(entry for wanted in (function.encode(), b"") for entry in errors if entry.function == wanted)
            slot.function, slot.result = (function.encode() if result else b""), result

    def after_reset(self, *, gpu: int) -> None:
        """Clear all that a GPU reset clears, and restart every counter."""
        with self._change() as state:
            old = state.gpus[gpu]
            state.gpus[gpu] = healthy.gpu(gpu, uuid=old.uuid.decode(), bus=old.bus, present=bool(old.present))

    def remapped_rows(self, *, gpu: int, uncorrectable: int = 1, pending: bool = False, failure: bool = False) -> None:
        """Set the row-remapper's answer."""
        with self._change() as state:
            state.gpus[gpu].remapped[:] = (0, uncorrectable, int(pending), int(failure))

    def processes(
        self,
        used_by_pid: Mapping[int, int | None],
        *,
        gpu: int,
        gpu_instance: int = NO_INSTANCE,
        kind: layout.Kind = layout.Kind.COMPUTE,
        used: int | None = None,
    ) -> None:
        """Set the GPU's processes (pid: bytes used, None where the driver does not report it), all of one kind.

        The GPU's used memory follows, unless ``used`` sets it: memory may linger when its process has ended.
        """
        with self._change() as state:
            target = state.gpus[gpu]
            target.process_count = len(used_by_pid)
            target.memory_used = sum(each or 0 for each in used_by_pid.values()) if used is None else used
            for slot, (pid, each) in enumerate(used_by_pid.items()):
                target.processes[slot] = layout.Process(
                    used=layout.NOT_AVAILABLE if each is None else each,
                    pid=pid,
                    gpu_instance=gpu_instance,
                    compute_instance=NO_INSTANCE,
                    kind=kind,
                )

    def mig(self, *instances: MigSpec, gpu: int) -> None:
        """Turn MIG mode on with these instances, or off with none."""
        with self._change() as state:
            target = state.gpus[gpu]
            target.mig_mode = int(bool(instances))
            for slot in range(layout.MIGS):
                target.migs[slot] = layout.Mig()
            for slot, spec in enumerate(instances):
                target.migs[slot] = layout.Mig(
                    uuid=mig_uuid(gpu, slot).encode(),
                    memory_total=spec.memory_total,
                    present=1,
                    gpu_instance=spec.gpu_instance,
                    compute_instance=spec.compute_instance,
                )

    def supported_events(self, mask: int, *, gpu: int) -> None:
        """Set the answer of nvmlDeviceGetSupportedEventTypes."""
        with self._change() as state:
            state.gpus[gpu].supported_events = mask

    # ---- events ----

    def xid(self, *, gpu: int, code: int, gpu_instance: int = NO_INSTANCE, compute_instance: int = NO_INSTANCE) -> None:
        """Queue an Xid event."""
        self.event(EVENT_XID, gpu=gpu, data=code, gpu_instance=gpu_instance, compute_instance=compute_instance)

    def event(
        self,
        event_type: int,
        *,
        gpu: int,
        data: int = 0,
        gpu_instance: int = NO_INSTANCE,
        compute_instance: int = NO_INSTANCE,
        times: int = 1,
    ) -> None:
        """Queue any event for every event set that asked for it on this GPU; a storm is many ``times``."""
        with self._change() as state:
            for _ in range(times):
                state.events[state.event_head % layout.EVENTS] = layout.Event(
                    type=event_type,
                    data=data,
                    gpu=gpu,
                    gpu_instance=gpu_instance,
                    compute_instance=compute_instance,
                )
                state.event_head += 1
