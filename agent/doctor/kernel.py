"""Check the agent's requirements on the kernel: a freezer for containers, the kernel log, and holds for successors.

A successor on standby is held until its frozen predecessor is dead (``agent.actuator.hold.standby``). Freezing needs
``cgroup.freeze`` of a version 2 hierarchy (Linux 5.2 or newer), which a hybrid node has at ``unified``. Only restarts
of pods that an exit could end, and in which nothing else runs, need the two.
"""

import enum
import errno
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from kubemend.agent.actuator.hold.exec_hold import ExecHolds, HoldError
from kubemend.agent.actuator.hold.standby import Standbys
from kubemend.agent.clients.cri import client, discovery
from kubemend.agent.clients.cri.errors import CriError
from kubemend.agent.doctor import container_runtime
from kubemend.agent.doctor.checks import Check, Result
from kubemend.agent.settings import Settings
from kubemend.agent.sources import kmsg_readers
from kubemend.agent.sources.processes import ProcFs
from kubemend.common import blocking

CGROUPS = "cgroups"

_NO_FREEZER = (
    "containers cannot be frozen, so pods in which nothing else runs and that an exit could end are not restarted"
)


class Version(enum.Enum):
    """``HYBRID``: v1 with an additional v2 hierarchy without controllers, which is enough to freeze containers."""

    V1 = "v1"
    V2 = "v2"
    HYBRID = "v1 with an additional v2 hierarchy"


async def freezer(sysfs: Path) -> Sequence[Check]:
    """Check the cgroup version, and whether the agent could freeze a container."""
    root = sysfs / "fs" / "cgroup"
    return (await blocking.once(lambda: _check_cgroups(root), name="doctor"),)


def version(root: Path) -> Version | None:
    """Return the version mounted at the root of the cgroup file systems, or None. Raises OSError."""
    if (root / "cgroup.controllers").exists():
        return Version.V2
    if (root / "unified" / "cgroup.controllers").exists():
        return Version.HYBRID
    return (
        Version.V1 if any((root / name / "cgroup.procs").exists() for name in ("freezer", "memory", "pids")) else None
    )


def _check_cgroups(root: Path) -> Check:
    found = version(root)
    if found is None:
        hint = "mount the host's /sys/fs/cgroup into the agent's container"
        return Check(CGROUPS, Result.UNKNOWN, f"no cgroup file system at {root}", hint)
    if found is Version.V1:
        hint = "boot the node with cgroup v2 (systemd.unified_cgroup_hierarchy=1), or mount a v2 hierarchy at unified"
        return Check(CGROUPS, Result.WARN, f"cgroup v1: {_NO_FREEZER}", hint)
    return _freezer(root / "unified" if found is Version.HYBRID else root, found=found)


def _freezer(root: Path, *, found: Version) -> Check:
    file = next(_freeze_files(root), None)
    if file is None and (root / "cgroup.freeze").exists():  # every cgroup has it except the node's root
        hint = "run the agent privileged, or mount the host's /sys/fs/cgroup into its container"
        what = f"{root} shows the agent's own cgroup only: {_NO_FREEZER}, and moved cpusets are not followed"
        return Check(CGROUPS, Result.WARN, what, hint)
    if file is None:
        return Check(
            CGROUPS, Result.WARN, f"cgroup {found.value} without a freezer: {_NO_FREEZER}", "use Linux 5.2 or newer"
        )
    if not os.access(file, os.W_OK):
        hint = "run the agent privileged, with the host's /sys/fs/cgroup mounted writable"
        return Check(CGROUPS, Result.WARN, f"cgroup {found.value}, but {file} cannot be written: {_NO_FREEZER}", hint)
    return Check(CGROUPS, Result.OK, f"cgroup {found.value}, and containers can be frozen")


def _freeze_files(root: Path) -> Iterator[Path]:
    """Yield the freezer files of the groups just below the root."""
    for group in root.iterdir():
        file = group / "cgroup.freeze"
        if file.exists():
            yield file


KERNEL_LOG = "kernel-log"


async def log_readable(path: Path, *, proc: Path) -> Sequence[Check]:
    """Check whether the log can be opened and read, as the agent does it: without blocking."""
    return (await blocking.once(lambda: _check_log(path, proc=proc), name="doctor"),)


def _check_log(path: Path, *, proc: Path) -> Check:
    try:
        reader = kmsg_readers.open_log(path)
        try:
            reader.read()
        finally:
            reader.close()
    except OSError as error:
        what = f"{path} cannot be read: {error.strerror or error}; Xids in it are not detected"
        return Check(KERNEL_LOG, Result.FAIL, what, _log_hint(error, proc=proc))
    if not ProcFs(root=proc).has_pids_of(path):
        what = f"the pids in {path} are not those in {proc}: no container is restarted for a fault that names a process"
        return Check(KERNEL_LOG, Result.WARN, what, "the node is a container itself; use a machine as the node")
    return Check(KERNEL_LOG, Result.OK, f"{path} can be read")


def _log_hint(error: OSError, *, proc: Path) -> str:
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


STANDBY = "standby"

_NEVER = 3600.0  # seconds; the check's own timeout comes first
_NO_STANDBY = "pods in which nothing else runs and that an exit could end are not restarted"


async def standby(settings: Settings) -> Sequence[Check]:
    """Run the agent's own startup check for standby, and check running containers' roots. No container is touched."""
    try:
        choice = discovery.discover(settings.cri_endpoint)
        async with client.CriClient(choice.path, deadlines=client.Deadlines(read=_NEVER)) as cri:
            await cri.version()
    except (discovery.NoRuntimeSocketError, ValueError, CriError):  # ValueError: the endpoint is not a socket's
        what = "the runtime, whose mounts must be watched, could not be queried"
        return (Check(STANDBY, Result.UNKNOWN, what, f"see {container_runtime.RUNTIME}"),)
    holds = ExecHolds(socket_path=choice.path, proc=settings.proc)
    cgroup_root = settings.sysfs / "fs" / "cgroup"
    try:
        await Standbys(holds=holds, proc=settings.proc, cgroup_root=cgroup_root).check()
        await holds.check_roots()
    except HoldError as error:
        what, _, hint = str(error).partition("; ")
        return (Check(STANDBY, Result.WARN, f"{what}: {_NO_STANDBY}", hint),)
    return (Check(STANDBY, Result.OK, "a successor can be held until its predecessor is dead"),)
