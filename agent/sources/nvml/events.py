"""Wait for NVML events of all GPUs in a thread of its own. Runs in the worker process only."""

import ctypes
import sys
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from kubemend.agent.model.devices import DeviceId, Gpu
from kubemend.agent.sources.nvml import reader
from kubemend.agent.sources.nvml.calls import Failure, ReadError, Unsupported, Value
from kubemend.agent.sources.nvml.protocol import DeviceEvent, DeviceEventKind, XidEvent

DOUBLE_BIT_ECC = 0x2  # nvmlEventTypeDoubleBitEccError
XID = 0x8  # nvmlEventTypeXidCriticalError
MIG_CONFIG_CHANGE = 0x100  # nvmlEventMigConfigChange
DRAM_RETIREMENT = 0x400  # nvmlEventTypeDramRetirementEvent
DRAM_RETIREMENT_FAILURE = 0x800  # nvmlEventTypeDramRetirementFailure
NON_FATAL_POISON = 0x1000  # nvmlEventTypeNonFatalPoisonError
FATAL_POISON = 0x2000  # nvmlEventTypeFatalPoisonError
GPU_UNAVAILABLE = 0x4000  # nvmlEventTypeGpuUnavailableError, R570 and later
RECOVERY_ACTION = 0x8000  # nvmlEventTypeGpuRecoveryAction, R565 and later

EVENT_KINDS = {GPU_UNAVAILABLE: DeviceEventKind.GPU_UNAVAILABLE, FATAL_POISON: DeviceEventKind.MEMORY_POISONED}
"""Events with a meaning of their own, as Xids have. All others only mean that a poll would find a change."""

WANTED = (
    DOUBLE_BIT_ECC
    | XID
    | MIG_CONFIG_CHANGE
    | DRAM_RETIREMENT
    | DRAM_RETIREMENT_FAILURE
    | NON_FATAL_POISON
    | FATAL_POISON
    | GPU_UNAVAILABLE
    | RECOVERY_ACTION
)
"""The registered events. The others would only cost polls.

On a healthy H100 the clocks change several times a second (0x10). No reading depends on the power source (0x80). The
next full poll counts the corrected errors of a storm (0x200).
"""

WAIT_MS = 500  # limit of the time that a stop takes; an event itself ends the wait immediately
NOT_ATTRIBUTED = 0xFFFFFFFF  # "no MIG instance", NVML's nvmlEventData_t


class EventPump:
    """One NVML event set and the thread that waits on it.

    The callbacks run on that thread. ``on_event``: an event describes what happened. ``on_change``: an event means that
    a poll would find a change. ``on_broken``: the set can no longer be waited on, and the thread has ended (GPU_IS_LOST
    of any of its GPUs returns immediately and repeatedly, without the GPU).
    """

    def __init__(
        self,
        *,
        nvml: reader.Reader,
        on_event: Callable[[XidEvent | DeviceEvent], None],
        on_change: Callable[[], None],
        on_broken: Callable[[Failure], None],
    ) -> None:
        self._nvml = nvml
        self._on_event = on_event
        self._on_change = on_change
        self._on_broken = on_broken
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._set: Any = None
        self._origins: dict[int | None, Gpu] = {}
        self.gpus: frozenset[DeviceId] = frozenset()
        self.failed: frozenset[DeviceId] = frozenset()
        """Those whose events could not be registered, although the driver has some for them."""

    def start(self, gpus: Iterable[Gpu]) -> None:
        """Register these GPUs for the wanted events that they support, and wait for them.

        GPUs that support none are left to polling. Events are registered on whole GPUs; events of MIG instances arrive
        there with their ids.
        """
        wanted = tuple(gpus)
        self.gpus = frozenset(gpu.uuid for gpu in wanted)
        created = self._nvml.ask("nvmlEventSetCreate")
        if not isinstance(created, Value):
            self.failed = self.gpus
            sys.stderr.write(f"no NVML event set can be created ({created})\n")
            return
        self._set = created.value
        self.failed = frozenset(gpu.uuid for gpu in wanted if not self._register(gpu))
        if self._origins:
            self._thread = threading.Thread(target=self._run, name="nvml-events", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """End the wait (within WAIT_MS, unless the driver hangs) and free the set."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()
        if self._set is not None:
            self._nvml.ask("nvmlEventSetFree", self._set)

    def _register(self, gpu: Gpu) -> bool:
        """Register a GPU's events; return False if that failed, and may succeed later."""
        handle = self._nvml.ask("nvmlDeviceGetHandleByUUID", gpu.uuid)
        if not isinstance(handle, Value):
            return False
        supported = self._nvml.ask("nvmlDeviceGetSupportedEventTypes", handle.value)
        if not isinstance(supported, Value):
            return isinstance(supported, Unsupported)
        mask = supported.value & WANTED
        failure: Failure | None = None
        for types in (mask, mask & XID):  # one event type that is not permitted fails the whole call
            if not types:
                break
            registered = self._nvml.ask("nvmlDeviceRegisterEvents", handle.value, types, self._set)
            if isinstance(registered, Value):
                self._origins[_address(handle.value)] = gpu
                return True
            failure = registered
            sys.stderr.write(f"NVML events {types:#x} of {gpu.uuid} cannot be registered ({registered})\n")
        return failure is None or isinstance(failure, Unsupported)

    def _run(self) -> None:
        while not self._stopping.is_set():
            outcome = self._nvml.ask("nvmlEventSetWait", self._set, WAIT_MS, wait=WAIT_MS / 1000)
            if isinstance(outcome, Value):
                self._deliver(outcome.value)
            elif not (isinstance(outcome, ReadError) and outcome.code == reader.TIMEOUT):
                self._on_broken(outcome)
                return

    def _deliver(self, event: Any) -> None:
        gpu = self._origins.get(_address(event.device))
        if gpu is not None and (converted := _converted(event, gpu)) is not None:
            self._on_event(converted)
        self._on_change()


def _converted(event: Any, gpu: Gpu) -> XidEvent | DeviceEvent | None:
    if event.eventType == XID:
        return XidEvent(
            observed_at=time.time(),
            code=int(event.eventData),
            uuid=gpu.uuid,
            pci=gpu.pci,
            gpu_instance=_attributed(event.gpuInstanceId),
            compute_instance=_attributed(event.computeInstanceId),
        )
    kind = EVENT_KINDS.get(event.eventType)
    if kind is None:
        return None
    return DeviceEvent(observed_at=time.time(), kind=kind, uuid=gpu.uuid, pci=gpu.pci)


def _address(handle: Any) -> int | None:
    return ctypes.cast(handle, ctypes.c_void_p).value


def _attributed(instance: int) -> int | None:
    return None if instance == NOT_ATTRIBUTED else int(instance)
