"""Kill a container's first process, as a runtime does without a grace period.

CRI-O sends the stop signal before SIGKILL even if the grace period is 0 (``StopLoopForContainer`` in
internal/oci/runtime_oci.go, 1.34). A program that handles SIGTERM may end with exit code 0 in between, which kubelet
takes for its completion. So it is killed before CRI-O is asked to stop it: the exit code is 137, as on containerd.
"""

import errno
import os
import signal
from pathlib import Path

from kubemend.agent.health import cgroup_paths
from kubemend.agent.model.workloads import ContainerId
from kubemend.common import kernel_files

ENDED = (errno.ESRCH, errno.EINVAL, errno.ENOENT)
"""Errors of pidfd_open(2) for a process that has ended; the last two if a thread has its PID now."""


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
        if cgroup_paths.container_id(kernel_files.read(proc / str(pid) / "cgroup") or "") == container_id:
            signal.pidfd_send_signal(process, signal.SIGKILL)
    except ProcessLookupError:
        return
    finally:
        os.close(process)
