"""The agent's settings: one frozen value, from flags, environment, a file and defaults, in this order."""

import functools
import os
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from pathlib import Path
from typing import Any

import click
import yaml

ENV_PREFIX = "KUBEMEND_"
LONGEST_DEVICE_WAIT = 30.0
"""Seconds: one restart is carried out in 60 at most, whatever it waits for."""
LONGEST_WINDOW = 24 * 3600.0
"""Seconds over which restarts can be counted: the journal keeps them no longer."""


def _setting(help_text: str, *, default: Any, env: str | None = None) -> Any:
    """A field whose flag is its name, whose variable is ``KUBEMEND_`` and its name, or ``env``."""
    return field(default=default, metadata={"help": help_text, "env": env})


@dataclass(frozen=True, slots=True)
class Settings:
    """How this agent runs. Paths are the host's, as the container sees them; times are in seconds."""

    node_name: str = _setting("Name of this node in Kubernetes.", default=os.uname().nodename, env="NODE_NAME")
    kubeconfig: Path | None = _setting("Kubeconfig; without it the pod's service account is used.", default=None)
    cri_endpoint: str | None = _setting(
        "Socket of the container runtime; without it the usual places are tried.",
        default=None,
        env="CONTAINER_RUNTIME_ENDPOINT",
    )
    pod_resources_socket: str = _setting(
        "Kubelet's pod-resources socket.", default="/var/lib/kubelet/pod-resources/kubelet.sock"
    )
    kernel_log: Path = _setting("Kernel log, or a file in its record format.", default=Path("/dev/kmsg"))
    state_dir: Path = _setting("Where journal and verdicts are kept.", default=Path("/var/lib/kubemend"))
    pod_log_symlinks: Path | None = _setting(
        "Directory in which log shippers find container logs; empty to create no links.",
        default=Path("/var/log/containers"),
    )
    proc: Path = _setting("The host's procfs.", default=Path("/proc"))
    sysfs: Path = _setting("The host's sysfs.", default=Path("/sys"))
    catalog: Path | None = _setting("File with changes to the catalog of fault codes.", default=None)
    namespaces: tuple[str, ...] = _setting(
        "Namespace whose pods are restarted without the annotation; may be repeated.", default=()
    )
    dry_run: bool = _setting("Decide and report, but restart nothing.", default=False)
    metrics_address: str = _setting("HOST:PORT of /metrics, /healthz and /readyz.", default="127.0.0.1:9464")
    nvml_poll_period: float = _setting("Seconds between two polls of all GPUs.", default=5.0)
    ignored_nics: tuple[str, ...] = _setting(
        "NIC that does not matter: PCI address, netdev or RDMA device; may be repeated.", default=()
    )
    unasked_nics: tuple[str, ...] = _setting(
        "NIC that is not asked for RDMA ports, speed and counters (some firmware floods the kernel log then); may be "
        "repeated.",
        default=(),
    )
    network_namespace: Path | None = _setting(
        "Network namespace whose links are watched, such as /proc/1/ns/net; without it the agent's own.", default=None
    )
    device_taints: bool = _setting(
        "Keep new DRA claims off unhealthy devices by DeviceTaintRules (needs the control plane's feature gate).",
        default=False,
    )
    device_wait: float = _setting(
        "Seconds that a new process waits for the old one to leave its GPUs and free their memory.", default=10.0
    )
    storm_restarts: int = _setting(
        "Restarts on this node within --storm-window after which no more are begun, but for those asked for by name.",
        default=60,
    )
    storm_window: float = _setting("Seconds over which --storm-restarts counts.", default=300.0)
    stop_grace: float = _setting("Seconds that restarts under way get when the agent is stopped.", default=20.0)
    pod_uid: str | None = _setting("UID of the agent's own pod, which it never restarts.", default=None, env="POD_UID")
    log_level: str = _setting("debug, info, warning or error.", default="info")
    log_format: str = _setting("json, or console for people.", default="json")

    def listen(self) -> tuple[str, int]:
        """Return host and port of the metrics address."""
        host, _, port = self.metrics_address.rpartition(":")
        return host.strip("[]"), int(port)


