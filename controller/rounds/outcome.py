"""The outcome of a round: members that are back, those that are not and why, and containers that ran unheld. Pure."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from kubemend.common.coordination import OrderKind
from kubemend.controller.model.members import NodeName, PodUid
from kubemend.controller.model.rounds import FaultReported
from kubemend.controller.rounds.states import MemberPhase, MemberState, Phase, Round

_BACK = (MemberPhase.RUNNING, MemberPhase.COMPLETED)
_NOT_BACK = (
    MemberPhase.FAILED,
    MemberPhase.STOPPING,
    MemberPhase.LEAVING,
    MemberPhase.JOINING,
    MemberPhase.STOPPED,
    MemberPhase.RELEASING,
)
_REASONS = {
    MemberPhase.LEAVING: ("NotGone", "its old pod still exists"),
    MemberPhase.JOINING: ("NotRunning", "its new pod is not running yet"),
    MemberPhase.STOPPING: ("NotStopped", "its agent has not reported it stopped"),
    MemberPhase.STOPPED: ("NotReleased", "the member was stopped, and is released without the others"),
    MemberPhase.RELEASING: ("NotRunning", "its agent has not reported it running"),
}


@dataclass(frozen=True, slots=True)
class Failure:
    """A member that is not back."""

    member: str
    node: NodeName
    reason: str
    detail: str


@dataclass(frozen=True, slots=True)
class Ending:
    """The end of a round that was not cut short, and its reason."""

    phase: Phase
    reason: str
    detail: str = ""


def ending(state: Round) -> Ending:
    """Return the end of the round in its current state."""
    missing = failures(state)
    back = sum(one.phase in _BACK for one in current(state))
    left_out = state.count(MemberPhase.WAITING)
    if missing or left_out:
        first = missing[0] if missing else None
        reason = first.reason if first is not None else "FailedAgain"
        detail = f"{len(missing)} of {back + left_out + len(missing)} members are not back"
        detail += f", such as {first.member}: {first.detail or first.reason}" if first is not None else ""
        return Ending(Phase.DEGRADED if back or left_out else Phase.FAILED, reason, detail)
    if not back:
        return Ending(Phase.FAILED, "MembersGone", "the gang has no members left")
    return Ending(Phase.DONE, "Completed" if not state.count(MemberPhase.RUNNING) else "Running")


def current(state: Round) -> tuple[MemberState, ...]:
    """Return the pod that counts for each slot, in the slots' order."""
    return tuple(state.members[uid] for _, uid in sorted(state.newest.items()))


def failures(state: Round) -> tuple[Failure, ...]:
    """Return the members that are not back, in their slots' order. One that was deleted for good is not among them."""
    found = {slot: Failure(slot, NodeName(""), "NotReplaced", "its pod was not replaced") for slot in state.awaited}
    beside = (one for one in state.members.values() if one.old_runs and one.phase is not MemberPhase.WAITING)
    for one in (*current(state), *beside):
        if one.phase in _NOT_BACK:
            reason, detail = _REASONS.get(one.phase, ("", ""))
            name, node = one.member.pod.name, one.member.node
            found[one.member.slot] = Failure(name, node, one.reason or reason, one.detail or detail)
    return tuple(found[slot] for slot in sorted(found))


def is_new(fault: FaultReported, one: MemberState | None, *, state: Round, stopped: float | None) -> bool:
    """Return whether a fault hit a container that started after the round's stop; reports may arrive late.

    ``one`` is its pod in the round, None if the round does not have it, and ``stopped`` when all were stopped, in
    seconds since the round began.
    """
    return fault.at is None or fault.at >= state.started_at + _new_from(one, state=state, stopped=stopped)


def _new_from(one: MemberState | None, *, state: Round, stopped: float | None) -> float:
    """Return since when running containers of a pod are new, in seconds since the round began.

    If none is known to have been stopped, or the agent released it by itself, every fault since the begin counts as
    new. A member that runs again without a stop was restarted by a previous leader: if that could not record the round,
    it was before the present begin.
    """
    if one is None or one.self_released:
        return 0.0
    if one.stopped is None:
        runs_again = one.phase is MemberPhase.RUNNING and one.order is OrderKind.RESTART
        return -math.inf if runs_again and not state.resumed else 0.0
    waits_for_others = not state.rolling and one.phase is not MemberPhase.FAILED
    return stopped if stopped is not None and waits_for_others else one.stopped


@dataclass(frozen=True, slots=True)
class EndedRound:
    """The part of an ended round that is needed to assign late faults to it. (A whole round is large.)

    ``by_pod``: the Unix time since which the running containers of a pod are new. For other pods, ``began`` applies.
    """

    round: str
    began: float
    by_pod: Mapping[PodUid, float]

    @classmethod
    def of(cls, ended: Round) -> "EndedRound":
        """Return this record of a round that has released its members."""
        since = {uid: _new_from(one, state=ended, stopped=ended.stopped) for uid, one in ended.members.items()}
        shared = {each: ended.started_at + each for each in since.values()}  # shares one number between the pods
        return cls(ended.ref.id, ended.started_at, {uid: shared[each] for uid, each in since.items()})

    def has(self, fault: FaultReported) -> bool:
        """Return whether the round stopped the container that a fault hit.

        A restart does not fix a device that is not usable.
        """
        if fault.needs_recreation or fault.at is None:
            return False
        return fault.at < self.by_pod.get(fault.pod, self.began)


def unheld(state: Round) -> tuple[MemberState, ...]:
    """Return the pods in which a new container ran, or may have run, before all old ones were dead."""
    return tuple(one for _, one in sorted(state.members.items()) if one.self_released or one.unheld_seconds > 0)


def old_may_run(state: Round) -> tuple[MemberState, ...]:
    """Return the pods in which an old container may still run after the round: those that made it fail."""
    return tuple(one for _, one in sorted(state.members.items()) if one.old_runs)
