"""Check the cgroup version, and whether containers can be frozen.

A successor on standby is held until its frozen predecessor is dead (``standby``). Freezing needs ``cgroup.freeze`` of a
version 2 hierarchy (Linux 5.2 or newer), which a hybrid node has at ``unified``. Only restarts of pods that an exit
could end, and in which nothing else runs, need it.
"""

import enum
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from kubemend.agent.doctor.checks import Check, Result
from kubemend.common import blocking

NAME = "cgroups"

_LIMIT = "containers cannot be frozen, so pods in which nothing else runs and that an exit could end are not restarted"


class Version(enum.Enum):
    """``HYBRID``: v1 with an additional v2 hierarchy without controllers, which is enough to freeze containers."""

    V1 = "v1"
    V2 = "v2"
    HYBRID = "v1 with an additional v2 hierarchy"


async def freezer(sysfs: Path) -> Sequence[Check]:
    """Check the cgroup version, and whether the agent could freeze a container."""
    root = sysfs / "fs" / "cgroup"
    return (await blocking.once(lambda: _check(root), name="doctor"),)


def version(root: Path) -> Version | None:
    """Return the version mounted at the root of the cgroup file systems, or None. Raises OSError."""
    if (root / "cgroup.controllers").exists():
        return Version.V2
    if (root / "unified" / "cgroup.controllers").exists():
        return Version.HYBRID
    return (
        Version.V1 if any((root / name / "cgroup.procs").exists() for name in ("freezer", "memory", "pids")) else None
    )


def _check(root: Path) -> Check:
    found = version(root)
    if found is None:
        hint = "mount the host's /sys/fs/cgroup into the agent's container"
        return Check(NAME, Result.UNKNOWN, f"no cgroup file system at {root}", hint)
    if found is Version.V1:
        hint = "boot the node with cgroup v2 (systemd.unified_cgroup_hierarchy=1), or mount a v2 hierarchy at unified"
        return Check(NAME, Result.WARN, f"cgroup v1: {_LIMIT}", hint)
    return _freezer(root / "unified" if found is Version.HYBRID else root, found=found)


def _freezer(root: Path, *, found: Version) -> Check:
    file = next(_freeze_files(root), None)
    if file is None and (root / "cgroup.freeze").exists():  # every cgroup has it except the node's root
        hint = "run the agent privileged, or mount the host's /sys/fs/cgroup into its container"
        what = f"{root} shows the agent's own cgroup only: {_LIMIT}, and moved cpusets are not followed"
        return Check(NAME, Result.WARN, what, hint)
    if file is None:
        return Check(NAME, Result.WARN, f"cgroup {found.value} without a freezer: {_LIMIT}", "use Linux 5.2 or newer")
    if not os.access(file, os.W_OK):
        hint = "run the agent privileged, with the host's /sys/fs/cgroup mounted writable"
        return Check(NAME, Result.WARN, f"cgroup {found.value}, but {file} cannot be written: {_LIMIT}", hint)
    return Check(NAME, Result.OK, f"cgroup {found.value}, and containers can be frozen")


def _freeze_files(root: Path) -> Iterator[Path]:
    """Yield the freezer files of the groups just below the root."""
    for group in root.iterdir():
        file = group / "cgroup.freeze"
        if file.exists():
            yield file
