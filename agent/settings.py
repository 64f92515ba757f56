"""The agent's settings: one frozen value from flags, environment, a file and defaults, in this order."""

import os
from dataclasses import dataclass
from pathlib import Path

import click

from kubemend.common import durations
from kubemend.common import settings as common_settings
from kubemend.common.settings import duration, setting

LONGEST_DEVICE_RELEASE_TIMEOUT = 30.0
"""Seconds. All members of a gang wait for the slowest."""
LONGEST_PROOF_TIMEOUT = 20.0
"""Seconds. All members of a gang wait for the slowest proof."""
LONGEST_HUB_ANSWER_TIMEOUT = 30.0
"""Seconds. A member that waits longer for its restart costs its gang more than a round would."""
LONGEST_WINDOW = 24 * 3600.0
"""Seconds. The journal keeps restarts no longer, so older ones cannot be counted."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of this agent. Paths are the host's, as mounted into the container; times are in seconds."""

    node_name: str = setting("Name of this node in Kubernetes.", default=os.uname().nodename, env="NODE_NAME")
    kubeconfig: Path | None = setting("Kubeconfig; without it the pod's service account is used.", default=None)
    cri_endpoint: str | None = setting(
        "Socket of the container runtime; without it the usual paths are tried.",
        default=None,
        env="CONTAINER_RUNTIME_ENDPOINT",
    )
    pod_resources_socket: str = setting(
        "Kubelet's pod-resources socket.", default="/var/lib/kubelet/pod-resources/kubelet.sock"
    )
    kernel_log: Path = setting("Kernel log, or a file in its record format.", default=Path("/dev/kmsg"))
    state_dir: Path = setting("Directory for the journal and verdicts.", default=Path("/var/lib/kubemend"))
    pod_log_symlinks: Path | None = setting(
        "Directory in which log shippers find container logs; empty to create no links.",
        default=Path("/var/log/containers"),
    )
    proc: Path = setting("The host's procfs.", default=Path("/proc"))
    sysfs: Path = setting("The host's sysfs.", default=Path("/sys"))
    catalog: Path | None = setting("File with changes to the catalog of fault codes.", default=None)
    opt_in_namespaces: tuple[str, ...] = setting(
        "Namespace whose pods are restarted without the annotation; may be repeated.", default=()
    )
    dry_run: bool = setting("Decide and report, but restart nothing.", default=False)
    metrics_address: str = setting("HOST:PORT of /metrics, /healthz and /readyz.", default="127.0.0.1:9464")
    probes_address: str = setting(
        "HOST:PORT for /healthz and /readyz only, independent of /metrics scrapes; without it they are served at "
        "--metrics-address only.",
        default="",
    )
    nvml_poll_interval: float = duration("Time between two polls of all GPUs.", default=5.0)
    ignore_nics: tuple[str, ...] = setting(
        "NIC to ignore: PCI address, netdev or RDMA device; may be repeated.", default=()
    )
    nic_no_probes: tuple[str, ...] = setting(
        "NIC not to query for RDMA ports, speed and counters (some firmware then floods the kernel log); may be "
        "repeated.",
        default=(),
    )
    network_namespace: Path | None = setting(
        "Network namespace whose links are watched, such as /proc/1/ns/net; without it the agent's own.", default=None
    )
    device_taints: bool | None = setting(
        "Keep new DRA claims off unhealthy devices by DeviceTaintRules, also of an alpha or beta API. By default only "
        "where the API server has them in a stable version, and not with --dry-run.",
        default=None,
    )
    device_release_timeout: float = duration(
        "How long a new process waits for the old one to leave its GPUs and free their memory.", default=10.0
    )
    proof_timeout: float = duration(
        "How long a restart waits for the proof of the GPUs that a fault concerned, and of all GPUs of a gang from its "
        "second round on. 0s: no GPU is proved.",
        default=1.0,
    )
    storm_restarts: int = setting(
        "Maximum automatic restarts on this node per --storm-window, three quarters of them in one namespace. Manual "
        "restarts are exempt.",
        default=80,
    )
    storm_window: float = duration("The window of --storm-restarts.", default=300.0)
    hub: tuple[str, ...] = setting(
        "HOST:PORT of the controller's hub, which restarts gangs together; may be repeated, and a name may resolve to "
        "several addresses. Without it the agent works alone.",
        default=(),
    )
    hub_name: str = setting("DNS name that the hub's certificate must contain.", default="kubemend-hub.kubemend.svc")
    hub_ca: Path = setting("File with the CA certificates of the hub.", default=Path("/var/run/kubemend/hub-ca/ca.crt"))
    hub_token: Path = setting(
        "File with the agent's token for the hub.", default=Path("/var/run/secrets/kubemend/hub/token")
    )
    hub_answer_timeout: float = duration(
        "How long a gang member's fault waits for the hub's answer; then the agent acts alone.", default=2.0
    )
    health_check_socket: Path | None = setting(
        "Unix socket on which pods can ask for the health of their devices (nvhcd.HealthCheckService, for NVIDIA's "
        "resiliency extension); without it they cannot.",
        default=None,
    )
    shutdown_timeout: float = duration("How long restarts under way may take when the agent is stopped.", default=20.0)
    pod_uid: str | None = setting("UID of the agent's own pod, which it never restarts.", default=None, env="POD_UID")
    log_level: str = setting("debug, info, warning or error.", default="info")
    log_format: str = setting("json, or console for people.", default="json")

    def taints_devices(self) -> bool:
        """Return whether unhealthy devices are tainted, if the API server has what that needs."""
        return self.device_taints if self.device_taints is not None else not self.dry_run

    def listen(self) -> tuple[str, int]:
        """Return host and port of the metrics address."""
        return common_settings.host_and_port(self.metrics_address)

    def probes(self) -> tuple[str, int] | None:
        """Return host and port of the separate probes address, or None without one."""
        return common_settings.host_and_port(self.probes_address) if self.probes_address else None

    def hub_addresses(self) -> tuple[tuple[str, int], ...]:
        """Return hosts and ports of the hub. Raises ValueError."""
        found = tuple(common_settings.host_and_port(item) for item in self.hub)
        if not all(host and port for host, port in found):
            raise ValueError("host or port is missing")
        return found


