"""The directories that the agent writes into: its state, and the links by which log shippers find logs."""

import errno
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from agent.doctor import mounts
from agent.doctor.checks import Check, Result
from common import own_thread

STATE = "state-directory"
LINKS = "log-links"

_ENOUGH = 64 * 2**20
"""Bytes. The state file stays below a few megabytes; less than this and something else is about to fill the disk."""

_IN_MEMORY = ("tmpfs", "ramfs")
_OF_THE_CONTAINER = ("overlay", "aufs", "fuse-overlayfs")
_REMOTE = ("nfs", "nfs4", "cifs", "smb3", "ceph", "lustre", "gpfs", "beegfs", "glusterfs", "afs", "9p", "fuse.sshfs")


async def state(path: Path) -> Sequence[Check]:
    """Say whether state can be written there durably: without it nothing is restarted."""
    return (await own_thread.once(lambda: _state(path), name="doctor"),)


async def log_links(path: Path | None) -> Sequence[Check]:
    """Say whether links to the logs of restarted containers can be made."""
    if path is None:
        return (Check(LINKS, Result.NOT_NEEDED, "turned off: no links to container logs are made"),)
    return (await own_thread.once(lambda: _links(path), name="doctor"),)


def _state(path: Path) -> Check:
    try:
        place = _existing(path)
        _write(place)
        free = os.statvfs(place)
    except OSError as error:
        what = f"{path} cannot be written durably: {error.strerror or error}; nothing is restarted without it"
        return Check(STATE, Result.FAIL, what, _mend(error))
    space = free.f_bavail * free.f_frsize
    if space < _ENOUGH:
        return Check(STATE, Result.WARN, f"only {space // 2**20} MiB are free at {path}", "make room on its disk")
    return state_check(path, kind=mounts.file_system(place, mounts=mounts.own()))


def state_check(path: Path, *, kind: str) -> Check:
    """Say what it means that a directory that can be written lies on this kind of file system."""
    if kind in _IN_MEMORY:
        what = f"{path} is in memory ({kind}): what was restarted and why is lost at a reboot"
        return Check(STATE, Result.WARN, what, "put it on a disk")
    if kind in _OF_THE_CONTAINER:
        what = f"{path} is in a container's own layer ({kind}): journal and verdicts are lost with the container"
        return Check(STATE, Result.WARN, what, "mount a directory of the host there (hostPath)")
    if kind in _REMOTE:
        what = f"{path} is on a remote file system ({kind}): it is slow, and hangs when its server does"
        return Check(STATE, Result.WARN, what, "put it on a local disk")
    return Check(STATE, Result.OK, f"{path} can be written and synced ({kind})")


def _links(path: Path) -> Check:
    lost = "log shippers will not find the logs of restarted containers"
    if not path.is_dir():
        mend = "mount the host's /var/log/containers, name the directory by --pod-log-symlinks, or give none"
        return Check(LINKS, Result.FAIL, f"there is no directory {path}: {lost}", mend)
    if not os.access(path, os.W_OK | os.X_OK):
        return Check(LINKS, Result.FAIL, f"{path} cannot be written: {lost}", "mount it writable")
    return Check(LINKS, Result.OK, f"{path} can be written")


def _existing(path: Path) -> Path:
    """Return the directory, or the nearest one above it: the agent makes what is missing."""
    return next(place for place in (path, *path.absolute().parents) if place.exists())


def _write(directory: Path) -> None:
    """Write a file, have it on the disk, and remove it. Raises OSError."""
    with tempfile.NamedTemporaryFile(dir=directory, prefix=".kubemend-doctor-") as file:
        file.write(b"kubemend doctor\n")
        file.flush()
        os.fsync(file.fileno())


def _mend(error: OSError) -> str:
    if error.errno == errno.ENOSPC:
        return "make room on its disk"
    if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
        return "mount it writable, or name another directory by --state-dir"
    return "name a directory on a local disk by --state-dir"
