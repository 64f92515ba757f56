"""Determine the type of a process's root file system from its mountinfo (proc_pid_mountinfo(5))."""

from pathlib import Path

OVERLAY = "overlay"
_MOUNT_POINT = 4  # of the fields before the separator, counted from 0
_MOST_READ = 1 << 20  # bytes: a process that may mount can make the file arbitrarily long, and the root comes first


def kind(pid: int, *, proc: Path) -> str | None:
    """Return the type, such as ``overlay``; None if the process no longer exists."""
    try:
        with (proc / str(pid) / "mountinfo").open("rb") as mounts:
            text = mounts.read(_MOST_READ)
    except OSError:
        return None
    found = None
    for line in text.split(b"\n"):
        place, _, file_system = line.partition(b" - ")
        if place.split(b" ")[_MOUNT_POINT : _MOUNT_POINT + 1] == [b"/"]:
            found = file_system.partition(b" ")[0].decode(errors="replace")  # of several the last lies on top
    return found
