"""Whether this machine has a real NVML with a GPU, asked in a process of its own as a stuck driver may hang it."""

import functools
import subprocess
import sys

_PROBE = "import pynvml; pynvml.nvmlInit(); raise SystemExit(0 if pynvml.nvmlDeviceGetCount() else 'no GPU')"


@functools.cache
def missing() -> str | None:
    """Return why the real NVML cannot be used here, or None when it can."""
    try:
        probe = subprocess.run([sys.executable, "-c", _PROBE], capture_output=True, text=True, timeout=60, check=False)
    except subprocess.TimeoutExpired:
        return "the NVIDIA driver does not answer"
    return None if probe.returncode == 0 else f"no usable NVIDIA GPU: {probe.stderr.strip().splitlines()[-1]}"
