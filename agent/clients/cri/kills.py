"""Kill a container's first process, as a runtime does without a grace period.

CRI-O sends the stop signal before SIGKILL even if the grace period is 0 (``StopLoopForContainer`` in
internal/oci/runtime_oci.go, 1.34). A program that handles SIGTERM may end with exit code 0 in between, which kubelet
takes for its completion. So it is killed before CRI-O is asked to stop it: the exit code is 137, as on containerd.
"""

import contextlib
import os
import signal
from pathlib import Path

import structlog

from kubemend.agent.health import cgroup_paths
from kubemend.agent.model.workloads import ContainerId
from kubemend.common import kernel_files

log = structlog.get_logger(__name__)


def kill(container_id: ContainerId, pid: int, *, proc: Path) -> None:
    """SIGKILL a process if it is in the container: its PID may have been reused. Never fails; the stop follows.

    ``pid`` is the host's, ``proc`` its procfs.
    """
    try:
        process = os.pidfd_open(pid)
    except OSError as error:  # it has ended
        log.debug("cri.not_killed", container=container_id, pid=pid, error=str(error))
        return
    try:
        if cgroup_paths.container_id(kernel_files.read(proc / str(pid) / "cgroup") or "") == container_id:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(process, signal.SIGKILL)
    except OSError as error:
        log.warning("cri.not_killed", container=container_id, pid=pid, error=str(error))
    finally:
        os.close(process)
