"""Find the type of the file system of a path, from mountinfo (proc_pid_mountinfo(5))."""

import os
import re
from pathlib import Path

from kubemend.common import kernel_files

_ESCAPED = re.compile(r"\\([0-7]{3})")  # blanks and backslashes in a mount point
_MOUNT_POINT = 4  # of the fields before the separator, counted from 0
_LIMIT = 64 << 20  # bytes; fs.mount-max is 100,000


def own() -> str:
    """Return the mounts visible to this process. Raises OSError."""
    return os.fsdecode(kernel_files.read_bytes("/proc/self/mountinfo", limit=_LIMIT) or b"")


def file_system(path: Path, *, mounts: str) -> str:
    """Return the type of the file system, such as ``ext4``, that contains a path; "unknown" without one."""
    resolved = path.resolve()
    best, kind = Path(), "unknown"
    for line in mounts.split("\n"):
        place, separator, file_system = line.partition(" - ")
        if not separator:
            continue
        point = Path(_ESCAPED.sub(lambda match: chr(int(match[1], 8)), place.split(" ")[_MOUNT_POINT]))
        # Of two mounts at the same point the later one is on top.
        if resolved.is_relative_to(point) and len(point.parts) >= len(best.parts):
            best, kind = point, file_system.split()[0]
    return kind
