"""The kernel log: may it be read."""

import errno
from collections.abc import Sequence
from pathlib import Path

from agent.doctor.checks import Check, Result
from agent.sources import kmsg_readers
from common import own_thread

NAME = "kernel-log"


async def readable(path: Path, *, proc: Path) -> Sequence[Check]:
    """Say whether the log can be opened and read, as the agent does it: without blocking."""
    return (await own_thread.once(lambda: _look(path, proc=proc), name="doctor"),)


def _look(path: Path, *, proc: Path) -> Check:
    try:
        reader = kmsg_readers.open_log(path)
        try:
            reader.read()
        finally:
            reader.close()
    except OSError as error:
        what = f"{path} cannot be read: {error.strerror or error}; Xids are not seen there"
        return Check(NAME, Result.FAIL, what, _mend(error, proc=proc))
    return Check(NAME, Result.OK, f"{path} can be read")


def _mend(error: OSError, *, proc: Path) -> str:
    if error.errno in (errno.EPERM, errno.EACCES):
        mend = "run the agent privileged, or as root with the capability SYSLOG and /dev/kmsg among its devices"
        return f"{mend} (kernel.dmesg_restrict is 1 on this node)" if _is_restricted(proc) else mend
    if error.errno == errno.ENOENT:
        return "mount the host's /dev/kmsg into the agent's container, or name the right path by --kernel-log"
    return "name /dev/kmsg, or a regular file of records in its format, by --kernel-log"


def _is_restricted(proc: Path) -> bool:
    try:
        return (proc / "sys" / "kernel" / "dmesg_restrict").read_text().strip() == "1"
    except OSError:
        return False  # it only adds to the mend
