"""The controller's settings."""

import math
import os
from dataclasses import dataclass
from pathlib import Path

import click

from kubemend.common import durations
from kubemend.common import settings as common_settings
from kubemend.common.settings import duration, setting
from kubemend.controller.hub.limits import Caps
from kubemend.controller.restarts.history import Keeping
from kubemend.controller.rounds.states import Limits

_LIMITS = Limits()
_KEEPING = Keeping()
_CAPS = Caps()

LONGEST_TTL = 365 * 24 * 3600.0
"""Seconds for which finished Restart objects can be kept."""

LONGEST_HOLD = 3600.0
"""Seconds; agents refuse more (``agent.hub.wire``)."""
MOST_WRITES = 64
"""The client has 100 connections, of which watches and rounds need some."""

MOST_CONNECTIONS = 100_000
"""Each takes three open files, and memory (docs/operations.md)."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of this controller. Times are in seconds."""

    namespace: str = setting(
        "Namespace of the controller and the agents. Its Lease, certificates and services are in it.",
        default="kubemend",
        env="POD_NAMESPACE",
    )
    pod_name: str = setting("Name of this replica.", default=os.uname().nodename, env="POD_NAME")
    pod_uid: str = setting(
        "UID of this replica's pod. With it a restarted container takes its own Lease over at once.",
        default="",
        env="POD_UID",
    )
    pod_ip: str = setting(
        "IP of this replica's pod. By the hub's port on it other replicas check whether this one is running.",
        default="",
        env="POD_IP",
    )
    kubeconfig: Path | None = setting(  # noqa: RUF009 - a field
        "Kubeconfig. The default is the pod's service account.", default=None
    )
    hub_address: str = setting("HOST:PORT on which the hub serves agents.", default="[::]:9465")
    hub_connections: int = setting(
        "Maximum connections to the hub: one for each agent, and some for peers that are not authenticated yet.",
        default=_CAPS.connections,
    )
    hub_unauthenticated_per_address: int = setting(
        "Maximum unauthenticated connections from one address. Raise it if many nodes share one (NAT).",
        default=_CAPS.unauthenticated_of_address,
    )
    hub_policy: str = setting(
        "NetworkPolicy in which the leader lists the nodes' addresses, so that only nodes reach the hub. None by "
        "default.",
        default="",
    )
    metrics_address: str = setting("HOST:PORT of /metrics, /healthz and /readyz.", default="127.0.0.1:9466")
    probes_address: str = setting(
        "HOST:PORT of /healthz and /readyz only, so that scrapes of /metrics cannot delay probes. The default is "
        "--metrics-address.",
        default="",
    )
    lease_name: str = setting("Lease by which replicas elect the leader.", default="kubemend-controller")
    hub_services: tuple[str, ...] = setting(
        "Name or address by which agents reach the hub, in addition to those of its Service; may be repeated.",
        default=(),
    )
    agent_account: str = setting(
        "NAMESPACE/NAME of the service account of the agents.", default="kubemend/kubemend-agent"
    )
    opt_in_namespaces: tuple[str, ...] = setting(
        "Namespace whose pods are restarted without the annotation; must equal the agents' setting; may be repeated.",
        default=(),
    )
    stop_timeout: float = duration(
        "How long an agent may be silent about a member that has not stopped, before the member counts as lost.",
        default=_LIMITS.stop,
    )
    slow_timeout: float = duration(
        "How long a member may stop or start, though its agent reports progress, before it counts as lost or failed.",
        default=_LIMITS.slow,
    )
    pod_gone_timeout: float = duration(
        "How long the pod of a lost member may take to disappear, before the round fails.", default=_LIMITS.absence
    )
    hold_timeout: float = duration(
        "How long agents hold members without a message from the hub, before they release them.", default=_LIMITS.hold
    )
    replacement_wait: float = duration(
        "How long the other members are held for members that are recreated.",
        default=_LIMITS.hold_for_recreated,
    )
    replacement_ready_timeout: float = duration(
        "How long a recreated member may take to run, before it counts as failed.", default=_LIMITS.recreated
    )
    release_timeout: float = duration(
        "How long a member may take to run after its release while its agent is connected, before it counts as failed.",
        default=_LIMITS.release,
    )
    round_timeout: float = duration("Maximum duration of a round.", default=_LIMITS.whole)
    restart_ttl: float = duration(
        "How long finished Restart objects are kept, unless they set a TTL.", default=_KEEPING.ttl
    )
    keep_restarts: int = setting(
        "Finished Restart objects that are kept beyond the TTL for each gang with members.",
        default=_KEEPING.newest,
    )
    jobsets: bool = setting("Run the JobSets whose spec.managedBy is kubemend.io/jobset-controller.", default=True)
    jobset_writes: int = setting("Concurrent writes for JobSets.", default=50)
    dry_run: bool = setting("Decide and report, but begin no round.", default=False)
    log_level: str = setting("debug, info, warning or error.", default="info")
    log_format: str = setting("json, or console for reading in a terminal.", default="json")

    def listen(self) -> tuple[str, int]:
        """Return host and port of the metrics address."""
        return common_settings.host_and_port(self.metrics_address)

    def probes(self) -> tuple[str, int] | None:
        """Return host and port for probes, if they have their own."""
        return common_settings.host_and_port(self.probes_address) if self.probes_address else None

    def hub(self) -> tuple[str, int]:
        """Return host and port of the hub."""
        return common_settings.host_and_port(self.hub_address)

    def identities(self) -> str:
        """Return the common prefix of the identities of this container's processes; "" if its pod is not known."""
        return f"{self.pod_name}_{self.pod_uid}_" if self.pod_uid else ""

    def own_hub(self) -> str:
        """Return IP and port by which other replicas reach this one's hub; "" if its IP is not known."""
        return f"[{self.pod_ip}]:{self.hub()[1]}" if self.pod_ip else ""

    def caps(self) -> Caps:
        """Return the connection limits of the hub."""
        return Caps(connections=self.hub_connections, unauthenticated_of_address=self.hub_unauthenticated_per_address)

    def agent_user(self) -> str:
        """Return the agents' account as the API server names it."""
        namespace, _, name = self.agent_account.partition("/")
        return f"system:serviceaccount:{namespace}:{name}"

    def limits(self) -> Limits:
        """Return the timeouts of rounds."""
        return Limits(
            hold=self.hold_timeout,
            stop=self.stop_timeout,
            slow=self.slow_timeout,
            absence=self.pod_gone_timeout,
            hold_for_recreated=self.replacement_wait,
            recreated=self.replacement_ready_timeout,
            release=self.release_timeout,
            whole=self.round_timeout,
        )

    def keeping(self) -> Keeping:
        """Return how long Restart objects are kept."""
        return Keeping(ttl=self.restart_ttl, newest=self.keep_restarts)


