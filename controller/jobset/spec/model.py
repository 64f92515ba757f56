"""A JobSet in memory: its spec with the defaults in effect, its status, and its Jobs as the API has them.

The spec is never written back: the defaults of upstream's webhook are filled in here (``spec.reading``). Templates stay
JSON as written, because they are only passed on. Source of all rules: upstream's
``api/jobset/v1alpha2/jobset_types.go`` and ``pkg/controllers/jobset_controller.go``.
"""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

Json = Mapping[str, Any]

API_VERSION: Final = "jobset.x-k8s.io/v1alpha2"
KIND: Final = "JobSet"
MANAGED_BY: Final = "kubemend.io/jobset-controller"
"""The value of ``spec.managedBy`` with which kubemend manages a JobSet. All others are never written to."""

NO_STRINGS: Final[Mapping[str, str]] = MappingProxyType({})
NO_JSON: Final[Json] = MappingProxyType({})


class Operator(enum.Enum):
    """``successPolicy.operator``: all Jobs of the targets, or any of them."""

    ALL = "All"
    ANY = "Any"


class Action(enum.Enum):
    """``failurePolicy.rules[].action``."""

    FAIL_JOBSET = "FailJobSet"
    RESTART_JOBSET = "RestartJobSet"
    RESTART_JOBSET_AND_IGNORE = "RestartJobSetAndIgnoreMaxRestarts"
    RESTART_JOB = "RestartJob"
    RESTART_JOB_AND_IGNORE = "RestartJobAndIgnoreMaxRestarts"


class RestartStrategy(enum.Enum):
    """``failurePolicy.restartStrategy``."""

    RECREATE = "Recreate"
    BLOCKING_RECREATE = "BlockingRecreate"
    IN_PLACE = "InPlaceRestart"


class StartupOrder(enum.Enum):
    """``startupPolicy.startupPolicyOrder``."""

    ANY = "AnyOrder"
    IN_ORDER = "InOrder"


class DependencyStatus(enum.Enum):
    """``dependsOn[].status``."""

    READY = "Ready"
    COMPLETE = "Complete"


class Retention(enum.Enum):
    """``volumeClaimPolicies[].retentionPolicy.whenDeleted``."""

    DELETE = "Delete"
    RETAIN = "Retain"


@dataclass(frozen=True, slots=True)
class Dependency:
    """A dependency: the replicated Job starts when every Job of ``on`` has this status."""

    on: str
    status: DependencyStatus


@dataclass(frozen=True, slots=True)
class ReplicatedJob:
    """``spec.replicatedJobs[]``. ``template`` is the JobTemplateSpec (``metadata``, ``spec``) as it was written.

    It has upstream's webhook's defaults: ``completionMode``, and the ``restartPolicy`` of the pods.
    """

    name: str
    replicas: int
    template: Json
    group: str = "default"
    depends_on: tuple[Dependency, ...] = ()

    @property
    def job_spec(self) -> Json:
        """Return the JobSpec as written."""
        spec: Json = self.template.get("spec") or NO_JSON
        return spec

    @property
    def pod_template(self) -> Json:
        """Return the PodTemplateSpec as written."""
        template: Json = self.job_spec.get("template") or NO_JSON
        return template

    @property
    def parallelism(self) -> int:
        """Return how many pods of a Job run at once; batch/v1's default is 1."""
        given = self.job_spec.get("parallelism")
        return 1 if given is None else int(given)

    @property
    def completions(self) -> int | None:
        """Return the number of a Job's indexes; None if the template has no value."""
        given = self.job_spec.get("completions")
        return None if given is None else int(given)


@dataclass(frozen=True, slots=True)
class Network:
    """``spec.network``; ``subdomain`` defaults to the JobSet's name."""

    subdomain: str
    dns_hostnames: bool = True
    publish_not_ready: bool = True


@dataclass(frozen=True, slots=True)
class SuccessPolicy:
    """``spec.successPolicy``; no ``targets`` means all replicated Jobs."""

    operator: Operator = Operator.ALL
    targets: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FailureRule:
    """``failurePolicy.rules[]``; empty ``reasons``, ``patterns`` (RE2, unanchored) and ``targets`` match everything."""

    name: str
    action: Action
    reasons: tuple[str, ...] = ()
    patterns: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FailurePolicy:
    """``spec.failurePolicy``."""

    max_restarts: int = 0
    rules: tuple[FailureRule, ...] = ()
    strategy: RestartStrategy = RestartStrategy.RECREATE


@dataclass(frozen=True, slots=True)
class Coordinator:
    """``spec.coordinator``: the pod whose address the others get."""

    replicated_job: str
    job_index: int = 0
    pod_index: int = 0


@dataclass(frozen=True, slots=True)
class ClaimPolicy:
    """``spec.volumeClaimPolicies[]``; ``templates`` are PersistentVolumeClaims as they were written."""

    templates: tuple[Json, ...]
    when_deleted: Retention = Retention.DELETE


