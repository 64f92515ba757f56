"""Build views of gangs for people from pods and Restart objects. Pure.

Fields that an object lacks are missing here as well; nothing is guessed.
"""

import enum
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from kubemend.agent.model import conditions
from kubemend.agent.model.conditions import Condition, ConditionStatus
from kubemend.agent.model.workloads import ResourceHealth
from kubemend.agent.sources import allocated_resources
from kubemend.common import plain
from kubemend.common.gangs import GangKey
from kubemend.common.kube import timestamps
from kubemend.controller.gangs import gang_options
from kubemend.controller.gangs import members as gang_members
from kubemend.controller.gangs.budget import GangBudget
from kubemend.controller.model.members import Member, PodPhase
from kubemend.controller.restarts import objects
from kubemend.controller.restarts.objects import Restart
from kubemend.controller.rounds import status

Json = Mapping[str, Any]

_BAD_OBJECT: Final = (KeyError, ValueError, TypeError, AttributeError)


class State(enum.Enum):
    """Summarize a gang or a member: the worst known state."""

    WELL = "Well"
    UNKNOWN = "Unknown"
    ILL = "Ill"


@dataclass(frozen=True, slots=True)
class MemberView:
    """Describe one member. ``devices``, ``restart`` and ``spare`` are its conditions DevicesHealthy, InPlaceRestart and
    WarmSpare, if present; the last one only while the pod runs.

    ``restarts`` sums the restarts of its main containers as kubelet counts them. ``kubelet`` is the health of its
    devices as their plugins and drivers report it to kubelet; none if kubelet publishes none (KEP-4680).
    """

    slot: str
    pod: str
    node: str
    phase: PodPhase
    ready: bool
    opted_in: bool
    restarts: int
    devices: Condition | None
    restart: Condition | None
    kubelet: tuple[ResourceHealth, ...] = ()
    spare: Condition | None = None

    @property
    def stands(self) -> bool:
        """Return whether the member is ready, or has completed."""
        return self.ready or self.phase is PodPhase.SUCCEEDED

    @property
    def state(self) -> State:
        """Return the state of the member."""
        devices = self.devices.status if self.devices is not None else ConditionStatus.TRUE
        if not self.stands or devices is ConditionStatus.FALSE:
            return State.ILL
        return State.WELL if devices is ConditionStatus.TRUE else State.UNKNOWN


@dataclass(frozen=True, slots=True)
class RoundView:
    """Describe one Restart object. ``attempt`` 0: no round has been made of it.

    ``took`` is in milliseconds from the fault until the last member ran, ``at`` is Unix time.
    """

    name: str
    attempt: int
    phase: str
    cause: str
    message: str
    member: str
    node: str
    decision: str
    reason: str
    detail: str
    took: float | None
    at: float


@dataclass(frozen=True, slots=True)
class BudgetView:
    """Report how many rounds are left of ``limit`` in ``window`` seconds."""

    left: int
    limit: int
    window: float


@dataclass(frozen=True, slots=True)
class GangView:
    """Describe one gang; ``rounds`` are newest first. ``budget`` is None if unknown, with the reason in ``notes``."""

    key: GangKey
    members: tuple[MemberView, ...]
    rounds: tuple[RoundView, ...]
    budget: BudgetView | None
    notes: tuple[str, ...] = ()

    @property
    def nodes(self) -> tuple[str, ...]:
        """Return the nodes of its members."""
        return tuple(sorted({member.node for member in self.members if member.node}))

    @property
    def is_ours(self) -> bool:
        """Return whether kubemend manages it: a member opted in, or has a condition, or the gang had a round."""
        return bool(self.rounds) or any(each.opted_in or each.devices or each.restart for each in self.members)

    @property
    def state(self) -> State:
        """Return the state of the gang."""
        states = {member.state for member in self.members}
        return next((state for state in (State.ILL, State.UNKNOWN) if state in states), State.WELL)


@dataclass(frozen=True, slots=True)
class Report:
    """Hold all gangs by their keys. ``notes`` list missing information; ``whole``: Restart objects could be read."""

    gangs: tuple[GangView, ...]
    notes: tuple[str, ...] = ()
    whole: bool = True

    @property
    def state(self) -> State:
        """Return the worst state of all gangs, Unknown at best when information is missing."""
        states = {gang.state for gang in self.gangs} | ({State.UNKNOWN} if self.notes or not self.whole else set())
        return next((state for state in (State.ILL, State.UNKNOWN) if state in states), State.WELL)


