"""Control groups: which version, and can a container be frozen.

A coordinated restart holds each successor frozen until all of the old are dead; that takes ``cgroup.freeze`` of
cgroup v2 (Linux 5.2 or newer). Restarts of single pods need neither.
"""

import enum
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from agent.doctor import blocking
from agent.doctor.checks import Check, Result

NAME = "cgroups"

_LIMIT = "a coordinated restart cannot hold its successors frozen; restarts of single pods do not need that"


class Version(enum.Enum):
    """``HYBRID``: v1, and a v2 hierarchy without controllers beside it, in which containers are not managed."""

    V1 = "v1"
    V2 = "v2"
    HYBRID = "v1 with a v2 hierarchy beside it (hybrid)"


async def freezer(sysfs: Path) -> Sequence[Check]:
    """Say which cgroups there are, and whether the agent could freeze a container."""
    root = sysfs / "fs" / "cgroup"
    return (await blocking.in_thread(lambda: _look(root)),)


def version(root: Path) -> Version | None:
    """Return what is mounted at the root of the cgroup file systems; None when that is none. Raises OSError."""
    if (root / "cgroup.controllers").exists():
        return Version.V2
    if (root / "unified" / "cgroup.controllers").exists():
        return Version.HYBRID
    return (
        Version.V1 if any((root / name / "cgroup.procs").exists() for name in ("freezer", "memory", "pids")) else None
    )


def _look(root: Path) -> Check:
    found = version(root)
    if found is None:
        mend = "mount the host's /sys/fs/cgroup into the agent's container"
        return Check(NAME, Result.UNKNOWN, f"no cgroup file system at {root}", mend)
    if found is not Version.V2:
        mend = "boot the node with cgroup v2 (systemd.unified_cgroup_hierarchy=1)"
        return Check(NAME, Result.WARN, f"cgroup {found.value}: {_LIMIT}", mend)
    return _freezer(root)


def _freezer(root: Path) -> Check:
    file = next(_freeze_files(root), None)
    if file is None and (root / "cgroup.freeze").exists():  # every cgroup has it but the node's root
        mend = "run the agent privileged, or mount the host's /sys/fs/cgroup into its container"
        what = f"{root} shows the agent's own cgroup only: {_LIMIT}, and moved cpusets are not followed"
        return Check(NAME, Result.WARN, what, mend)
    if file is None:
        return Check(NAME, Result.WARN, f"cgroup v2 without a freezer: {_LIMIT}", "use Linux 5.2 or newer")
    if not os.access(file, os.W_OK):
        mend = "run the agent privileged, with the host's /sys/fs/cgroup mounted writable"
        return Check(NAME, Result.WARN, f"cgroup v2, but {file} cannot be written: {_LIMIT}", mend)
    return Check(NAME, Result.OK, "cgroup v2, and containers can be frozen")


def _freeze_files(root: Path) -> Iterator[Path]:
    """Yield the freezer files of the groups just below the root."""
    for group in root.iterdir():
        file = group / "cgroup.freeze"
        if file.exists():
            yield file
