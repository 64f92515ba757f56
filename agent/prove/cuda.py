"""Call the CUDA driver API (``libcuda.so.1``) by ctypes. Runs in the worker process only: any call can block.

Every symbol here exists in all drivers since R418, also those of CUDA 13. Contexts are the devices' primary ones.
"""

import contextlib
import ctypes
from collections.abc import Iterator
from typing import Final

from kubemend.agent.prove.measurements import Test
from kubemend.agent.sources.nvml.calls import Calls

LIBRARY: Final = "libcuda.so.1"

OUT_OF_MEMORY: Final = 2
PEER_ACCESS_ALREADY_ENABLED: Final = 704

_MULTIPROCESSORS, _COMPUTE_MODE, _MEMORY_CLOCK_KHZ, _BUS_BITS = 16, 20, 36, 37  # CU_DEVICE_ATTRIBUTE_*
_TRANSFERS_PER_CLOCK = 2  # double data rate

_FUNCTIONS: Final = (
    "cuInit", "cuGetErrorName", "cuDeviceGet", "cuDeviceGetAttribute", "cuDevicePrimaryCtxRetain",
    "cuDevicePrimaryCtxRelease_v2", "cuCtxSetCurrent", "cuCtxSynchronize", "cuModuleLoadData", "cuModuleGetFunction",
    "cuMemGetInfo_v2", "cuMemAlloc_v2", "cuMemFree_v2", "cuMemAllocHost_v2", "cuMemFreeHost", "cuMemcpyHtoD_v2",
    "cuMemcpyDtoH_v2", "cuMemsetD8_v2", "cuLaunchKernel", "cuEventCreate", "cuEventRecord", "cuEventSynchronize",
    "cuEventElapsedTime", "cuDeviceCanAccessPeer", "cuCtxEnablePeerAccess", "cuMemcpyPeer",
)  # fmt: skip


class CudaError(Exception):
    """A call returned an error."""

    def __init__(self, call: str, code: int, name: str) -> None:
        super().__init__(f"{call}: {name} ({code})")
        self.call, self.code, self.name = call, code, name


class Cuda:
    """The driver API. ``test`` and ``pair`` name the work, for the report of a call that hangs or fails."""

    def __init__(self, calls: Calls) -> None:
        """Load the library. Raises OSError when it cannot be loaded, AttributeError when it lacks a function."""
        self._calls = calls
        self._library = ctypes.CDLL(LIBRARY)
        for name in _FUNCTIONS:
            getattr(self._library, name).restype = ctypes.c_int
        has_v2 = hasattr(self._library, "cuDeviceGetUuid_v2")
        self._get_uuid = "cuDeviceGetUuid_v2" if has_v2 else "cuDeviceGetUuid"
        self.test: Test | None = None
        self.pair: tuple[str, str] | None = None

    def call(self, name: str, *arguments: object) -> None:
        """Call a function. Raises CudaError."""
        with self._calls.during(name):
            code = getattr(self._library, name)(*arguments)
        if code:
            raise CudaError(name, code, self._error_name(code))

    def device(self, index: int) -> int:
        """Return the handle of a visible device."""
        device = ctypes.c_int()
        self.call("cuDeviceGet", ctypes.byref(device), index)
        return device.value

    def uuid(self, device: int) -> str:
        """Return a device's UUID as NVML writes it; for a MIG instance, its own."""
        raw = (ctypes.c_ubyte * 16)()
        self.call(self._get_uuid, raw, device)
        text = bytes(raw).hex()
        return f"GPU-{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"

    def multiprocessors(self, device: int) -> int:
        """Return the number of streaming multiprocessors."""
        return self._attribute(device, _MULTIPROCESSORS)

    def compute_mode(self, device: int) -> int:
        """Return CU_COMPUTEMODE_*."""
        return self._attribute(device, _COMPUTE_MODE)

    def nominal_rate(self, device: int) -> float:
        """Return the memory's nominal bandwidth in bytes per second; 0 where the driver does not report it."""
        clock, bits = self._attribute(device, _MEMORY_CLOCK_KHZ), self._attribute(device, _BUS_BITS)
        return _TRANSFERS_PER_CLOCK * clock * 1000.0 * bits / 8

    def can_access(self, device: int, peer: int) -> bool:
        """Return whether ``device`` can access the memory of ``peer``."""
        able = ctypes.c_int()
        self.call("cuDeviceCanAccessPeer", ctypes.byref(able), device, peer)
        return bool(able.value)

    def _attribute(self, device: int, attribute: int) -> int:
        value = ctypes.c_int()
        self.call("cuDeviceGetAttribute", ctypes.byref(value), attribute, device)
        return value.value

    def _error_name(self, code: int) -> str:
        name = ctypes.c_char_p()
        self._library.cuGetErrorName(code, ctypes.byref(name))
        return name.value.decode(errors="replace") if name.value is not None else f"error {code}"


