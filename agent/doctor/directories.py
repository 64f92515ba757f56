"""Check the directories that the agent writes: its state, and the links by which log shippers find logs."""

import errno
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from kubemend.agent.doctor import mounts
from kubemend.agent.doctor.checks import Check, Result
from kubemend.common import blocking

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
    return state_check(path, kind=mounts.file_system(place, mounts=mounts.own()))


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
