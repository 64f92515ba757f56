"""Read NVML through pynvml: each call an outcome, each GPU independently, so that one lost GPU hides no other.

Runs in the worker process only. The mapping of index to GPU is fixed for the life of one nvmlInit, so identities are
read once.
"""

import time
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, NewType

from kubemend.agent.health.gpu.readings import Vital
from kubemend.agent.model.devices import DeviceId, Gpu, PciAddress
from kubemend.agent.sources.nvml import gauges, mig
from kubemend.agent.sources.nvml.calls import (
    Calls,
    Failure,
    Lost,
    Outcome,
    ReadError,
    ResetRequired,
    Unsupported,
    Value,
)
from kubemend.agent.sources.nvml.protocol import Condition, DeviceAnswer, ProcessUse, Slot, Snapshot

Handle = NewType("Handle", object)

RECOVERY_ACTION_FIELD = 230  # NVML_FI_DEV_GET_GPU_RECOVERY_ACTION
_PROCESS_LISTS = (
    "nvmlDeviceGetComputeRunningProcesses",
    "nvmlDeviceGetGraphicsRunningProcesses",
    "nvmlDeviceGetMPSComputeRunningProcesses",
)

_FIELD_TYPES = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
"""The field of c_nvmlValue_t that holds the value, by nvmlValueType_t."""

SUCCESS = 0
NOT_SUPPORTED = 3
DRIVER_NOT_LOADED = 9
TIMEOUT = 10
LIBRARY_NOT_FOUND = 12
FUNCTION_NOT_FOUND = 13
GPU_IS_LOST = 15
RESET_REQUIRED = 16
LIB_RM_VERSION_MISMATCH = 18
UNKNOWN = 999


class Reader:
    """NVML of this process. ``pynvml`` is the module; ``calls`` tracks the calls in flight."""

    def __init__(self, *, pynvml: ModuleType, calls: Calls) -> None:
        self._pynvml = pynvml
        self._calls = calls
        self._gauges = gauges.Gauges(pynvml=pynvml, ask=self.ask, fields=self.fields)
        self._gpus: dict[int, Gpu] = {}  # by index, in their last identified state
        self._absent: set[str] = set()  # functions missing in the driver's library
        self._driver_version = ""

    def ask(self, function: str, *args: object, wait: float = 0.0) -> Outcome[Any]:
        """Call one NVML function; ``wait`` is the time in seconds that its own arguments let it wait.

        A function missing in the library is not called again.
        """
        if function in self._absent:
            return Unsupported()
        try:
            with self._calls.during(function, wait=wait):
                return Value(getattr(self._pynvml, function)(*args))
        except self._pynvml.NVMLError as error:
            if error.value == FUNCTION_NOT_FOUND:
                self._absent.add(function)
            return self._failure(error.value)

    def fields(self, handle: object, ids: Sequence[gauges.FieldId]) -> list[Outcome[int]]:
        """Read field values. Each has its own result code, which must be checked: unsupported is not 0."""
        answer = self.ask("nvmlDeviceGetFieldValues", handle, ids)
        if not isinstance(answer, Value):
            return [answer] * len(ids)
        return [
            Value(_number(field)) if field.nvmlReturn == SUCCESS else self._failure(field.nvmlReturn)
            for field in answer.value
        ]

    def init(self) -> Outcome[None]:
        """Load the library and initialise NVML."""
        outcome = self.ask("nvmlInit")
        if isinstance(outcome, Value):
            version = self.ask("nvmlSystemGetDriverVersion")
            self._driver_version = version.value if isinstance(version, Value) else ""
        return outcome

    def snapshot(self, *, full: bool = False, between: Callable[[], None] = lambda: None) -> Outcome[Snapshot]:
        """Poll every GPU. A failure means that not even their count could be read.

        A ``full`` poll reads all vitals, not only the cheap ones. ``between`` is called after each GPU, so that more
        urgent work need not wait for the whole poll.
        """
        count = self.ask("nvmlDeviceGetCount")
        if not isinstance(count, Value):
            return count
        slots = []
        for index in range(count.value):
            slots.append(self._slot(index, full=full))
            between()
        return Value(
            Snapshot(
                taken_at=time.time(),
                clock=time.monotonic(),
                driver_version=self._driver_version,
                slots=tuple(slots),
            )
        )

    def device(self, uuid: DeviceId) -> DeviceAnswer:
        """Return the current answer of one GPU or MIG instance."""
        handle = self.ask("nvmlDeviceGetHandleByUUID", uuid)
        if not isinstance(handle, Value):
            return DeviceAnswer(uuid=uuid, condition=_condition(handle), error=_explain(handle))
        memory = self.ask("nvmlDeviceGetMemoryInfo", handle.value)
        processes = self._processes(handle.value)
        recovery = self.recovery_action(handle.value)
        return DeviceAnswer(
            uuid=uuid,
            condition=_condition(memory, processes, recovery),
            memory_used=int(memory.value.used) if isinstance(memory, Value) else None,
            processes=processes.value if isinstance(processes, Value) else None,
            recovery_action=recovery.value if isinstance(recovery, Value) else None,
            error=_explain(memory, processes, recovery),
        )

    def _processes(self, handle: Handle) -> Outcome[tuple[ProcessUse, ...]]:
        """List the processes on the device: compute, graphics, and MPS clients.

        A process can be in several lists. Many devices and drivers do not have the last two.
        """
        listed = [self.ask(function, handle) for function in _PROCESS_LISTS]
        if (failure := next((each for each in listed if not isinstance(each, Value | Unsupported)), None)) is not None:
            return failure
        if isinstance(listed[0], Unsupported):
            return listed[0]
        return Value(_process_uses([process for each in listed if isinstance(each, Value) for process in each.value]))

    def recovery_action(self, handle: Handle) -> Outcome[int]:
        """Read the driver's recovery action."""
        return self.fields(handle, [RECOVERY_ACTION_FIELD])[0]

    def _slot(self, index: int, *, full: bool) -> Slot:
        handle = self.ask("nvmlDeviceGetHandleByIndex", index)
        if not isinstance(handle, Value):
            return self._unreachable(index, handle)
        gpu = self._identify(index, handle.value)
        if not isinstance(gpu, Value):
            return self._unreachable(index, gpu)
        self._gpus[index] = gpu.value
        readings = self._gauges.first(handle.value)
        recovery = readings[Vital.RECOVERY_ACTION, 0]
        if isinstance(recovery, Lost | ResetRequired):  # every other call would return the same
            return self._unreachable(index, recovery)
        mode = self.ask("nvmlDeviceGetMigMode", handle.value)
        instances = mig.instances(handle.value, mode=mode, ask=self.ask)
        self._gpus[index] = mig.put_into(gpu.value, instances)
        readings |= self._gauges.others(index, handle.value, full=full)
        if isinstance(mode, Value):
            readings[Vital.MIG_MODE, 0] = Value(int(mode.value[0]))
        proofs: Sequence[Outcome[Any]] = (recovery, instances, readings[Vital.REMAP_PENDING, 0])
        if all(isinstance(proof, Unsupported) for proof in proofs):  # a T4 or V100 with a driver before R570
            proofs = gauges.read_in_every_poll(readings)
        proofs = (*proofs, *gauges.failures(readings))
        return Slot(
            index=index,
            condition=_condition(*proofs),
            gpu=self._gpus[index],
            recovery_action=_or_none(recovery, unsupported=0),
            vitals=self._gauges.vitals(index, readings, full=full),
            error=_explain(*proofs),
        )

    def _unreachable(self, index: int, failure: Failure) -> Slot:
        gpu = self._gpus.get(index)
        condition = _condition(failure)
        if gpu is None and isinstance(failure, ReadError) and failure.code == UNKNOWN:
            condition = Condition.LOST  # NVML's answer for a GPU that was off the bus already at nvmlInit
        vitals = gauges.refused(failure) if isinstance(failure, ReadError) else None
        return Slot(index=index, condition=condition, gpu=gpu, vitals=vitals, error=_explain(failure))

    def _identify(self, index: int, handle: Handle) -> Outcome[Gpu]:
        if (known := self._gpus.get(index)) is not None:
            return Value(known)
        uuid = self.ask("nvmlDeviceGetUUID", handle)
        if not isinstance(uuid, Value):
            return uuid
        pci = self.ask("nvmlDeviceGetPciInfo", handle)
        if not isinstance(pci, Value):
            return pci
        minor = self.ask("nvmlDeviceGetMinorNumber", handle)
        name = self.ask("nvmlDeviceGetName", handle)
        return Value(
            Gpu(
                uuid=DeviceId(uuid.value),
                pci=PciAddress.parse(_text(pci.value.busId)),
                index=index,
                minor=_or_none(minor),
                name=_or_none(name) or "",
            )
        )

    def _failure(self, code: int) -> Failure:
        if code in (NOT_SUPPORTED, FUNCTION_NOT_FOUND):
            return Unsupported()
        if code == GPU_IS_LOST:
            return Lost()
        if code == RESET_REQUIRED:
            return ResetRequired()
        return ReadError(code=code, text=f"{self._pynvml.NVMLError(code)} (NVML error {code})")


