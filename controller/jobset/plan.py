"""What one look at a JobSet decides on: writes in their order, one status, events. Pure values."""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction

from controller.jobset.model import ChildJob, JobSet, Json, Refusal, RoundView, Status


@dataclass(frozen=True, slots=True)
class ClaimSpec:
    """What is compared of a PVC's spec (``controller.jobset.claims``); None: it does not say.

    ``selector`` and ``source`` are digests: small whatever somebody wrote there, for anybody's may have JobSet's label.
    """

    access: frozenset[str] = frozenset()
    storage_class: str | None = None
    mode: str = "Filesystem"
    volume: str | None = None
    storage: Fraction | None = None
    selector: str | None = None
    source: str | None = None


@dataclass(frozen=True, slots=True)
class World:
    """All that a decision looks at. ``now`` is Unix seconds; ``claims`` are the names of PVCs that are there already.

    ``claim_specs``: what they are, as far as is known.

    ``jobs`` are those that the JobSet owns (by UID), of any attempt. ``rounds`` are its gang's Restart objects by
    attempt, oldest first. ``refusal``: the newest fault whose round was refused for good since the last restart.
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
    """Create a Job; AlreadyExists means that our view is old: look again."""

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

    ``template`` is the pod template's new ``metadata`` and ``spec`` parts, to be set together with suspend=false;
    ``annotations`` are to be merged into the Job's own.
    """

    name: str
    uid: str
    clear_start: bool
    template: Json
    annotations: Json


@dataclass(frozen=True, slots=True)
class AnnotateJob:
    """Merge annotations into a Job's own: what its reset was asked for is noted (``controller.jobset.changes``).

    Its group comes after the RequestRestart's, and is not done when that failed: nothing would ask again.
    """

    name: str
    uid: str
    annotations: Json


@dataclass(frozen=True, slots=True)
class CreateService:
    """Create the headless Service, if it is not there."""

    name: str
    body: Json


@dataclass(frozen=True, slots=True)
class CreateClaim:
    """Create a PersistentVolumeClaim, if it is not there."""

    name: str
    body: Json


@dataclass(frozen=True, slots=True)
class RequestRestart:
    """Create a Restart object for the JobSet's gang, under a name that makes it happen once."""

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
    """An event about the JobSet (reporter ``jobset``, action ``Reconciling``), told once the status is written."""

    type: EventType
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Plan:
    """The decision. ``status`` None: it is as it should be. ``wake_at``: look again then, though nothing changed.

    ``writes`` are done group after group, those of a group side by side; when one fails, the groups after it are not
    done. The status is written after them, whatever became of them, and ``events`` are told after that.
    """

    writes: tuple[tuple[Write, ...], ...] = ()
    status: Status | None = None
    events: tuple[Event, ...] = ()
    wake_at: float | None = None
    counts: tuple[str, ...] = field(default=())
    """Metrics to count once the status is written: ``failed``, ``completed``, ``restarted``, ``restarted_job``,
    ``restarted_in_place``.
    """
    remarks: tuple[str, ...] = ()
    """What to log: it was passed over, and somebody should mend it."""
