"""The result of one reconcile of a JobSet: writes in their order, one status, Events. Pure values."""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction

from kubemend.controller.jobset.spec.model import ChildJob, JobSet, Json, Refusal, RoundView, Status


@dataclass(frozen=True, slots=True)
class ClaimSpec:
    """The compared fields of a PVC's spec (``controller.jobset.children.volume_claims``); None if it has no value.

    ``selector`` and ``source`` are digests: their size is fixed, while any user's claim may have JobSet's label.
    """

    access: frozenset[str] = frozenset()
    storage_class: str | None = None
    mode: str = "Filesystem"
    volume: str | None = None
    storage: Fraction | None = None
    selector: str | None = None
    source: str | None = None


@dataclass(frozen=True, slots=True)
class ObservedState:
    """The input of a reconcile. ``now`` is Unix seconds; ``claims`` are the names of existing PVCs.

    ``claim_specs``: their specs, as far as they are known. ``jobs`` are those that the JobSet owns (by UID), of any
    attempt. ``rounds`` are its gang's Restart objects by attempt, oldest first. ``refusal``: the newest fault whose
    round was refused for good since the last restart.
    """

    jobset: JobSet
    jobs: tuple[ChildJob, ...]
    now: float
    has_service: bool = False
    claims: frozenset[str] = frozenset()
    claim_specs: Mapping[str, ClaimSpec] = field(default_factory=dict)
    rounds: tuple[RoundView, ...] = ()
    refusal: Refusal | None = None


@dataclass(frozen=True, slots=True)
class CreateJob:
    """Create a Job. AlreadyExists means that the view was outdated: reconcile again."""

    name: str
    body: Json


@dataclass(frozen=True, slots=True)
class DeleteJob:
    """Delete a Job in the foreground, by name and UID."""

    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class SuspendJob:
    """Set ``spec.suspend`` of a Job."""

    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class ResumeJob:
    """Resume a Job. ``clear_start`` first nulls status.startTime (its template is immutable otherwise).

    ``template`` has the pod template's new ``metadata`` and ``spec`` parts, to be set together with suspend=false;
    ``annotations`` are merged into the Job's own.
    """

    name: str
    uid: str
    clear_start: bool
    template: Json
    annotations: Json


@dataclass(frozen=True, slots=True)
class AnnotateJob:
    """Merge annotations into a Job's own, to record the state for which its reset was requested.

    Its group comes after that of the RequestRestart (``policy.template_changes``). It is skipped if that failed,
    because otherwise the reset would not be requested again.
    """

    name: str
    uid: str
    annotations: Json


@dataclass(frozen=True, slots=True)
class CreateService:
    """Create the headless Service if it does not exist."""

    name: str
    body: Json


@dataclass(frozen=True, slots=True)
class CreateClaim:
    """Create a PersistentVolumeClaim if it does not exist."""

    name: str
    body: Json


@dataclass(frozen=True, slots=True)
class RequestRestart:
    """Create a Restart object for the JobSet's gang. Its name ensures that it is created once."""

    name: str
    body: Json


@dataclass(frozen=True, slots=True)
class DeleteJobSet:
    """Delete the JobSet itself in the foreground: its TTL is over."""


Write = (
    CreateJob
    | DeleteJob
    | SuspendJob
    | ResumeJob
    | AnnotateJob
    | CreateService
    | CreateClaim
    | RequestRestart
    | DeleteJobSet
)


class EventType(enum.Enum):
    """events.k8s.io/v1 ``type``."""

    NORMAL = "Normal"
    WARNING = "Warning"


@dataclass(frozen=True, slots=True)
class Event:
    """An Event about the JobSet (reporter ``jobset``, action ``Reconciling``), recorded once the status is written."""

    type: EventType
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Plan:
    """The result. ``status`` None: unchanged. ``wake_at``: reconcile again then, even without a change.

    ``writes`` are done group after group, those of a group concurrently. If one fails, later groups are skipped. The
    status is written after them, whether they succeeded or not, and ``events`` are recorded after that.
    """

    writes: tuple[tuple[Write, ...], ...] = ()
    status: Status | None = None
    events: tuple[Event, ...] = ()
    wake_at: float | None = None
    counts: tuple[str, ...] = field(default=())
    """Metrics to count once the status is written.

    ``failed``, ``completed``, ``restarted``, ``restarted_job``, ``restarted_in_place``.
    """
    warnings: tuple[str, ...] = ()
    """Problems to log: they were ignored, and a person should fix them."""
