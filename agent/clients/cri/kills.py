"""Kill a container's processes where CRI-O does not, as other runtimes do.

CRI-O sends the stop signal before SIGKILL even if the grace period is 0 (``StopLoopForContainer`` in
internal/oci/runtime_oci.go, 1.34). A program that handles SIGTERM may end with exit code 0 in between, which kubelet
takes for its completion. So it is killed before CRI-O is asked to stop it: the exit code is 137, as on containerd.

Nor does CRI-O end the other processes of a container that shares its PID namespace, until it removes that container.
"""

import errno
import os
import signal
import time
from pathlib import Path
from typing import Final

from kubemend.agent.health import cgroup_paths
from kubemend.agent.model.workloads import ContainerId
from kubemend.common import kernel_files

ENDED = (errno.ESRCH, errno.EINVAL, errno.ENOENT)
"""Errors of pidfd_open(2) for a process that has ended; the last two if a thread has its PID now."""

_TRIES: Final = 100
_POLL: Final = 0.02
"""Seconds between tries: killed processes take their time, and may have started others just before."""


def kill_left(container_id: ContainerId, *, proc: Path) -> None:
    """SIGKILL all processes of a container whose first one has ended, until none is left, at most for two seconds.

    One that is inside the kernel can take longer to end. Raises OSError if one cannot be killed.
    """
    for _ in range(_TRIES):
        left = [each for each in proc.iterdir() if each.name.isdecimal() and _is_in(container_id, each)]
        if not left:
            return
        for process in left:
            kill(container_id, int(process.name), proc=proc)
        time.sleep(_POLL)


def _is_in(container_id: ContainerId, process: Path) -> bool:
    return cgroup_paths.container_id(kernel_files.read(process / "cgroup") or "") == container_id


def kill(container_id: ContainerId, pid: int, *, proc: Path) -> None:
    """SIGKILL a process if it is in the container: its PID may have been reused. One that has ended is no error.

    ``pid`` is the host's, ``proc`` its procfs. Raises OSError if the process may live: CRI-O must not be asked to stop
    it then.
    """
    try:
        process = os.pidfd_open(pid)
    except OSError as error:
        if error.errno in ENDED:
            return
        raise
    try:
        if _is_in(container_id, proc / str(pid)):
            signal.pidfd_send_signal(process, signal.SIGKILL)
    except ProcessLookupError:
        return
    finally:
        os.close(process)