@dataclass(frozen=True, slots=True)
class Spec:
    """``spec`` with the defaults in effect. ``failure`` None: any failed Job fails the JobSet."""

    replicated_jobs: tuple[ReplicatedJob, ...]
    network: Network
    success: SuccessPolicy = SuccessPolicy()
    failure: FailurePolicy | None = None
    startup: StartupOrder = StartupOrder.ANY
    suspend: bool = False
    coordinator: Coordinator | None = None
    managed_by: str | None = None
    ttl_seconds: int | None = None
    claim_policies: tuple[ClaimPolicy, ...] = ()

    @property
    def is_in_place(self) -> bool:
        """Return whether failures are handled by rounds before anything is recreated."""
        return self.failure is not None and self.failure.strategy is RestartStrategy.IN_PLACE


@dataclass(frozen=True, slots=True)
class Condition:
    """metav1.Condition without the generation. ``since`` is lastTransitionTime in Unix seconds; 0 if it is missing.

    ``foreign`` is the original of a condition of another controller; it is written back unchanged.
    """

    type: str
    status: bool
    reason: str
    message: str
    since: float
    foreign: Json | None = None


@dataclass(frozen=True, slots=True)
class ReplicatedJobStatus:
    """``status.replicatedJobsStatus[]``; the two tuples are empty, or have an entry for each replica."""

    name: str
    ready: int = 0
    succeeded: int = 0
    failed: int = 0
    active: int = 0
    suspended: int = 0
    job_restarts: tuple[int, ...] = ()
    job_restarts_counted: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Status:
    """``status``. ``restarts_counted`` is restartsCountTowardsMax; it includes in-place rounds caused by a fault.

    ``current_in_place`` is the number of the newest in-place round that is over, ``previous_in_place`` the one below it
    (upstream's meaning: workers at or below it must restart).
    """

    conditions: tuple[Condition, ...] = ()
    restarts: int = 0
    restarts_counted: int = 0
    terminal_state: str = ""
    replicated_jobs: tuple[ReplicatedJobStatus, ...] = ()
    previous_in_place: int | None = None
    current_in_place: int | None = None

    def condition(self, kind: str) -> Condition | None:
        """Return the condition of this type, or None."""
        return next((each for each in self.conditions if each.type == kind), None)


@dataclass(frozen=True, slots=True)
class JobSet:
    """One JobSet. ``created_at`` is Unix time."""

    namespace: str
    name: str
    uid: str
    spec: Spec
    status: Status = Status()
    resource_version: str = ""
    generation: int = 0
    created_at: float = 0.0
    deleting: bool = False
    labels: Mapping[str, str] = field(default_factory=lambda: NO_STRINGS)
    annotations: Mapping[str, str] = field(default_factory=lambda: NO_STRINGS)


@dataclass(frozen=True, slots=True)
class JobEnd:
    """A Job's Complete or Failed condition that is True. ``at`` is its lastTransitionTime in Unix seconds."""

    failed: bool
    reason: str = ""
    message: str = ""
    at: float = 0.0


@dataclass(frozen=True, slots=True)
class ChildJob:
    """One Job that a JobSet owns, reduced to what decisions need.

    ``replicated_job``, ``index``, ``attempt`` and ``job_attempt`` come from its labels (empty and None if they are
    missing or not numbers). ``gated``: its pods come with kubemend's scheduling gate, even after its JobSet no longer
    asks for it (``controller.jobset.placement``). ``failed_indexes`` is status.failedIndexes
    (``backoffLimitPerIndex``), ``made_of`` kubemend's annotation with the hashes of its template
    (``policy.template_changes``). ``template`` is what a resume merges into (its pod template's labels, annotations,
    nodeSelector, tolerations, schedulingGates). It is kept for suspended Jobs only, since thousands of Jobs are held in
    memory, and not for one that is too large.
    """

    name: str
    uid: str
    replicated_job: str = ""
    index: int | None = None
    attempt: int | None = None
    job_attempt: int | None = None
    suspended: bool = False
    started: bool = False
    deleting: bool = False
    gated: bool = False
    parallelism: int = 1
    completions: int | None = None
    active: int = 0
    ready: int = 0
    succeeded: int = 0
    failed: int = 0
    end: JobEnd | None = None
    failed_indexes: str = ""
    made_of: str = ""
    resource_version: str = ""
    template: Json | None = None


@dataclass(frozen=True, slots=True)
class RoundView:
    """A round of the JobSet's gang, by its Restart object.

    Times are Unix seconds; ``ended_at`` None while it is under way.

    ``counted``: a fault caused it (a request uses up no restarts). ``restarted`` is whether all members ran again.
    ``owner_uid`` is the UID of the JobSet that owns it, empty if it is not known.
    """

    name: str
    attempt: int
    counted: bool
    started_at: float
    ended_at: float | None = None
    restarted: bool = False
    reason: str = ""
    message: str = ""
    seconds: float = 0.0
    owner_uid: str = ""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A fault's round that was refused for good, with the reason and detail of the gang's decision."""

    reason: str
    message: str
    at: float
    pod: str = ""
