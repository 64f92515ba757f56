"""The agent's settings: one frozen value, from flags, environment, a file and defaults, in this order."""

import os
from dataclasses import dataclass
from pathlib import Path

import click

from common import settings as common_settings
from common.settings import setting

LONGEST_DEVICE_WAIT = 30.0
"""Seconds: one restart is carried out in 60 at most, whatever it waits for."""
LONGEST_HUB_PATIENCE = 30.0
"""Seconds: a member that is not restarted for so long costs its gang more than a round would."""
LONGEST_WINDOW = 24 * 3600.0
"""Seconds over which restarts can be counted: the journal keeps them no longer."""

_PORTS = 1 << 16


@dataclass(frozen=True, slots=True)
class Settings:
    """How this agent runs. Paths are the host's, as the container sees them; times are in seconds."""

    node_name: str = setting("Name of this node in Kubernetes.", default=os.uname().nodename, env="NODE_NAME")
    kubeconfig: Path | None = setting("Kubeconfig; without it the pod's service account is used.", default=None)
    cri_endpoint: str | None = setting(
        "Socket of the container runtime; without it the usual places are tried.",
        default=None,
        env="CONTAINER_RUNTIME_ENDPOINT",
    )
    pod_resources_socket: str = setting(
        "Kubelet's pod-resources socket.", default="/var/lib/kubelet/pod-resources/kubelet.sock"
    )
    kernel_log: Path = setting("Kernel log, or a file in its record format.", default=Path("/dev/kmsg"))
    state_dir: Path = setting("Where journal and verdicts are kept.", default=Path("/var/lib/kubemend"))
    pod_log_symlinks: Path | None = setting(
        "Directory in which log shippers find container logs; empty to create no links.",
        default=Path("/var/log/containers"),
    )
    proc: Path = setting("The host's procfs.", default=Path("/proc"))
    sysfs: Path = setting("The host's sysfs.", default=Path("/sys"))
    catalog: Path | None = setting("File with changes to the catalog of fault codes.", default=None)
    namespaces: tuple[str, ...] = setting(
        "Namespace whose pods are restarted without the annotation; may be repeated.", default=()
    )
    dry_run: bool = setting("Decide and report, but restart nothing.", default=False)
    metrics_address: str = setting("HOST:PORT of /metrics, /healthz and /readyz.", default="127.0.0.1:9464")
    probes_address: str = setting(
        "HOST:PORT of /healthz and /readyz alone, kept busy by nobody who scrapes /metrics; without it they are at "
        "--metrics-address only.",
        default="",
    )
    nvml_poll_period: float = setting("Seconds between two polls of all GPUs.", default=5.0)
    ignored_nics: tuple[str, ...] = setting(
        "NIC that does not matter: PCI address, netdev or RDMA device; may be repeated.", default=()
    )
    unasked_nics: tuple[str, ...] = setting(
        "NIC that is not asked for RDMA ports, speed and counters (some firmware floods the kernel log then); may be "
        "repeated.",
        default=(),
    )
    network_namespace: Path | None = setting(
        "Network namespace whose links are watched, such as /proc/1/ns/net; without it the agent's own.", default=None
    )
    device_taints: bool = setting(
        "Keep new DRA claims off unhealthy devices by DeviceTaintRules (needs the control plane's feature gate).",
        default=False,
    )
    device_wait: float = setting(
        "Seconds that a new process waits for the old one to leave its GPUs and free their memory.", default=10.0
    )
    storm_restarts: int = setting(
        "Restarts on this node within --storm-window after which no more are begun, but for those asked for by name.",
        default=60,
    )
    storm_window: float = setting("Seconds over which --storm-restarts counts.", default=300.0)
    hub: tuple[str, ...] = setting(
        "HOST:PORT of the controller's hub, which restarts gangs together; may be repeated, and a name may stand for "
        "several addresses. Without it the agent works alone.",
        default=(),
    )
    hub_name: str = setting(
        "Name for which the hub's certificate must be made out.", default="kubemend-hub.kubemend.svc"
    )
    hub_ca: Path = setting(
        "File with the certificates that vouch for the hub.", default=Path("/var/run/kubemend/hub-ca/ca.crt")
    )
    hub_token: Path = setting(
        "File with the agent's token for the hub.", default=Path("/var/run/secrets/kubemend/hub/token")
    )
    hub_patience: float = setting(
        "Seconds that a gang member's fault waits for the hub's answer; then the agent acts alone.", default=2.0
    )
    stop_grace: float = setting("Seconds that restarts under way get when the agent is stopped.", default=20.0)
    pod_uid: str | None = setting("UID of the agent's own pod, which it never restarts.", default=None, env="POD_UID")
    log_level: str = setting("debug, info, warning or error.", default="info")
    log_format: str = setting("json, or console for people.", default="json")

    def listen(self) -> tuple[str, int]:
        """Return host and port of the metrics address."""
        return common_settings.host_and_port(self.metrics_address)

    def probes(self) -> tuple[str, int] | None:
        """Return host and port for probes, where they have their own."""
        return common_settings.host_and_port(self.probes_address) if self.probes_address else None

    def hub_addresses(self) -> tuple[tuple[str, int], ...]:
        """Return hosts and ports of the hub. Raises ValueError."""
        found = tuple(common_settings.host_and_port(item) for item in self.hub)
        if not all(host and 0 < port < _PORTS for host, port in found):
            raise ValueError("no host, or no port")
        return found


def _check(settings: Settings) -> None:
    """Refuse values that cannot work, before anything starts."""
    common_settings.check_logging(level=settings.log_level, form=settings.log_format)
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
    if not 0 < settings.hub_patience <= LONGEST_HUB_PATIENCE:
        raise click.BadParameter(
            f"--hub-patience {settings.hub_patience:g}; must be more than 0 and at most {LONGEST_HUB_PATIENCE:g}"
        )
    if not 0 <= settings.device_wait <= LONGEST_DEVICE_WAIT:
        raise click.BadParameter(f"--device-wait {settings.device_wait:g}; must be from 0 to {LONGEST_DEVICE_WAIT:g}")
    if settings.storm_restarts < 1:
        raise click.BadParameter(f"--storm-restarts {settings.storm_restarts}; must be at least 1")
    if not 0 < settings.storm_window <= LONGEST_WINDOW:
        raise click.BadParameter(
            f"--storm-window {settings.storm_window:g}; must be more than 0 and at most {LONGEST_WINDOW:g}"
        )
    if settings.nvml_poll_period <= 0:
        raise click.BadParameter(f"--nvml-poll-period {settings.nvml_poll_period:g}; must be more than 0")


_OPTIONS = common_settings.Options(Settings, owner="the agent", check=_check)
options = _OPTIONS.all
some_options = _OPTIONS.some
