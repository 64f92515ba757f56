"""Check the directories that the agent writes: its state with the journal, and the links for log shippers."""

import errno
import os
import re
import sqlite3
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from kubemend.agent.clients.journal import quarantine
from kubemend.agent.clients.journal.quarantine import Quarantined
from kubemend.agent.clients.journal.store import FILE, REMOVE
from kubemend.agent.doctor.checks import Check, Result
from kubemend.common import blocking, kernel_files

STATE = "state-directory"
LINKS = "log-links"

_ENOUGH = 64 * 2**20
"""Bytes. The state file stays below a few megabytes; with less free space the disk is about to fill up."""

_IN_MEMORY = ("tmpfs", "ramfs")
_OF_THE_CONTAINER = ("overlay", "aufs", "fuse-overlayfs")
_REMOTE = ("nfs", "nfs4", "cifs", "smb3", "ceph", "lustre", "gpfs", "beegfs", "glusterfs", "afs", "9p", "fuse.sshfs")


async def state(path: Path) -> Sequence[Check]:
    """Check whether state can be written durably: without it nothing is restarted."""
    return (await blocking.once(lambda: _state(path), name="doctor"),)


async def log_links(path: Path | None) -> Sequence[Check]:
    """Check whether links to the logs of restarted containers can be created."""
    if path is None:
        return (Check(LINKS, Result.NOT_NEEDED, "disabled: no links to container logs are created"),)
    return (await blocking.once(lambda: _links(path), name="doctor"),)


def _state(path: Path) -> Check:
    try:
        place = _existing(path)
        _write(place)
        free = os.statvfs(place)
    except OSError as error:
        what = f"{path} cannot be written durably: {error.strerror or error}; nothing is restarted without it"
        return Check(STATE, Result.FAIL, what, _hint(error))
    space = free.f_bavail * free.f_frsize
    if space < _ENOUGH:
        return Check(STATE, Result.WARN, f"only {space // 2**20} MiB are free at {path}", "free space on its disk")
    return state_check(path, kind=file_system(place, mounts=own_mounts()))


def state_check(path: Path, *, kind: str) -> Check:
    """Return the check for a writable directory on this type of file system."""
    if kind in _IN_MEMORY:
        what = f"{path} is in memory ({kind}): journal and verdicts are lost at a reboot"
        return Check(STATE, Result.WARN, what, "put it on a disk")
    if kind in _OF_THE_CONTAINER:
        what = f"{path} is in a container's own layer ({kind}): journal and verdicts are lost with the container"
        return Check(STATE, Result.WARN, what, "mount a directory of the host there (hostPath)")
    if kind in _REMOTE:
        what = f"{path} is on a remote file system ({kind}): it is slow, and hangs when its server hangs"
        return Check(STATE, Result.WARN, what, "put it on a local disk")
    return Check(STATE, Result.OK, f"{path} can be written and synced ({kind})")


def _links(path: Path) -> Check:
    lost = "log shippers will not find the logs of restarted containers"
    if not path.is_dir():
        hint = (
            "mount the host's /var/log/containers, pass the directory with --pod-log-symlinks, or pass an empty value"
        )
        return Check(LINKS, Result.FAIL, f"there is no directory {path}: {lost}", hint)
    if not os.access(path, os.W_OK | os.X_OK):
        return Check(LINKS, Result.FAIL, f"{path} cannot be written: {lost}", "mount it writable")
    return Check(LINKS, Result.OK, f"{path} can be written")


def _existing(path: Path) -> Path:
    """Return the directory, or its nearest existing parent: the agent creates missing directories."""
    return next(place for place in (path, *path.absolute().parents) if place.exists())


def _write(directory: Path) -> None:
    """Write a file, sync it to disk, and remove it. Raises OSError."""
    with tempfile.NamedTemporaryFile(dir=directory, prefix=".kubemend-doctor-") as file:
        file.write(b"kubemend doctor\n")
        file.flush()
        os.fsync(file.fileno())


def _hint(error: OSError) -> str:
    if error.errno == errno.ENOSPC:
        return "free space on its disk"
    if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
        return "mount it writable, or pass another directory with --state-dir"
    return "pass a directory on a local disk with --state-dir"


_ESCAPED = re.compile(r"\\([0-7]{3})")  # blanks and backslashes in a mount point
_MOUNT_POINT = 4  # of the fields before the separator, counted from 0
_MOUNTS_LIMIT = 64 << 20  # bytes; fs.mount-max is 100,000


def own_mounts() -> str:
    """Return the mounts visible to this process. Raises OSError."""
    return os.fsdecode(kernel_files.read_bytes("/proc/self/mountinfo", limit=_MOUNTS_LIMIT) or b"")


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


JOURNAL: Final = "journal"

_SHOWN: Final = 3
_MOST_COUNTED: Final = 1000  # counted
_LONGEST_REASON: Final = 160  # characters of a reason
_QUARANTINE_HINT: Final = (
    "check the pod's state (kubectl delete pod always helps), and report work.failed and "
    "restart.quarantined from the agent's log"
)


async def quarantined(state_dir: Path) -> Sequence[Check]:
    """Check for quarantined restarts: those whose replay failed repeatedly."""
    return (await blocking.once(lambda: _quarantined(state_dir / FILE), name="doctor"),)


def _quarantined(path: Path) -> Check:
    try:
        found = quarantine.read(path, most=_MOST_COUNTED)
    except FileNotFoundError:
        return Check(JOURNAL, Result.NOT_NEEDED, f"no agent has created one at {path} yet")
    except quarantine.OtherFormatError as error:
        what = f"no agent of this release starts with {path}: {error}"
        return Check(JOURNAL, Result.FAIL, what, f"run the newer agent that wrote it, or {REMOVE}")
    except sqlite3.Error as error:
        hint = "see the agent's log, because the agent may have the same problem with the file; run doctor again"
        return Check(JOURNAL, Result.UNKNOWN, f"{path} cannot be read: {error}", hint)
    if not found:
        return Check(JOURNAL, Result.OK, f"no restart is quarantined in {path}")
    more = f"; and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    listed = "; ".join(map(_described, found[:_SHOWN])) + more
    return Check(JOURNAL, Result.WARN, f"quarantined, and not resumed by any agent: {listed}", _QUARANTINE_HINT)


def _described(each: Quarantined) -> str:
    reason = f" ({' '.join(each.reason.split())[:_LONGEST_REASON]})" if each.reason else ""
    return f"{each.target or 'a container'} of restart {each.restart}{reason}"