class Context:
    """The primary context of a device, with the module ``ptx`` in it. All addresses are of this device."""

    def __init__(self, cuda: Cuda, device: int, *, ptx: str) -> None:
        self._cuda = cuda
        self.device = device
        self.handle = ctypes.c_void_p()
        cuda.call("cuDevicePrimaryCtxRetain", ctypes.byref(self.handle), device)
        self.use()
        self._module = ctypes.c_void_p()
        cuda.call("cuModuleLoadData", ctypes.byref(self._module), ctypes.c_char_p(ptx.encode()))
        self._functions: dict[str, ctypes.c_void_p] = {}
        self._began, self._ended = self._event(), self._event()

    def use(self) -> None:
        """Make this the thread's current context."""
        self._cuda.call("cuCtxSetCurrent", self.handle)

    def close(self) -> None:
        """Release the context, and with it all memory and the module."""
        self._cuda.call("cuDevicePrimaryCtxRelease_v2", self.device)

    def memory(self) -> tuple[int, int]:
        """Return the device's free and total memory in bytes."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self._cuda.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value, total.value

    def alloc(self, size: int) -> int:
        """Allocate device memory and return its address."""
        address = ctypes.c_uint64()
        self._cuda.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
        return address.value

    def free(self, address: int) -> None:
        """Free device memory."""
        self._cuda.call("cuMemFree_v2", ctypes.c_uint64(address))

    @contextlib.contextmanager
    def host_memory(self, size: int) -> Iterator[int]:
        """Provide host memory that the device can access, by its address."""
        address = ctypes.c_void_p()
        self._cuda.call("cuMemAllocHost_v2", ctypes.byref(address), ctypes.c_size_t(size))
        assert address.value is not None
        yield address.value
        self._cuda.call("cuMemFreeHost", address)

    def zero(self, address: int, size: int) -> None:
        """Set device memory to zero."""
        self._cuda.call("cuMemsetD8_v2", ctypes.c_uint64(address), ctypes.c_ubyte(0), ctypes.c_size_t(size))

    def to_device(self, address: int, source: int, size: int) -> None:
        """Copy from host memory."""
        self._cuda.call("cuMemcpyHtoD_v2", ctypes.c_uint64(address), ctypes.c_void_p(source), ctypes.c_size_t(size))

    def to_host(self, target: int, address: int, size: int) -> None:
        """Copy to host memory; after all kernels launched before."""
        self._cuda.call("cuMemcpyDtoH_v2", ctypes.c_void_p(target), ctypes.c_uint64(address), ctypes.c_size_t(size))

    def from_peer(self, address: int, *, peer: "Context", source: int, size: int) -> None:
        """Copy from the memory of another device."""
        self._cuda.call(
            "cuMemcpyPeer",
            ctypes.c_uint64(address),
            self.handle,
            ctypes.c_uint64(source),
            peer.handle,
            ctypes.c_size_t(size),
        )

    def enable_peer(self, peer: "Context") -> None:
        """Let this device access the memory of ``peer`` directly."""
        try:
            self._cuda.call("cuCtxEnablePeerAccess", peer.handle, 0)
        except CudaError as error:
            if error.code != PEER_ACCESS_ALREADY_ENABLED:
                raise

    def launch(self, name: str, *arguments: "ctypes.c_uint64 | ctypes.c_uint32", blocks: int, threads: int) -> None:
        """Launch a kernel; it runs after those launched before."""
        pointers = (ctypes.c_void_p * len(arguments))(*(ctypes.addressof(each) for each in arguments))
        shape = (blocks, 1, 1, threads, 1, 1, 0)
        self._cuda.call("cuLaunchKernel", self._function(name), *shape, None, pointers, None)

    def wait(self) -> None:
        """Wait until the device has done all that it was given."""
        self._cuda.call("cuCtxSynchronize")

    def begin(self) -> None:
        """Start the device's stopwatch."""
        self._cuda.call("cuEventRecord", self._began, None)

    def seconds(self) -> float:
        """Wait for the device, and return the seconds since ``begin`` by its own clock."""
        self._cuda.call("cuEventRecord", self._ended, None)
        self._cuda.call("cuEventSynchronize", self._ended)
        milliseconds = ctypes.c_float()
        self._cuda.call("cuEventElapsedTime", ctypes.byref(milliseconds), self._began, self._ended)
        return milliseconds.value / 1000

    def _function(self, name: str) -> ctypes.c_void_p:
        if name not in self._functions:
            function = ctypes.c_void_p()
            self._cuda.call("cuModuleGetFunction", ctypes.byref(function), self._module, name.encode())
            self._functions[name] = function
        return self._functions[name]

    def _event(self) -> ctypes.c_void_p:
        event = ctypes.c_void_p()
        self._cuda.call("cuEventCreate", ctypes.byref(event), 0)
        return event
