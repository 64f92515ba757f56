"""On which kind of file system the root of a process lies, by its mountinfo (proc_pid_mountinfo(5))."""

from pathlib import Path

OVERLAY = "overlay"
_MOUNT_POINT = 4  # of the fields before the separator, counted from 0
_MOST_READ = 1 << 20  # bytes: whoever may mount can make the file as long as they like, and the root comes first


def kind(pid: int, *, proc: Path) -> str | None:
    """Return the kind, such as ``overlay``; None when it cannot be told: there is no such process any more."""
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