def _check(settings: Settings) -> None:
    """Reject invalid values before anything starts."""
    common_settings.check_logging(level=settings.log_level, form=settings.log_format)
    common_settings.check_namespaces(settings.opt_in_namespaces)
    addresses = {"--metrics-address": settings.metrics_address, "--hub-address": settings.hub_address}
    if settings.probes_address:
        addresses["--probes-address"] = settings.probes_address
    for flag, address in addresses.items():
        try:
            common_settings.host_and_port(address)
        except ValueError:
            raise click.BadParameter(f"{flag} {address!r} is not HOST:PORT") from None
    if not common_settings.is_namespace(settings.namespace):
        raise click.BadParameter(f"--namespace {settings.namespace!r} is not the name of a namespace")
    if not settings.lease_name:
        raise click.BadParameter("--lease-name is empty")
    namespace, _, account = settings.agent_account.partition("/")
    if not (common_settings.is_namespace(namespace) and account and "/" not in account):
        raise click.BadParameter(f"--agent-account {settings.agent_account!r} is not NAMESPACE/NAME")
    _check_durations(settings)
    if not 1 <= settings.jobset_writes <= MOST_WRITES:
        raise click.BadParameter(f"--jobset-writes {settings.jobset_writes}; must be from 1 to {MOST_WRITES}")
    if not 1 <= settings.hub_connections <= MOST_CONNECTIONS:
        raise click.BadParameter(f"--hub-connections {settings.hub_connections}; must be from 1 to {MOST_CONNECTIONS}")
    if settings.hub_unauthenticated_per_address < 1:
        raise click.BadParameter(
            f"--hub-unauthenticated-per-address {settings.hub_unauthenticated_per_address}; must be at least 1, "
            "because agents connect before they are authenticated"
        )
    if settings.keep_restarts < 1:
        raise click.BadParameter(
            f"--keep-restarts {settings.keep_restarts}; must be at least 1: the newest one has the number of rounds"
        )


def _check_durations(settings: Settings) -> None:
    text = durations.text
    for flag, seconds in _durations(settings).items():
        if not 0 < seconds < math.inf:
            raise click.BadParameter(f"{flag} {text(seconds)}; must be more than 0, and finite")
        if seconds > settings.round_timeout:
            limit = text(settings.round_timeout)
            raise click.BadParameter(f"{flag} {text(seconds)}; must not be more than --round-timeout {limit}")
    if not 0 < settings.slow_timeout < math.inf:
        raise click.BadParameter(f"--slow-timeout {text(settings.slow_timeout)}; must be more than 0, and finite")
    hold, stop = settings.hold_timeout, settings.stop_timeout
    if hold <= stop:
        raise click.BadParameter(
            f"--hold-timeout {text(hold)}; must be more than --stop-timeout {text(stop)}, "
            "else agents release members while others still stop"
        )
    if hold > LONGEST_HOLD:
        raise click.BadParameter(
            f"--hold-timeout {text(hold)}; must not be more than {text(LONGEST_HOLD)}, the agents' maximum"
        )
    wait, ready = settings.replacement_wait, settings.replacement_ready_timeout
    if wait > ready:
        raise click.BadParameter(
            f"--replacement-wait {text(wait)}; must not be more than --replacement-ready-timeout {text(ready)}, "
            "after which a replacement counts as failed"
        )
    if not 0 <= settings.restart_ttl <= LONGEST_TTL:
        raise click.BadParameter(f"--restart-ttl {text(settings.restart_ttl)}; must be from 0s to {text(LONGEST_TTL)}")


def _durations(settings: Settings) -> dict[str, float]:
    """Return the durations that must be positive, by flag."""
    return {
        "--stop-timeout": settings.stop_timeout,
        "--pod-gone-timeout": settings.pod_gone_timeout,
        "--hold-timeout": settings.hold_timeout,
        "--replacement-wait": settings.replacement_wait,
        "--replacement-ready-timeout": settings.replacement_ready_timeout,
        "--release-timeout": settings.release_timeout,
        "--round-timeout": settings.round_timeout,
    }


_OPTIONS = common_settings.Options(Settings, owner="the controller", check=_check)
options = _OPTIONS.all
some_options = _OPTIONS.some
report_unknown_variables = _OPTIONS.report_unknown_variables
