"""The controller's settings."""

import math
import os
from dataclasses import dataclass
from pathlib import Path

import click

from common import settings as common_settings
from common.settings import setting
from controller.hub.caps import Caps
from controller.restarts.history import Keeping
from controller.rounds.states import Limits

_LIMITS = Limits()
_KEEPING = Keeping()
_CAPS = Caps()

LONGEST_TTL = 365 * 24 * 3600.0
"""Seconds for which finished Restart objects can be kept."""

LONGEST_HOLD = 3600.0
"""Seconds, as agents take it (``agent.coordination.wire``)."""
MOST_WRITES = 64
"""The client has 100 connections, of which watches and rounds need some."""

MOST_CONNECTIONS = 100_000
"""Each takes three open files, and memory (docs/operations.md)."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How this controller runs. Times are in seconds."""

    namespace: str = setting(
        "Namespace of the controller and the agents: its Lease, certificates and services are there.",
        default="kubemend",
        env="POD_NAMESPACE",
    )
    pod_name: str = setting("Name of this replica.", default=os.uname().nodename, env="POD_NAME")
    pod_uid: str = setting(
        "UID of this replica's pod: by it a container that was restarted takes up its Lease at once.",
        default="",
        env="POD_UID",
    )
    pod_ip: str = setting(
        "IP of this replica's pod: where its hub listens, other replicas see by it whether it is there.",
        default="",
        env="POD_IP",
    )
    kubeconfig: Path | None = setting(  # noqa: RUF009 - a field
        "Kubeconfig; without it the pod's service account is used.", default=None
    )
    hub_address: str = setting("HOST:PORT on which agents are served.", default="[::]:9465")
    hub_connections: int = setting(
        "Connections to the hub in all: one for each agent, and some for those that have not said yet who they are.",
        default=_CAPS.connections,
    )
    hub_strangers_per_address: int = setting(
        "Connections from one address that may not have said yet who they are; more where many nodes share one (NAT).",
        default=_CAPS.strangers_of_address,
    )
    metrics_address: str = setting("HOST:PORT of /metrics, /healthz and /readyz.", default="127.0.0.1:9466")
    probes_address: str = setting(
        "HOST:PORT of /healthz and /readyz alone, kept busy by nobody who scrapes /metrics; without it they are at "
        "--metrics-address only.",
        default="",
    )
    lease_name: str = setting("Lease by which replicas agree who leads.", default="kubemend-controller")
    hub_services: tuple[str, ...] = setting(
        "Name or address by which agents reach the hub, beside those of its Service; may be repeated.", default=()
    )
    agent_account: str = setting(
        "NAMESPACE/NAME of the service account that agents run as.", default="kubemend/kubemend-agent"
    )
    opted_in_namespaces: tuple[str, ...] = setting(
        "Namespace whose pods are restarted without the annotation, as the agents have it; may be repeated.",
        default=(),
    )
    stop_seconds: float = setting(
        "Seconds without a word from its agent after which a member that has not stopped counts as lost.",
        default=_LIMITS.stop,
    )
    slow_seconds: float = setting(
        "Seconds after which a member counts as lost, or failed, though its agent tells that it still stops or starts.",
        default=_LIMITS.slow,
    )
    absence_seconds: float = setting(
        "Seconds until which the pod of a lost member must be gone, or the round fails.", default=_LIMITS.absence
    )
    hold_seconds: float = setting(
        "Seconds without a word from the hub after which agents let go what they hold.", default=_LIMITS.hold
    )
    recreate_wait: float = setting(
        "Seconds for which the other members are held for those that are recreated.",
        default=_LIMITS.hold_for_recreated,
    )
    recreated_seconds: float = setting(
        "Seconds after which a recreated member that does not run is given up.", default=_LIMITS.recreated
    )
    release_seconds: float = setting(
        "Seconds after which a member that does not run after its release has failed.", default=_LIMITS.release
    )
    round_seconds: float = setting("Seconds that no round outlasts.", default=_LIMITS.whole)
    ttl_seconds: float = setting(
        "Seconds after which finished Restart objects are removed that say nothing else.", default=_KEEPING.ttl
    )
    keep_restarts: int = setting(
        "Finished Restart objects of each gang that are kept longer, for as long as it has members.",
        default=_KEEPING.newest,
    )
    jobsets: bool = setting("Run the JobSets whose spec.managedBy is kubemend.io/jobset-controller.", default=True)
    jobset_writes: int = setting("Writes for JobSets that go to the API server side by side.", default=50)
    dry_run: bool = setting("Decide and report, but begin no round.", default=False)
    log_level: str = setting("debug, info, warning or error.", default="info")
    log_format: str = setting("json, or console for people.", default="json")

    def listen(self) -> tuple[str, int]:
        """Return host and port of the metrics address."""
        return common_settings.host_and_port(self.metrics_address)

    def probes(self) -> tuple[str, int] | None:
        """Return host and port for probes, where they have their own."""
        return common_settings.host_and_port(self.probes_address) if self.probes_address else None

    def hub(self) -> tuple[str, int]:
        """Return host and port of the hub."""
        return common_settings.host_and_port(self.hub_address)

    def identities(self) -> str:
        """Return how the identities of all processes of this container begin; "" where its pod is not known."""
        return f"{self.pod_name}_{self.pod_uid}_" if self.pod_uid else ""

    def own_hub(self) -> str:
        """Return IP and port by which other replicas reach this one's hub; "" where its IP is not known."""
        return f"[{self.pod_ip}]:{self.hub()[1]}" if self.pod_ip else ""

    def caps(self) -> Caps:
        """Return how many connections the hub has."""
        return Caps(connections=self.hub_connections, strangers_of_address=self.hub_strangers_per_address)

    def agent_user(self) -> str:
        """Return the agents' account as the API server calls it."""
        namespace, _, name = self.agent_account.partition("/")
        return f"system:serviceaccount:{namespace}:{name}"

    def limits(self) -> Limits:
        """Return how long rounds wait for what."""
        return Limits(
            hold=self.hold_seconds,
            stop=self.stop_seconds,
            slow=self.slow_seconds,
            absence=self.absence_seconds,
            hold_for_recreated=self.recreate_wait,
            recreated=self.recreated_seconds,
            release=self.release_seconds,
            whole=self.round_seconds,
        )

    def keeping(self) -> Keeping:
        """Return how long Restart objects are kept."""
        return Keeping(ttl=self.ttl_seconds, newest=self.keep_restarts)


