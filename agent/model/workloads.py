"""Pods and containers: their identities, and their state in the runtime and in the API."""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NewType

from kubemend.agent.model.conditions import Condition
from kubemend.agent.model.devices import DeviceId
from kubemend.common import coordination, gangs
from kubemend.common.gangs import GangKey
from kubemend.common.kube.changes import ChangeKind

PodRef = coordination.PodRef
PodUid = coordination.PodUid
ContainerId = NewType("ContainerId", str)
SandboxId = NewType("SandboxId", str)

PHASES_OVER = frozenset({"Succeeded", "Failed"})
"""Pod phases in which no container runs or will run again."""


@dataclass(frozen=True, order=True, slots=True)
class ContainerRef:
    """A container of a pod, by its name in the spec; the reference stays valid across restarts."""

    pod: PodRef
    name: str

    def __str__(self) -> str:
        return f"{self.pod}/{self.name}"


class ContainerState(enum.Enum):
    """CRI's container states (runtime/v1 ``ContainerState``)."""

    CREATED = "created"
    RUNNING = "running"
    EXITED = "exited"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class ContainerSummary:
    """One container as the runtime lists it. ``created_at`` is in nanoseconds, as in CRI.

    ``restart_id`` is the id of the kubemend restart that created it, or None when kubelet did.
    """

    id: ContainerId
    ref: ContainerRef
    sandbox_id: SandboxId
    attempt: int
    state: ContainerState
    created_at: int
    restart_id: str | None = None

    @property
    def generation(self) -> tuple[int, int]:
        """Return its place among the containers of its name: attempts only grow, but the clock may be set back."""
        return self.attempt, self.created_at

    def is_newer(self, moment: float, *, now: float) -> bool:
        """Return whether it was created after a moment; both are Unix seconds.

        A creation in the future is from before the clock was set back, and so is no later than a moment since then.
        """
        created = self.created_at / 1e9
        return created > moment and (created <= now or moment > now)


@dataclass(frozen=True, slots=True)
class SandboxView:
    """One pod sandbox as the runtime lists it.

    ``annotations`` are the pod's annotations at its start. ``runtime_handler`` is the handler of its RuntimeClass,
    empty for the node's default.
    """

    id: SandboxId
    pod: PodRef
    ready: bool
    created_at: int
    annotations: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    runtime_handler: str = ""


class RestartPolicy(enum.Enum):
    """A pod's ``spec.restartPolicy`` or a container's own ``restartPolicy`` (KEP-5307)."""

    ALWAYS = "Always"
    ON_FAILURE = "OnFailure"
    NEVER = "Never"


class ContainerRole(enum.Enum):
    """The role of a container of the spec for kubelet."""

    INIT = "init"
    SIDECAR = "sidecar"  # an init container with restartPolicy Always (KEP-753)
    MAIN = "main"


@dataclass(frozen=True, slots=True)
class ExecHook:
    """``exec`` of a lifecycle hook (postStart, preStop)."""

    command: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class HttpHook:
    """``httpGet`` of a lifecycle hook. ``host`` None means the pod's IP; ``port`` is already resolved."""

    port: int
    path: str = "/"
    scheme: str = "HTTP"
    host: str | None = None
    headers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class SleepHook:
    """``sleep`` of a lifecycle hook (KEP-3960)."""

    seconds: int


@dataclass(frozen=True, slots=True)
class UnsupportedHook:
    """A handler that the agent cannot run as kubelet would.

    A container with such a postStart is left to kubelet to start.
    """

    reason: str


Hook = ExecHook | HttpHook | SleepHook | UnsupportedHook


class RuleAction(enum.Enum):
    """The action of a ``restartPolicyRules`` item (KEP-5307, KEP-5532)."""

    RESTART = "Restart"
    RESTART_ALL = "RestartAllContainers"
    OTHER = "other"  # from a newer Kubernetes


@dataclass(frozen=True, slots=True)
class RestartRule:
    """One item of ``restartPolicyRules``; ``inverted`` is the operator NotIn. Kubelet uses the first that matches."""

    action: RuleAction
    exit_codes: frozenset[int]
    inverted: bool = False

    def matches(self, exit_code: int) -> bool:
        """Return whether the rule applies to this exit code."""
        return (exit_code in self.exit_codes) is not self.inverted


@dataclass(frozen=True, slots=True)
class Probe:
    """The settings that decide when kubelet kills an unresponsive container; seconds, with the API's defaults."""

    initial_delay: float = 0.0
    period: float = 10.0
    failure_threshold: int = 3