def report(pods: Iterable[Json], restarts: Iterable[Json] | None, *, now: float, notes: tuple[str, ...] = ()) -> Report:
    """Return all gangs that have members or rounds.

    ``restarts`` None: they could not be read, with the reason in ``notes``. ``now`` is Unix time.
    """
    members: defaultdict[GangKey, list[tuple[Member, Json]]] = defaultdict(list)
    for pod in pods:
        if (member := gang_members.member(pod)) is not None:
            members[member.gang].append((member, pod))
    rounds: defaultdict[GangKey, list[Restart]] = defaultdict(list)
    unread = []
    for each in restarts or ():
        try:
            restart = objects.parse(each)
        except _BAD_OBJECT as error:
            unread.append(f"Restart {_name(each)} has an unknown format and is omitted: {error!r}")
            continue
        if restart.gang is not None:
            rounds[restart.gang].append(restart)
    gangs = tuple(
        _gang(key, members[key], rounds[key] if restarts is not None else None, now=now)
        for key in sorted({*members, *rounds})
    )
    return Report(gangs, notes=(*notes, *unread), whole=restarts is not None)


def _name(restart: Json) -> str:
    metadata = restart.get("metadata") or {}
    return f"{metadata.get('namespace')}/{metadata.get('name')}"


def _gang(
    key: GangKey, pods: Iterable[tuple[Member, Json]], restarts: Iterable[Restart] | None, *, now: float
) -> GangView:
    views = {member.pod.uid: (member, pod) for member, pod in pods}
    counting = gang_members.by_slot(member for member, _ in views.values())
    newest_first = sorted(restarts or (), key=lambda each: (each.attempt, each.created_at, each.name), reverse=True)
    notes: tuple[str, ...] = ()
    budget = None
    try:
        limit = gang_options.of(counting.values()).max_restarts
        budget = _budget(limit, _same(newest_first, counting.values()), now=now) if restarts is not None else None
    except gang_options.BadAnnotationError as error:
        notes = (str(error),)
    return GangView(
        key=key,
        members=tuple(_member(slot, *views[member.pod.uid]) for slot, member in counting.items()),
        rounds=tuple(_round(each) for each in newest_first),
        budget=budget,
        notes=notes,
    )


def _same(restarts: Iterable[Restart], members: Collection[Member]) -> list[Restart]:
    """Return the rounds of the gang that has this name now, as ``controller.coordinator.round_report`` counts them."""
    uid = gang_members.uid_of(members)
    return [each for each in restarts if not uid or each.gang_uid in ("", uid)]


def _budget(limit: int | None, restarts: Iterable[Restart], *, now: float) -> BudgetView:
    whole = GangBudget() if limit is None else GangBudget(limit=limit)
    past = [status.past(each.status, created_at=each.created_at) for each in restarts if each.is_round]
    return BudgetView(left=whole.left(past, now=now), limit=whole.limit, window=whole.window)


def _member(slot: str, member: Member, pod: Json) -> MemberView:
    status = pod.get("status") or {}
    ours = {condition.type: _plain(condition) for condition in conditions.ours(status)}
    ready = any(each["type"] == "Ready" and each["status"] == "True" for each in status.get("conditions") or ())
    return MemberView(
        slot=slot,
        pod=member.pod.name,
        node=member.node,
        phase=member.phase,
        ready=ready,
        opted_in=gang_members.opted_in(member),
        restarts=sum(each.get("restartCount", 0) for each in status.get("containerStatuses") or ()),
        devices=ours.get(conditions.DEVICES_HEALTHY),
        restart=ours.get(conditions.IN_PLACE_RESTART),
        kubelet=_kubelets(status),
        spare=ours.get(conditions.WARM_SPARE) if member.phase is PodPhase.RUNNING else None,
    )


def _kubelets(status: Json) -> tuple[ResourceHealth, ...]:
    try:
        found = allocated_resources.read(status)
    except _BAD_OBJECT:
        return ()
    return tuple(
        replace(each, resource=plain.text(each.resource), id=plain.text(each.id), message=plain.text(each.message))
        for each in found
    )


def _plain(condition: Condition) -> Condition:
    return replace(condition, reason=plain.text(condition.reason), message=plain.text(condition.message))


def _round(restart: Restart) -> RoundView:
    status = plain.document({**restart.status})
    trigger, decision = status.get("trigger") or {}, status.get("decision") or {}
    return RoundView(
        name=restart.name,
        attempt=restart.attempt,
        phase=status.get("phase") or "Requested",
        cause=trigger.get("code") or "",
        message=trigger.get("message") or plain.text(restart.spec.reason),
        member=trigger.get("member") or "",
        node=trigger.get("node") or "",
        decision=decision.get("kind") or "",
        reason=decision.get("reason") or "",
        detail=decision.get("detail") or "",
        took=(status.get("timings") or {}).get("totalMilliseconds"),
        at=_time(status.get("startTime")) or restart.created_at,
    )


def _time(text: str | None) -> float:
    return float(timestamps.unix(text)) if text else 0.0
