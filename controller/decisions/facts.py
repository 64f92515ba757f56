"""The input and the result of a decision."""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from kubemend.controller.gangs.budget import GangBudget, Past
from kubemend.controller.gangs.gang_options import GangOptions
from kubemend.controller.gangs.members import Bar
from kubemend.controller.model.faults import Cause, Fault
from kubemend.controller.model.members import Member, NodeName, NodeView, PodUid

_MOVES = frozenset({"ResetDevice", "RebootNode", "Replace"})


class Kind(enum.Enum):
    """The action to take. The first three begin a round."""

    IN_PLACE = "InPlace"
    IN_PLACE_AND_RECREATE = "InPlaceAndRecreate"
    RECREATE_ALL = "RecreateAll"
    OBSERVE = "Observe"
    ALONE = "Alone"
    FAIL = "Fail"
    POSTPONE = "Postpone"

    @property
    def begins_round(self) -> bool:
        """Return whether a Restart object is created and the gang is restarted."""
        return self in (Kind.IN_PLACE, Kind.IN_PLACE_AND_RECREATE, Kind.RECREATE_ALL)


class Reason(enum.Enum):
    """Reason of a decision. Stable: they appear in Restart objects, Events, metrics and docs/operations.md."""

    MEMBER_FAILED = "MemberFailed"
    REQUESTED = "Requested"
    MEMBERS_LOST = "MembersLost"
    MAINTENANCE_PLANNED = "MaintenancePlanned"
    EVICTION_REQUESTED = "EvictionRequested"
    RECREATION_REQUESTED = "RecreationRequested"
    TOO_MANY_FAULTS = "TooManyFaults"
    NOT_A_GANG = "NotAGang"
    IN_A_GANG = "InAGang"
    MEMBER_GONE = "MemberGone"
    MEMBER_COMPLETED = "MemberCompleted"
    SUSPENDED = "Suspended"
    JOBSET_CLOSED = "JobSetClosed"
    JOBSET_RESTARTS = "JobSetRestartsInPlace"
    BAD_ANNOTATION = "BadAnnotation"
    NOT_OPTED_IN = "NotOptedIn"
    NOT_SELECTED = "ContainerNotSelected"
    OBSERVED_ONLY = "ObservedOnly"
    DRY_RUN = "DryRun"
    FATAL_EXIT_CODE = "FatalExitCode"
    NOT_REPLACEABLE = "NotReplaceable"
    DEVICE_NOT_PROVEN = "DeviceNotProven"
    BUDGET_SPENT = "BudgetSpent"
    REACHED_MAX_RESTARTS = "ReachedMaxRestarts"
    NO_PROGRESS = "NoProgress"
    BACKOFF = "Backoff"


@dataclass(frozen=True, slots=True)
class Roster:
    """The facts about a gang that do not depend on the cause (``cases.roster``). Slots are in their order.

    - ``by_pod``: all members; ``present``: the pod that counts for each slot
    - ``live``: those of them that a round would restart
    - ``lost``: the slots whose pods must be replaced; ``movable``: those whose pods may be, because
      they are about to leave their node, with the reason
    - ``concerned``: how many slots are live or lost; ``outside``: those of them that have not opted in
    - ``bars``: why the pods of some slots must not be deleted
    - ``elsewhere``: a live slot that a sidecar of upstream's JobSet controller restarts in place; "" if none is
    - ``unclear`` describes what the gang's annotations have wrong; ``options`` are the defaults then
    """

    by_pod: Mapping[PodUid, Member]
    present: Mapping[str, Member]
    live: Mapping[str, Member]
    lost: frozenset[str]
    movable: Mapping[str, Reason]
    concerned: int
    outside: tuple[str, ...]
    bars: Mapping[str, Bar]
    options: GangOptions
    elsewhere: str = ""
    unclear: str = ""


@dataclass(frozen=True, slots=True)
class Facts:
    """The input of a decision.

    ``members`` are those of the gang that the API server has, ``history`` its rounds so far, oldest first.
    ``opted_in_namespaces`` are the agents' own: a pod there needs no annotation. ``closed``: state of a JobSet that
    takes no restart now (``jobset.policy.in_place.Closed``), "" if it takes some. ``limit`` and ``used`` are that
    JobSet's restarts; None: it has no such limit. ``dry_run``: the controller only reports what it would do.
    ``roster`` is that of these members and nodes, for several decisions about one gang; None: this one makes its own.
    """

    cause: Cause
    members: tuple[Member, ...]
    nodes: Mapping[NodeName, NodeView] = field(default_factory=lambda: MappingProxyType({}))
    history: tuple[Past, ...] = ()
    budget: GangBudget = field(default_factory=GangBudget)
    opted_in_namespaces: frozenset[str] = frozenset()
    closed: str = ""
    limit: int | None = None
    used: int = 0
    dry_run: bool = False
    roster: Roster | None = None


@dataclass(frozen=True, slots=True)
class Decision:
    """The result. ``recreate`` are the slots whose pods are replaced, ``retry_at`` is the end of a timed HOLD."""

    kind: Kind
    reason: Reason
    detail: str = ""
    recreate: frozenset[str] = frozenset()
    retry_at: float | None = None


def needs_recreation(fault: Fault) -> bool:
    """Return whether a new process could not use the device at fault, so that its member is recreated elsewhere."""
    return fault.action_class in _MOVES