@dataclass(frozen=True, slots=True)
class ContainerSpec:
    """One container according to the pod's spec and status. ``started`` is the status of the startup probe."""

    name: str
    role: ContainerRole
    restart_policy: RestartPolicy | None = None  # None: the pod's applies
    restart_rules: tuple[RestartRule, ...] = ()
    post_start: Hook | None = None
    pre_stop: Hook | None = None
    has_startup_probe: bool = False
    liveness: Probe | None = None
    startup: Probe | None = None
    container_id: ContainerId | None = None  # from status, without its runtime prefix
    restart_count: int = 0
    running: bool = False
    started: bool = False
    succeeded: bool = False  # it has ended with exit code 0
    backs_off: bool = False  # kubelet waits before it starts it again (CrashLoopBackOff)
    holds_devices: bool = False  # by its spec, independent of kubelet's allocations
    image: str = ""  # as the pod names it

    def rule_for(self, exit_code: int) -> RestartRule | None:
        """Return the rule that kubelet applies to this exit code, or None."""
        return next((rule for rule in self.restart_rules if rule.matches(exit_code)), None)


@dataclass(frozen=True, slots=True)
class OwnerRef:
    """The pod's controller."""

    api_group: str
    kind: str
    name: str
    version: str = "v1"


class ReportedHealth(enum.Enum):
    """Health of a device as its plugin or DRA driver reports it (KEP-4680)."""

    HEALTHY = "Healthy"
    UNHEALTHY = "Unhealthy"
    UNKNOWN = "Unknown"


@dataclass(frozen=True, slots=True)
class ResourceHealth:
    """One item of a container's ``allocatedResourcesStatus``; ``id`` is the id of the plugin or driver."""

    resource: str
    id: str
    health: ReportedHealth
    message: str = ""


@dataclass(frozen=True, slots=True)
class PodView:
    """One pod as last received from the API server.

    ``leaving`` is the reason for which Kubernetes ends the pod without a deletion (eviction, preemption, node
    shutdown), else empty.
    """

    ref: PodRef
    phase: str
    restart_policy: RestartPolicy
    containers: tuple[ContainerSpec, ...]
    annotations: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    labels: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    owner: OwnerRef | None = None
    deleting: bool = False
    leaving: str = ""
    pod_ip: str | None = None
    node_name: str = ""
    resource_version: str = ""
    conditions: tuple[Condition, ...] = ()  # only kubemend's (agent.model.conditions.PREFIX)
    resource_health: tuple[ResourceHealth, ...] = ()  # of all its containers
    reads_restarts: bool = False  # the annotation kubemend.io/restarts, by a downward API volume

    @property
    def is_over(self) -> bool:
        """Whether no container of it runs or will run again."""
        return self.phase in PHASES_OVER

    @property
    def gang(self) -> GangKey | None:
        """Its gang; None if it is in none."""
        return gangs.key(self.ref.namespace, self.labels)

    def container(self, name: str) -> ContainerSpec | None:
        """Return the container of that name, or None."""
        return next((spec for spec in self.containers if spec.name == name), None)

    def policy_of(self, name: str) -> RestartPolicy:
        """Return the restart policy that kubelet applies to that container (its own, else the pod's)."""
        spec = self.container(name)
        return spec.restart_policy if spec is not None and spec.restart_policy is not None else self.restart_policy


@dataclass(frozen=True, order=True, slots=True)
class ClaimDevice:
    """A device held through a DRA ResourceClaim; driver, pool and device identify it in the cluster (KEP-4381)."""

    driver: str
    pool: str
    device: str


@dataclass(frozen=True, order=True, slots=True)
class PluginDevice:
    """A device held through a device plugin, by an id that only the plugin understands."""

    resource: str
    id: str


@dataclass(frozen=True, slots=True)
class Allocation:
    """Devices that one container holds, from kubelet's pod-resources API (which gives no pod UID).

    ``devices`` are those known by UUID. ``claims`` and ``plugin_devices`` are those not (yet) matched with a GPU: they
    are kept, so that an unmatched device never looks like no device. ``shared``: one of them is a share of a GPU
    (time-slicing, MPS), of which other containers may hold or get more. ``cdi_devices`` are the full names of the CDI
    devices of its claims.
    """

    namespace: str
    pod_name: str
    container: str
    devices: frozenset[DeviceId]
    claims: frozenset[ClaimDevice] = frozenset()
    plugin_devices: frozenset[PluginDevice] = frozenset()
    shared: bool = False
    cdi_devices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Allocations:
    """The holders of devices. ``known`` False: kubelet did not answer, which does not mean that no device is held."""

    items: tuple[Allocation, ...] = ()
    known: bool = False

    def holders(self, devices: frozenset[DeviceId]) -> tuple[Allocation, ...]:
        """Return the allocations that hold any of the devices."""
        return tuple(item for item in self.items if item.devices & devices)


PodChangeKind = ChangeKind
"""Kind of a pod change. A pod that was rebound under its name is GONE and then APPEARED, with another UID."""


@dataclass(frozen=True, slots=True)
class PodChange:
    """One change; ``pod`` is the new view, or the last one of a deleted pod."""

    kind: PodChangeKind
    pod: PodView
