"""Define a scenario as values: its steps, and the expectations after each. Pure."""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

Json = Mapping[str, Any]

EVERY_JOB: Final = "all"


def _nothing() -> Json:
    return MappingProxyType({})


class JobState(enum.StrEnum):
    """Name the final states of a Job by the Job controller.

    ACTIVE: it has pods, of which none is ready. STOPPED: it was suspended, and none of its pods is left.
    """

    ACTIVE = "active"
    READY = "ready"
    COMPLETE = "complete"
    FAIL = "fail"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class Create:
    """The user creates the JobSet. ``refused``: the API server refuses it, with a message that this pattern matches."""

    refused: str = ""


@dataclass(frozen=True, slots=True)
class SetJobs:
    """Kubelets bring the pods of Jobs into the state from which the Job controller reports ``state``.

    ``reason`` is that of the condition Failed; "" stands for the usual one.
    """

    jobs: tuple[str, ...]
    state: JobState
    reason: str = ""


@dataclass(frozen=True, slots=True)
class SetPods:
    """Of the pods that a Job has, the first ones succeed, the next ones fail, and further ones are ready."""

    jobs: tuple[str, ...]
    succeed: int = 0
    fail: int = 0
    ready: int = 0


@dataclass(frozen=True, slots=True)
class Set:
    """The user changes fields of the JobSet by their paths; None removes one. ``refused`` as for Create."""

    fields: Json
    refused: str = ""


@dataclass(frozen=True, slots=True)
class WriteStatus:
    """Another client writes the JobSet's status."""

    status: Json


@dataclass(frozen=True, slots=True)
class Relabel:
    """Another client writes labels of Jobs."""

    jobs: tuple[str, ...]
    labels: Mapping[str, str | None]


@dataclass(frozen=True, slots=True)
class Put:
    """Another client creates an object. ``$UID`` in it is the JobSet's."""

    manifest: Json


@dataclass(frozen=True, slots=True)
class Delete:
    """The user deletes objects of a resource; ``jobsets`` stands for the JobSet itself."""

    resource: str
    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FinishDeletions:
    """Jobs that are being deleted are removed now. Until this step they stay (``holding``)."""

    jobs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RoundBegins:
    """A round of the JobSet's gang begins; ``counted``: because of a fault, not on a user's request.

    ``at`` is in seconds from the scenario's beginning; None is now.
    """

    attempt: int
    counted: bool = True
    message: str = "a fault"
    at: float | None = None


@dataclass(frozen=True, slots=True)
class RoundEnds:
    """A round has ended. ``phase`` is its Restart's."""

    attempt: int
    phase: str = "Done"
    seconds: float = 0.4
    reason: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class RoundRefused:
    """A member has failed, and no round is begun for it, permanently."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class RestartController:
    """The controller's process ends, and another one takes its place."""


@dataclass(frozen=True, slots=True)
class Check:
    """Do nothing: the step only has expectations."""


Action = (
    Create
    | SetJobs
    | SetPods
    | Set
    | WriteStatus
    | Relabel
    | Put
    | Delete
    | FinishDeletions
    | RoundBegins
    | RoundEnds
    | RoundRefused
    | RestartController
    | Check
)


@dataclass(frozen=True, slots=True)
class ExpectedJob:
    """Describe a Job that must exist. None is not checked; ``like`` is a part of the object."""

    attempt: int | None = None
    job_attempt: int | None = None
    suspended: bool | None = None
    deleting: bool = False
    like: Json = field(default_factory=_nothing)


@dataclass(frozen=True, slots=True)
class Expect:
    """Describe the expected state once the controller is idle. None is not checked; all given values are exact.

    ``jobset`` is there, deleting or gone, and ``like`` a part of it. ``conditions`` are by type, each ``STATUS REASON:
    MESSAGE``; without a message it may be any, and one that begins with ``~`` is a pattern. ``events`` are all that
    were recorded so far, each ``TYPE REASON: MESSAGE``. ``replicated_jobs`` leaves out zero values.
    """

    jobset: str = "there"
    like: Json = field(default_factory=_nothing)
    conditions: Mapping[str, str] | None = None
    terminal_state: str | None = None
    restarts: int | None = None
    restarts_counted: int | None = None
    in_place: tuple[int | None, int | None] | None = None
    replicated_jobs: Mapping[str, Json] | None = None
    jobs: Mapping[str, ExpectedJob] | None = None
    services: Mapping[str, Json] | None = None
    claims: Mapping[str, Json] | None = None
    events: tuple[str, ...] | None = None
    restart_requests: tuple[Json, ...] | None = None
    gang: Json | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """Describe one event, and the expectations after it. ``label`` is the step's place in the file."""

    label: str
    action: Action
    expect: Expect | None = None


@dataclass(frozen=True, slots=True)
class Scenario:
    """Describe one file. ``about`` is the rule that it shows; ``name`` is the file's, and its namespace's."""

    name: str
    about: str
    jobset: Json
    steps: tuple[Step, ...]

    @property
    def jobset_name(self) -> str:
        """Return the JobSet's name; "" where the API server assigns it."""
        return str(self.jobset["metadata"].get("name", ""))
