"""Manage the dev node's cgroups, in every hierarchy that the machine has (v1) or in the only one (v2).

A cgroup has the name that kubelet gives it, such as ``/kubemend-dev-a/kubepods``. With the driver ``systemd`` it is a
slice.
"""

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from hack.devnode.packages import PackagesError

CGROUPFS: Final = "cgroupfs"
SYSTEMD: Final = "systemd"
_VARIABLE: Final = "KUBEMEND_DEV_CGROUP_DRIVER"
_MOUNTED_AT = Path("/sys/fs/cgroup")
_SYSTEMD_RUNS: Final = Path("/run/systemd/system")  # sd_booted(3)
_SECONDS: Final = 120.0
_SLICE: Final = """\
[Slice]
CPUWeight=100
IOAccounting=yes
MemoryAccounting=yes
TasksAccounting=yes
AllowedCPUs={cpus}
"""
"""Has systemd turn on the controllers that kubelet requires of its root."""


def driver() -> str:
    """Return the cgroup driver of kubelet and the runtime, ``$KUBEMEND_DEV_CGROUP_DRIVER``. Raises PackagesError."""
    found = os.environ.get(_VARIABLE, CGROUPFS)
    if found not in (CGROUPFS, SYSTEMD):
        raise PackagesError(f"no cgroup driver {found!r}; set {_VARIABLE} to {CGROUPFS} or {SYSTEMD}")
    if found == SYSTEMD and not (_SYSTEMD_RUNS.exists() and (_MOUNTED_AT / "cgroup.controllers").exists()):
        raise PackagesError(
            f"systemd does not run here with cgroup v2 alone; unset {_VARIABLE}, or use python -m hack.vm"
        )
    return found


def parent(name: str) -> str:
    """Return a cgroup as CRI's ``cgroup_parent`` has it: its path, or its slice."""
    return _slice(name) if driver() == SYSTEMD else name


def path(name: str) -> str:
    """Return the path of a cgroup in its hierarchy. A slice lies in those whose names its own begins with."""
    if driver() != SYSTEMD:
        return name
    parts = name.strip("/").split("/")
    return "".join(f"/{_slice('/'.join(parts[: length + 1]))}" for length in range(len(parts)))


def make(name: str) -> None:
    """Create a cgroup in every hierarchy, with a usable cpuset: cgroup v1 starts with an empty one.

    Kubelet needs its controllers: with cgroup v2 they are turned on as systemd does where it runs.
    """
    for hierarchy in _hierarchies():
        _turn_on_controllers(hierarchy)
        if driver() == SYSTEMD:
            _start_slice(name, cpus=(hierarchy / "cpuset.cpus.effective").read_text().strip())
            continue
        cgroup = hierarchy / name.lstrip("/")
        cgroup.mkdir(parents=True, exist_ok=True)
        for key in ("cpuset.cpus", "cpuset.mems"):
            with contextlib.suppress(FileNotFoundError):
                (cgroup / key).write_text((hierarchy / key).read_text())


def remove(name: str) -> None:
    """Remove a cgroup and those below it in every hierarchy. One with processes stays."""
    stop(name)
    for directory in directories(name):
        _remove_tree(directory)


def stop(name: str) -> None:
    """Have systemd stop the slice that a cgroup is, and those inside it. Other cgroups are left as they are."""
    if driver() != SYSTEMD:
        return
    with contextlib.suppress(subprocess.CalledProcessError):  # it is not loaded
        _systemctl("stop", _slice(name))
    (_SYSTEMD_RUNS / _slice(name)).unlink(missing_ok=True)


def directories(name: str) -> list[Path]:
    """Return the directories of a cgroup, one in each hierarchy that has it."""
    found = [hierarchy / path(name).lstrip("/") for hierarchy in _hierarchies()]
    return [each for each in found if each.is_dir()]


def _slice(name: str) -> str:
    """Return the slice of a cgroup, named as kubelet does (``ToSystemd`` in pkg/kubelet/cm/cgroup_manager_linux.go)."""
    return "-".join(part.replace("-", "_") for part in name.strip("/").split("/")) + ".slice"


def _start_slice(name: str, *, cpus: str) -> None:
    (_SYSTEMD_RUNS / _slice(name)).write_text(_SLICE.format(cpus=cpus))
    _systemctl("daemon-reload")
    _systemctl("start", _slice(name))


def _systemctl(*arguments: str) -> None:
    subprocess.run(("systemctl", *arguments), check=True, capture_output=True, timeout=_SECONDS)


def _hierarchies() -> Iterator[Path]:
    if (_MOUNTED_AT / "cgroup.controllers").exists():
        yield _MOUNTED_AT
        return
    yield from (each for each in _MOUNTED_AT.iterdir() if each.is_dir() and not each.is_symlink())


def _turn_on_controllers(hierarchy: Path) -> None:
    """Turn on all controllers for the cgroups of cgroup v2's root, and nothing for v1, which has no such file."""
    with contextlib.suppress(FileNotFoundError):
        for name in (hierarchy / "cgroup.controllers").read_text().split():
            with contextlib.suppress(OSError):  # it is in use otherwise: kubelet names those that it lacks
                (hierarchy / "cgroup.subtree_control").write_text(f"+{name}")


def _remove_tree(directory: Path) -> None:
    """Remove directories only, deepest first: the kernel's files in a cgroup cannot be unlinked."""
    for each, _, _ in os.walk(directory, topdown=False):
        with contextlib.suppress(OSError):
            Path(each).rmdir()