def _check(settings: Settings) -> None:
    """Refuse values that cannot work, before anything starts."""
    common_settings.check_logging(level=settings.log_level, form=settings.log_format)
    common_settings.check_namespaces(settings.opt_in_namespaces)
    if not settings.node_name:
        raise click.BadParameter("--node-name ''; write the name of this node in Kubernetes")
    try:
        settings.listen()
    except ValueError:
        raise click.BadParameter(f"--metrics-address {settings.metrics_address!r}; write HOST:PORT") from None
    try:
        settings.probes()
    except ValueError:
        raise click.BadParameter(f"--probes-address {settings.probes_address!r}; write HOST:PORT") from None
    try:
        settings.hub_addresses()
    except ValueError:
        raise click.BadParameter(f"--hub {' '.join(settings.hub)!r}; write HOST:PORT") from None
    if not 0 < settings.hub_answer_timeout <= LONGEST_HUB_ANSWER_TIMEOUT:
        raise click.BadParameter(
            f"--hub-answer-timeout {durations.text(settings.hub_answer_timeout)}; must be more than 0 and at most "
            f"{durations.text(LONGEST_HUB_ANSWER_TIMEOUT)}"
        )
    if not 0 <= settings.device_release_timeout <= LONGEST_DEVICE_RELEASE_TIMEOUT:
        raise click.BadParameter(
            f"--device-release-timeout {durations.text(settings.device_release_timeout)}; must be from 0s to "
            f"{durations.text(LONGEST_DEVICE_RELEASE_TIMEOUT)}"
        )
    if not 0 <= settings.proof_timeout <= LONGEST_PROOF_TIMEOUT:
        raise click.BadParameter(
            f"--proof-timeout {durations.text(settings.proof_timeout)}; must be from 0s to "
            f"{durations.text(LONGEST_PROOF_TIMEOUT)}"
        )
    if settings.storm_restarts < 1:
        raise click.BadParameter(f"--storm-restarts {settings.storm_restarts}; must be at least 1")
    if not 0 < settings.storm_window <= LONGEST_WINDOW:
        raise click.BadParameter(
            f"--storm-window {durations.text(settings.storm_window)}; must be more than 0 and at most "
            f"{durations.text(LONGEST_WINDOW)}"
        )
    if settings.nvml_poll_interval <= 0:
        raise click.BadParameter(
            f"--nvml-poll-interval {durations.text(settings.nvml_poll_interval)}; must be more than 0"
        )


_OPTIONS = common_settings.Options(Settings, owner="the agent", check=_check)
options = _OPTIONS.all
some_options = _OPTIONS.some
report_unknown_variables = _OPTIONS.report_unknown_variables