def options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a click command ``--config`` and one option per setting, and call it with a ``Settings``.

    What other options the command has are passed on to it.
    """

    @functools.wraps(command)
    def with_settings(**given: Any) -> Any:
        values = {item.name: given.pop(item.name) for item in fields(Settings)}
        return command(settings=_checked(Settings(**values)), **given)

    return some_options(*(item.name for item in fields(Settings)))(with_settings)


def some_options(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a click command ``--config`` and the options of these settings, which are passed on under their names."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        decorated = command
        for item in reversed(fields(Settings)):
            if item.name in names:
                decorated = _option(item)(decorated)
        return click.option(
            "--config",
            type=click.Path(path_type=Path, dir_okay=False),
            envvar=ENV_PREFIX + "CONFIG",
            is_eager=True,
            expose_value=False,
            callback=_read_file,
            help="YAML file with any of the agent's settings, named like its flags.",
        )(decorated)

    return decorate


def _option(item: "Field[Any]") -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    kind = typing.get_type_hints(Settings)[item.name]
    flag = f"--{item.name.replace('_', '-')}"
    assert item.default is not MISSING
    common: dict[str, Any] = {
        "default": item.default,
        "help": item.metadata["help"],
        "envvar": [ENV_PREFIX + item.name.upper(), *filter(None, [item.metadata["env"]])],
        "show_envvar": True,
        "show_default": item.default not in (None, (), ""),
    }
    if kind is bool:
        return click.option(f"{flag}/--no-{flag[2:]}", **common)
    if kind == tuple[str, ...]:
        return click.option(flag.removesuffix("s"), item.name, multiple=True, **common)
    return click.option(flag, type=_parameter(kind), **common)


def _parameter(kind: Any) -> Any:
    members = typing.get_args(kind) if isinstance(kind, types.UnionType) else (kind,)
    if Path in members:
        return _HostPath(optional=types.NoneType in members)
    return next(member for member in members if member is not types.NoneType)


class _HostPath(click.ParamType[Path | None]):
    """A path; the empty text is "none" where that means something."""

    name = "path"

    def __init__(self, *, optional: bool) -> None:
        self._optional = optional

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path | None:
        if not str(value) and not self._optional:
            self.fail("name a path", param, ctx)
        return Path(value) if str(value) else None


def _read_file(context: click.Context, _: click.Parameter, path: Path | None) -> Path | None:
    if path is None:
        return None
    try:
        document = yaml.safe_load(path.read_text()) or {}
    except (OSError, yaml.YAMLError) as error:
        raise click.BadParameter(f"cannot read {path}: {' '.join(str(error).split())}") from error
    if not isinstance(document, Mapping):
        raise click.BadParameter(f"{path} is not a mapping of settings; write lines such as 'state-dir: /var/lib/x'")
    known = {item.name for item in fields(Settings)}
    values = {str(key).replace("-", "_"): value for key, value in document.items()}
    if unknown := sorted(set(values) - known):
        raise click.BadParameter(f"{path} has unknown settings: {', '.join(unknown)}; see --help for those there are")
    context.default_map = {**(context.default_map or {}), **values}
    return path


def _checked(settings: Settings) -> Settings:
    """Refuse values that cannot work, before anything starts."""
    if settings.log_level not in ("debug", "info", "warning", "error"):
        raise click.BadParameter(f"--log-level {settings.log_level!r}; use debug, info, warning or error")
    if settings.log_format not in ("json", "console"):
        raise click.BadParameter(f"--log-format {settings.log_format!r}; use json or console")
    try:
        settings.listen()
    except ValueError:
        raise click.BadParameter(f"--metrics-address {settings.metrics_address!r}; write HOST:PORT") from None
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
    return settings