def _check(settings: Settings) -> None:
    """Refuse values that cannot work, before anything starts."""
    common_settings.check_logging(level=settings.log_level, form=settings.log_format)
    addresses = {"--metrics-address": settings.metrics_address, "--hub-address": settings.hub_address}
    if settings.probes_address:
        addresses["--probes-address"] = settings.probes_address
    for flag, address in addresses.items():
        try:
            common_settings.host_and_port(address)
        except ValueError:
            raise click.BadParameter(f"{flag} {address!r}; write HOST:PORT") from None
    if not all(settings.agent_account.partition("/")):
        raise click.BadParameter(f"--agent-account {settings.agent_account!r}; write NAMESPACE/NAME")
    for flag, seconds in _durations(settings).items():
        if not 0 < seconds < math.inf:
            raise click.BadParameter(f"{flag} {seconds:g}; must be more than 0, and not infinite")
        if seconds > settings.round_seconds:
            raise click.BadParameter(
                f"{flag} {seconds:g}; must not be more than --round-seconds {settings.round_seconds:g}, which ends all"
            )
    if not 0 < settings.slow_seconds < math.inf:
        raise click.BadParameter(f"--slow-seconds {settings.slow_seconds:g}; must be more than 0, and not infinite")
    if settings.hold_seconds <= settings.stop_seconds:
        raise click.BadParameter(
            f"--hold-seconds {settings.hold_seconds:g}; must be more than --stop-seconds {settings.stop_seconds:g}, "
            "else members let go while others still stop"
        )
    if settings.hold_seconds > LONGEST_HOLD:
        raise click.BadParameter(f"--hold-seconds {settings.hold_seconds:g}; agents hold for {LONGEST_HOLD:g} at most")
    if settings.recreate_wait > settings.recreated_seconds:
        raise click.BadParameter(
            f"--recreate-wait {settings.recreate_wait:g}; must not be more than --recreated-seconds "
            f"{settings.recreated_seconds:g}, after which those that are waited for are given up"
        )
    if not 0 <= settings.ttl_seconds <= LONGEST_TTL:
        raise click.BadParameter(f"--ttl-seconds {settings.ttl_seconds:g}; must be from 0 to {LONGEST_TTL:g}")
    if not 1 <= settings.jobset_writes <= MOST_WRITES:
        raise click.BadParameter(f"--jobset-writes {settings.jobset_writes}; must be from 1 to {MOST_WRITES}")
    if not 1 <= settings.hub_connections <= MOST_CONNECTIONS:
        raise click.BadParameter(f"--hub-connections {settings.hub_connections}; must be from 1 to {MOST_CONNECTIONS}")
    if settings.hub_strangers_per_address < 1:
        raise click.BadParameter(
            f"--hub-strangers-per-address {settings.hub_strangers_per_address}; must be at least 1: agents come as such"
        )
    if settings.keep_restarts < 1:
        raise click.BadParameter(
            f"--keep-restarts {settings.keep_restarts}; must be at least 1: the newest one says how many there were"
        )


def _durations(settings: Settings) -> dict[str, float]:
    """Return the seconds that must be some, by flag."""
    return {
        "--stop-seconds": settings.stop_seconds,
        "--absence-seconds": settings.absence_seconds,
        "--hold-seconds": settings.hold_seconds,
        "--recreate-wait": settings.recreate_wait,
        "--recreated-seconds": settings.recreated_seconds,
        "--release-seconds": settings.release_seconds,
        "--round-seconds": settings.round_seconds,
    }


_OPTIONS = common_settings.Options(Settings, owner="the controller", check=_check)
options = _OPTIONS.all
some_options = _OPTIONS.some
