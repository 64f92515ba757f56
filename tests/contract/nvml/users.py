"""Provide a process on a GPU: a real CUDA context, or one that the fake is configured with."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from hack.fakenvml import control
from tests.contract.nvml import real

MEMORY = 512 << 20

# Holds a context and MEMORY bytes on the first GPU until its stdin is closed or it is killed. CUDA's driver API alone.
_REAL = f"""
import ctypes, sys
cuda = ctypes.CDLL("libcuda.so.1")
context, pointer = ctypes.c_void_p(), ctypes.c_uint64()
for result in (
    cuda.cuInit(0),
    cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0),
    cuda.cuCtxSetCurrent(context),
    cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t({MEMORY})),
):
    if result:
        raise SystemExit(f"CUDA error {{result}}")
print("ready", flush=True)
sys.stdin.read()
"""
_FAKE = 'print("ready", flush=True); import sys; sys.stdin.read()'


class GpuUser:
    """A process on the first GPU; ``kill`` it, then it is removed from the GPU."""

    def __init__(self, process: "subprocess.Popen[str]", fake: control.FakeNvml | None) -> None:
        self._process = process
        self._fake = fake
        self.pid = process.pid

    def kill(self) -> None:
        """SIGKILL it, as a runtime does, and wait for its end."""
        self._process.kill()
        self._process.wait()
        if self._fake is not None:
            self._fake.processes({}, gpu=0)


@contextlib.contextmanager
def on_first_gpu(env: Mapping[str, str]) -> Iterator[GpuUser]:
    """Run a process on the first GPU of this NVML."""
    state = env.get(control.STATE_VARIABLE)
    with contextlib.ExitStack() as stack:
        fake = None
        if state is not None:
            fake = stack.enter_context(control.FakeNvml(Path(state), Path(state).parent))
        elif (reason := real.cuda_missing()) is not None:
            pytest.skip(reason)
        argv = [sys.executable, "-c", _FAKE if fake is not None else _REAL]
        order = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}  # as NVML numbers them
        process = stack.enter_context(
            subprocess.Popen(
                argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, **order}
            )
        )
        stack.callback(process.kill)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        if fake is not None:
            fake.processes({process.pid: MEMORY}, gpu=0)
        yield GpuUser(process, fake)