def _condition(*outcomes: Outcome[Any]) -> Condition:
    """Return the condition of a device from these calls: proven by any of them, else whether any could be read."""
    if any(isinstance(outcome, Lost) for outcome in outcomes):
        return Condition.LOST
    if any(isinstance(outcome, ResetRequired) for outcome in outcomes):
        return Condition.RESET_REQUIRED
    if any(isinstance(outcome, Value) for outcome in outcomes):
        return Condition.ANSWERS
    return Condition.UNREADABLE if any(isinstance(outcome, ReadError) for outcome in outcomes) else Condition.ANSWERS


def _explain(*outcomes: Outcome[Any]) -> str:
    if any(isinstance(outcome, Lost) for outcome in outcomes):
        return "GPU is lost"
    if any(isinstance(outcome, ResetRequired) for outcome in outcomes):
        return "GPU requires reset"
    return next((outcome.text for outcome in outcomes if isinstance(outcome, ReadError)), "")


def _or_none(outcome: Outcome[Any], *, unsupported: Any = None) -> Any:
    if isinstance(outcome, Value):
        return outcome.value
    return unsupported if isinstance(outcome, Unsupported) else None


def _process_uses(processes: Sequence[Any]) -> tuple[ProcessUse, ...]:
    """Return each process once; each list gives the same memory size, or none (pynvml: None)."""
    used: dict[int, int | None] = {}
    for process in processes:
        sizes = [size for size in (used.get(process.pid), process.usedGpuMemory) if size is not None]
        used[process.pid] = max(sizes, default=None)
    return tuple(ProcessUse(pid=pid, used=size) for pid, size in used.items())


def _number(field: Any) -> int:
    return int(getattr(field.value, _FIELD_TYPES[field.valueType]))


def _text(value: str | bytes) -> str:
    return value.decode(errors="backslashreplace") if isinstance(value, bytes) else value
