"""Read control groups of either version: their directories, their processes, and whether they are frozen."""

import errno
import os
from collections.abc import Iterable
from pathlib import Path

from kubemend.common import kernel_files

# Version 2, alone or next to version 1 (hybrid nodes); then the hierarchies of version 1 that every runtime uses.
_HIERARCHIES = ("", "unified", "freezer", "pids", "memory", "systemd")

_DIGITS = 10
_MOST_PIDS_BYTES = 64 << 20  # pids.max has seven digits at most


def directories(path: str, *, mounted_at: Path) -> tuple[Path, ...]:
    """Return the directory of the group ``path`` in each hierarchy that has it; empty if the group does not exist."""
    places = (mounted_at / name / path.lstrip("/") for name in _HIERARCHIES)
    return tuple(place for place in places if (place / "cgroup.procs").exists())


def tops(mounted_at: Path) -> list[Path]:
    """Return the files to which a process's id is written to move it out of its cgroup: one per hierarchy."""
    one = mounted_at / "cgroup.procs"
    return [one] if one.exists() else sorted(mounted_at.glob("*/cgroup.procs"))


def leave(mounted_at: Path) -> None:
    """Move this process to the topmost cgroup, as far as that is permitted."""
    for procs in tops(mounted_at):
        try:
            procs.write_text(str(os.getpid()))
        except OSError:
            continue  # no permission to leave this cgroup


def pids(groups: Iterable[Path]) -> frozenset[int]:
    """Return the processes of these groups and of all groups below them. Raises OSError."""
    found: set[int] = set()
    tops = frozenset(groups)
    left = [*tops]
    while left:  # a container nests its groups as deep as it likes: no recursion, as in os.walk
        directory = left.pop()
        try:
            content = kernel_files.read(directory / "cgroup.procs", limit=_MOST_PIDS_BYTES) or ""
        except OSError as error:
            if error.errno != errno.EOPNOTSUPP or directory in tops:
                raise
            content = ""  # a threaded group: a group above it lists its processes (cgroup-v2.rst)
        found.update(int(pid) for pid in content.split() if pid.isdecimal() and len(pid) <= _DIGITS)
        try:
            with os.scandir(directory) as entries:
                left += (Path(each) for each in entries if each.is_dir(follow_symlinks=False))
        except OSError as error:
            _unless_gone(error)
    return frozenset(found)


def frozen(groups: Iterable[Path]) -> bool | None:
    """Return whether a group or one above it is frozen; None if neither version reports a state.

    Sources: cgroup-v2.rst (cgroup.events), cgroup-v1/freezer-subsystem.rst.
    """
    states = [state for group in groups for state in (_version_2(group), _version_1(group)) if state is not None]
    return any(states) if states else None


def _unless_gone(error: OSError) -> None:
    """Ignore a group that has been removed: it held no process."""
    if error.errno not in (errno.ENOENT, errno.ENODEV):
        raise error


def _version_2(group: Path) -> bool | None:
    text = _read(group / "cgroup.events")
    return "frozen 1" in kernel_files.lines(text) if "frozen" in text else None


def _version_1(group: Path) -> bool | None:
    text = _read(group / "freezer.state")
    return text.strip() != "THAWED" if text else None


def _read(file: Path) -> str:
    try:
        return kernel_files.read(file) or ""
    except OSError:
        return ""  # belongs to the other version, or has been removed
