"""How one kubelet stand-in is set up."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Settings:
    """Paths, names and periods. Periods are seconds; their defaults are kubelet's.

    ``log_symlinks`` is the directory of legacy log links (``/var/log/containers`` on real nodes), None makes none.
    ``resync`` is the base of a pod's own timer (spread ×1 to ×1.5), ``error_retry`` the wait after a failed sync.
    """

    node_name: str
    cri_socket: str
    kubeconfig: Path
    root_dir: Path
    pod_logs_dir: Path
    pod_resources_socket: Path
    log_symlinks: Path | None = None
    control_socket: Path | None = None
    host_ip: str = "127.0.0.1"
    cgroup_root: str = ""
    device_resource: str = "nvidia.com/gpu"
    device_ids: tuple[str, ...] = ()
    claims_file: Path | None = None
    relist_period: float = 1.0
    resync: float = 60.0
    error_retry: float = 10.0
    gc_period: float = 60.0
    backoff_first: float = 10.0
    backoff_limit: float = 300.0
