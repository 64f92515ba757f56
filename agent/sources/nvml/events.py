"""Wait for NVML events of all GPUs in a thread of its own. Runs in the worker process only."""

import ctypes
import sys
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from agent.model.devices import Gpu, GpuUuid
from agent.sources.nvml import reader
from agent.sources.nvml.outcomes import Failure, ReadError, Value
from agent.sources.nvml.protocol import XidEvent

XID = 0x8  # nvmlEventTypeXidCriticalError
MIG_CONFIG_CHANGE = 0x100  # nvmlEventMigConfigChange
GPU_UNAVAILABLE = 0x4000  # nvmlEventTypeGpuUnavailableError, R570 and later
RECOVERY_ACTION = 0x8000  # nvmlEventTypeGpuRecoveryAction, R565 and later
WANTED = XID | MIG_CONFIG_CHANGE | GPU_UNAVAILABLE | RECOVERY_ACTION

WAIT_MS = 500  # how long a stop may take; an event itself ends the wait at once
NOT_ATTRIBUTED = 0xFFFFFFFF  # "no MIG instance", NVML's nvmlEventData_t


class EventPump:
    """One NVML event set and the thread that waits on it.

    The three callbacks are called on that thread: ``on_xid``; ``on_change`` when an event says that a poll would
    find something new; ``on_broken`` when the set cannot be waited on any more (GPU_IS_LOST of any of its GPUs
    comes back at once, for ever, and does not say of which one). The thread has ended by then.
    """

    def __init__(
        self,
        *,
        nvml: reader.Reader,
        on_xid: Callable[[XidEvent], None],
        on_change: Callable[[], None],
        on_broken: Callable[[Failure], None],
    ) -> None:
        self._nvml = nvml
        self._on_xid = on_xid
        self._on_change = on_change
        self._on_broken = on_broken
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._set: Any = None
        self._origins: dict[int | None, Gpu] = {}
        self.gpus: frozenset[GpuUuid] = frozenset()

    def start(self, gpus: Iterable[Gpu]) -> None:
        """Register these GPUs for the wanted events that they support, and wait for them.

        GPUs that support none are left to polling. Events are registered on whole GPUs; those of MIG instances
        arrive there with their ids.
        """
        wanted = tuple(gpus)
        self.gpus = frozenset(gpu.uuid for gpu in wanted)
        created = self._nvml.ask("nvmlEventSetCreate")
        if not isinstance(created, Value):
            return
        self._set = created.value
        for gpu in wanted:
            self._register(gpu)
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

    def _register(self, gpu: Gpu) -> None:
        handle = self._nvml.ask("nvmlDeviceGetHandleByUUID", gpu.uuid)
        if not isinstance(handle, Value):
            return
        supported = self._nvml.ask("nvmlDeviceGetSupportedEventTypes", handle.value)
        mask = supported.value & WANTED if isinstance(supported, Value) else 0
        if not mask:
            return
        registered = self._nvml.ask("nvmlDeviceRegisterEvents", handle.value, mask, self._set)
        if isinstance(registered, Value):
            self._origins[_address(handle.value)] = gpu
        else:
            sys.stderr.write(f"NVML events of {gpu.uuid} cannot be had ({registered}); it is polled only\n")

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
        if event.eventType == XID and gpu is not None:
            self._on_xid(
                XidEvent(
                    observed_at=time.time(),
                    code=int(event.eventData),
                    uuid=gpu.uuid,
                    pci=gpu.pci,
                    gpu_instance=_attributed(event.gpuInstanceId),
                    compute_instance=_attributed(event.computeInstanceId),
                )
            )
        self._on_change()


def _address(handle: Any) -> int | None:
    return ctypes.cast(handle, ctypes.c_void_p).value


def _attributed(instance: int) -> int | None:
    return None if instance == NOT_ATTRIBUTED else int(instance)
