"""Check whether this machine has a real NVML with a GPU, in a process of its own as a stuck driver may hang it."""

import functools
import subprocess
import sys
from pathlib import Path

_PROBE = "import pynvml; pynvml.nvmlInit(); raise SystemExit(0 if pynvml.nvmlDeviceGetCount() else 'no GPU')"
_HOSTS_PIDS = "pid:[4026531836]"  # PROC_PID_INIT_INO, include/linux/proc_ns.h


@functools.cache
def missing() -> str | None:
    """Return why the real NVML cannot be used here, or None when it can."""
    try:
        probe = subprocess.run([sys.executable, "-c", _PROBE], capture_output=True, text=True, timeout=60, check=False)
    except subprocess.TimeoutExpired:
        return "the NVIDIA driver does not answer"
    return None if probe.returncode == 0 else f"no usable NVIDIA GPU: {probe.stderr.strip().splitlines()[-1]}"


@functools.cache
def cuda_missing() -> str | None:
    """Return why no process of the tests is visible on the first GPU, or None when one is."""
    if str(Path("/proc/self/ns/pid").readlink()) != _HOSTS_PIDS:
        return "NVML lists processes by the host's pids: run the tests in its PID namespace"
    return cuda_unusable()


@functools.cache
def cuda_unusable() -> str | None:
    """Return why the CUDA driver cannot be used here, or None when it can."""
    probe = "import ctypes; raise SystemExit(ctypes.CDLL('libcuda.so.1').cuInit(0))"
    try:
        done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, timeout=60, check=False)
    except subprocess.TimeoutExpired:
        return "CUDA does not answer"
    return None if done.returncode == 0 else f"no usable CUDA driver: {done.stderr.strip() or done.returncode}"
