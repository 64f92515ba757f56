"""A scenario as values: what happens, step by step, and what is expected after each. Pure."""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

Json = Mapping[str, Any]

EVERY_JOB: Final = "all"


def _nothing() -> Json:
    return MappingProxyType({})


class BackendName(enum.StrEnum):
    """Against what a scenario can play."""

    MEMORY = "memory"
    STAND_IN = "standin"
    REAL = "real"


class JobState(enum.StrEnum):
    """What the Job controller may say of a Job. STOPPED: it was suspended, and none of its pods is left."""

    ACTIVE = "active"
    READY = "ready"
    COMPLETE = "complete"
    FAIL = "fail"
    STOPPED = "stopped"
    COUNTS = "counts"


@dataclass(frozen=True, slots=True)
class Create:
    """The user creates the JobSet. ``refused``: the API server says no, in words that this pattern is found in."""

    refused: str = ""


@dataclass(frozen=True, slots=True)
class SetJobs:
    """The Job controller tells of Jobs. ``at`` is in seconds from the scenario's beginning; None is now.

    COUNTS sets the fields of ``counts``, and makes ``conditions`` True.
    """

    jobs: tuple[str, ...]
    state: JobState
    reason: str = ""
    message: str = ""
    at: float | None = None
    counts: Json = field(default_factory=_nothing)
    conditions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Set:
    """The user changes fields of the JobSet by their paths; None removes one. ``refused`` as for Create."""

    fields: Json
    refused: str = ""


@dataclass(frozen=True, slots=True)
class WriteStatus:
    """Somebody else writes the JobSet's status."""

    status: Json


@dataclass(frozen=True, slots=True)
class Relabel:
    """Somebody writes labels of Jobs."""

    jobs: tuple[str, ...]
    labels: Mapping[str, str | None]


@dataclass(frozen=True, slots=True)
class Put:
    """Somebody creates an object. ``$UID`` in it is the JobSet's."""

    manifest: Json


@dataclass(frozen=True, slots=True)
class Delete:
    """The user deletes objects of a resource; ``jobsets`` stands for the JobSet itself."""

    resource: str
    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FinishDeletions:
    """The garbage collector has deleted the pods of Jobs that go in the foreground, so that they are gone."""

    jobs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RoundBegins:
    """A round of the JobSet's gang begins; ``counted``: because of a fault, not because somebody asked for it.

    ``at`` is as for SetJobs.
    """

    attempt: int
    counted: bool = True
    message: str = "a fault"
    at: float | None = None


@dataclass(frozen=True, slots=True)
class RoundEnds:
    """A round is over. ``phase`` is its Restart's."""

    attempt: int
    phase: str = "Done"
    seconds: float = 0.4
    reason: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class RoundRefused:
    """A member has failed, and no round is begun for it, for good."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class RestartController:
    """The controller's process goes, and another one takes its place."""


@dataclass(frozen=True, slots=True)
class Pass:
    """Time passes. Only in memory: elsewhere it passes by itself."""

    seconds: float


@dataclass(frozen=True, slots=True)
class FailRequests:
    """The API server answers the next ``count`` requests of a method and a part of a path with ``status``."""

    count: int
    status: int
    method: str
    path: str


@dataclass(frozen=True, slots=True)
class Together:
    """Several things happen before the controller looks. Only in memory: elsewhere it looks when it wants to."""

    actions: "tuple[Action, ...]"


@dataclass(frozen=True, slots=True)
class Look:
    """Nothing happens."""


Action = (
    Create
    | SetJobs
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
    | Pass
    | FailRequests
    | Together
    | Look
)


@dataclass(frozen=True, slots=True)
class ExpectedJob:
    """A Job that is there. None is not looked at; ``like`` is a part of the object."""

    attempt: int | None = None
    job_attempt: int | None = None
    suspended: bool | None = None
    deleting: bool = False
    like: Json = field(default_factory=_nothing)


@dataclass(frozen=True, slots=True)
class Expect:
    """What is so once the controller rests. None is not looked at; all that is given is exact.

    ``jobset`` is there, deleting or gone, and ``like`` a part of it. ``conditions`` are by type, each ``STATUS REASON:
    MESSAGE``; without a message it may be any, and one that begins with ``~`` is a pattern. ``events`` are all that
    were told so far, each ``TYPE REASON: MESSAGE``. ``replicated_jobs`` leaves out what is 0.
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
    """One thing that happens, and what is expected then. ``label`` says which step of the file it is."""

    label: str
    action: Action
    expect: Expect | None = None


@dataclass(frozen=True, slots=True)
class Scenario:
    """One file. ``about`` is the rule that it shows; ``name`` is the file's, and its namespace's."""

    name: str
    about: str
    jobset: Json
    steps: tuple[Step, ...]
    backends: frozenset[BackendName] = field(default_factory=lambda: frozenset(BackendName))
    why: str = ""

    @property
    def jobset_name(self) -> str:
        """The JobSet's name; "" where the API server gives it one."""
        return str(self.jobset["metadata"].get("name", ""))
