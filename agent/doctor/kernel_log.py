"""Check whether the kernel log can be read."""

import errno
from collections.abc import Sequence
from pathlib import Path

from kubemend.agent.doctor.checks import Check, Result
from kubemend.agent.sources import kmsg_readers
from kubemend.common import blocking

NAME = "kernel-log"


async def readable(path: Path, *, proc: Path) -> Sequence[Check]:
    """Check whether the log can be opened and read, as the agent does it: without blocking."""
    return (await blocking.once(lambda: _check(path, proc=proc), name="doctor"),)


def _check(path: Path, *, proc: Path) -> Check:
    try:
        reader = kmsg_readers.open_log(path)
        try:
            reader.read()
        finally:
            reader.close()
    except OSError as error:
        what = f"{path} cannot be read: {error.strerror or error}; Xids in it are not detected"
        return Check(NAME, Result.FAIL, what, _hint(error, proc=proc))
    return Check(NAME, Result.OK, f"{path} can be read")


def _hint(error: OSError, *, proc: Path) -> str:
    if error.errno in (errno.EPERM, errno.EACCES):
        hint = "run the agent privileged, or as root with the capability SYSLOG and /dev/kmsg among its devices"
        return f"{hint} (kernel.dmesg_restrict is 1 on this node)" if _is_restricted(proc) else hint
    if error.errno == errno.ENOENT:
        return "mount the host's /dev/kmsg into the agent's container, or pass its path with --kernel-log"
    return "pass /dev/kmsg, or a regular file of records in its format, with --kernel-log"


def _is_restricted(proc: Path) -> bool:
    try:
        return (proc / "sys" / "kernel" / "dmesg_restrict").read_text().strip() == "1"
    except OSError:
        return False  # it only extends the hint
