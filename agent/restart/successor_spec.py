"""Describe how one successor is created, and how its predecessor is ended."""

from dataclasses import dataclass
from pathlib import Path

from kubemend.agent.model.workloads import Hook
from kubemend.agent.restart import cache, clone, host_files, keep, overlap, shm
from kubemend.common.pb.runtime.v1 import api_pb2


@dataclass(frozen=True, slots=True)
class PreStopHook:
    """A container's preStop hook. ``pod_ip`` is where an HTTP hook goes by default."""

    hook: Hook
    pod_ip: str | None = None


@dataclass(frozen=True, slots=True)
class SuccessorSpec:
    """The inputs for creating one successor, and for ending its predecessor as the pod specifies.

    ``shared_memory`` is the container's /dev/shm, ``compile_cache`` its part of the cache volume, ``emptying`` whether
    that is emptied before the start. ``mount_points`` are the old container's, ``keeping`` is what the successor keeps
    of it. ``overlap_request``: the pod allows it to import while its predecessor dies. ``old_pid`` is the first process
    of the predecessor; None if that does not run.
    ``is_rebuilt``: the runtime does not return configs, so the successor's was rebuilt.
    """

    successor: clone.Successor
    sandbox_config: api_pb2.PodSandboxConfig
    post_start: Hook | None = None
    pre_stop_hook: PreStopHook | None = None
    pod_ip: str | None = None
    shared_memory: shm.Place | shm.NotOurs = shm.NotOurs("it was not examined")  # noqa: RUF009 - frozen
    compile_cache: cache.Place | cache.NotOurs = cache.NotOurs("it was not examined")  # noqa: RUF009 - frozen
    emptying: cache.Request | None = None
    mount_points: tuple[str, ...] | None = None
    keeping: keep.Request | None = None
    overlap_request: overlap.Request | None = None
    old_pid: int | None = None
    is_rebuilt: bool = False

    @property
    def needs_proof(self) -> bool:
        """Return whether the successor is compared with the old container: its config is more than a copy."""
        return self.is_rebuilt or not self.successor.is_copy

    @property
    def log_file(self) -> Path:
        """The successor's log on the host."""
        return Path(host_files.log_file(self.sandbox_config.log_directory, self.successor.log_path))
