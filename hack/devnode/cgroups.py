"""Manage the dev node's cgroups, in every hierarchy that the machine has (v1) or in the only one (v2)."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

_MOUNTED_AT = Path("/sys/fs/cgroup")


def make(name: str) -> None:
    """Create a cgroup in every hierarchy, with a usable cpuset: cgroup v1 starts with an empty one.

    Kubelet needs its controllers: with cgroup v2 they are turned on as systemd does where it runs.
    """
    for hierarchy in _hierarchies():
        _turn_on_controllers(hierarchy)
        cgroup = hierarchy / name.lstrip("/")
        cgroup.mkdir(parents=True, exist_ok=True)
        for key in ("cpuset.cpus", "cpuset.mems"):
            with contextlib.suppress(FileNotFoundError):
                (cgroup / key).write_text((hierarchy / key).read_text())


def remove(name: str) -> None:
    """Remove a cgroup and those below it in every hierarchy. One with processes stays."""
    for directory in directories(name):
        _remove_tree(directory)


def directories(name: str) -> list[Path]:
    """Return the directories of a cgroup, one in each hierarchy that has it."""
    found = [hierarchy / name.lstrip("/") for hierarchy in _hierarchies()]
    return [path for path in found if path.is_dir()]


def _hierarchies() -> Iterator[Path]:
    if (_MOUNTED_AT / "cgroup.controllers").exists():
        yield _MOUNTED_AT
        return
    yield from (path for path in _MOUNTED_AT.iterdir() if path.is_dir() and not path.is_symlink())


def _turn_on_controllers(hierarchy: Path) -> None:
    """Turn on all controllers for the cgroups of cgroup v2's root, and nothing for v1, which has no such file."""
    with contextlib.suppress(FileNotFoundError):
        for name in (hierarchy / "cgroup.controllers").read_text().split():
            with contextlib.suppress(OSError):  # it is in use otherwise: kubelet names those that it lacks
                (hierarchy / "cgroup.subtree_control").write_text(f"+{name}")


def _remove_tree(directory: Path) -> None:
    """Remove directories only, deepest first: the kernel's files in a cgroup cannot be unlinked."""
    for path, _, _ in os.walk(directory, topdown=False):
        with contextlib.suppress(OSError):
            Path(path).rmdir()
