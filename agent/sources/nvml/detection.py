"""Detect whether this node can have NVML by reading files, without a process and without the library."""

import contextlib
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from kubemend.agent.model.devices import PciAddress
from kubemend.common import kernel_files

LIBRARY = "libnvidia-ml.so.1"

_CACHE = Path("/etc/ld.so.cache")
_MULTIARCH = f"{os.uname().machine}-linux-gnu"
_PLACES = ("/lib", "/usr/lib", "/lib64", "/usr/lib64", f"/lib/{_MULTIARCH}", f"/usr/lib/{_MULTIARCH}")
"""Directories that ld.so searches for libraries missing from its cache (ld.so(8), and Debian's multiarch)."""

_NVIDIA = "0x10de"
_DISPLAY = ("0x0300", "0x0302")  # PCI class codes: VGA controller, 3D controller
_PASSED_THROUGH = "vfio-pci"
_DRIVER = "nvidia"
_EXCLUDED = re.compile(r'^(?:ExcludedGpus|GpuBlacklist): "[^"]', re.MULTILINE)


def library_found(env: Mapping[str, str]) -> bool:
    """Return whether a process with this environment may find NVML's library: its name is where ld.so searches."""
    places = [place for place in env.get("LD_LIBRARY_PATH", "").split(":") if place]
    if any((Path(place) / LIBRARY).exists() for place in (*places, *_PLACES)):
        return True
    try:
        return LIBRARY.encode() in _CACHE.read_bytes()
    except OSError:
        return False  # a system without a cache, such as musl's


def gpus_on_bus(sysfs: Path) -> int:
    """Return the number of NVIDIA GPUs that the kernel shows on the PCI bus, with a driver or without.

    GPUs passed through to virtual machines (vfio-pci) are excluded: this node cannot use them.
    """
    return sum(1 for function in _functions(sysfs / "bus" / "pci" / "devices") if _is_gpu(function))


def gpus_of_driver(sysfs: Path, *, proc: Path) -> frozenset[PciAddress]:
    """Return the GPUs to which NVIDIA's driver is bound; none if an operator has excluded some from its use.

    Which ones are excluded, the driver's parameters tell by UUID only (``NVreg_ExcludedGpus``). If these cannot be
    read, none counts as excluded: a GPU that NVML does not list is Unknown then, rather than not there.
    """
    parameters: str | None = None
    with contextlib.suppress(OSError):
        parameters = kernel_files.read(proc / "driver" / "nvidia" / "params")
    if parameters is not None and _EXCLUDED.search(parameters) is not None:
        return frozenset()
    bound = _functions(sysfs / "bus" / "pci" / "drivers" / _DRIVER)
    return frozenset(PciAddress.parse(Path(function).name) for function in bound if _is_gpu(function))


def _functions(place: Path) -> Iterator[str]:
    try:
        with os.scandir(place) as found:
            yield from (entry.path for entry in found)
    except OSError:
        return  # no PCI bus, or no such driver


def _is_gpu(function: str) -> bool:
    try:
        return (
            _read(function, "vendor") == _NVIDIA
            and _read(function, "class").startswith(_DISPLAY)
            and Path(function, "driver").resolve().name != _PASSED_THROUGH
        )
    except OSError:
        return False  # unplugged since the listing


def _read(function: str, name: str) -> str:
    return (kernel_files.read(Path(function, name)) or "").strip()
