"""What came of a round: who is back, who is not and why, and whether anything new ran beside something old. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass

from controller.model.members import NodeName, PodUid
from controller.model.rounds import FaultTold
from controller.rounds.states import MemberState, Phase, Round, Stand

_BACK = (Stand.RUNNING, Stand.COMPLETED)
_NOT_BACK = (Stand.FAILED, Stand.STOPPING, Stand.LEAVING, Stand.JOINING, Stand.STOPPED, Stand.RELEASING)
_WHY = {
    Stand.LEAVING: ("NotGone", "its old pod is not gone yet"),
    Stand.JOINING: ("NotRunning", "its new pod does not run yet"),
    Stand.STOPPING: ("NotStopped", "it has not told that it is stopped"),
    Stand.STOPPED: ("NotReleased", "it was stopped, and is let run without the others"),
    Stand.RELEASING: ("NotRunning", "it has not told that it runs"),
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
    """How a round ends that goes to its end, and why."""

    phase: Phase
    reason: str
    detail: str = ""


def ending(state: Round) -> Ending:
    """Return how the round ends as it stands."""
    missing = failures(state)
    back = sum(one.stand in _BACK for one in current(state))
    left_out = state.count(Stand.WAITING)
    if missing or left_out:
        first = missing[0] if missing else None
        reason = first.reason if first is not None else "FailedAgain"
        detail = f"{len(missing)} of {back + left_out + len(missing)} members are not back"
        detail += f", such as {first.member}: {first.detail or first.reason}" if first is not None else ""
        return Ending(Phase.DEGRADED if back or left_out else Phase.FAILED, reason, detail)
    if not back:
        return Ending(Phase.FAILED, "MembersGone", "no member is there any more")
    return Ending(Phase.DONE, "Completed" if not state.count(Stand.RUNNING) else "Running")


def current(state: Round) -> tuple[MemberState, ...]:
    """Return the pod that counts for each slot, in the slots' order."""
    return tuple(state.members[uid] for _, uid in sorted(state.newest.items()))


def failures(state: Round) -> tuple[Failure, ...]:
    """Return the members that are not back, in their slots' order. One that was deleted for good is none of them."""
    found = {slot: Failure(slot, NodeName(""), "NotReplaced", "nobody has replaced its pod") for slot in state.awaited}
    beside = (one for one in state.members.values() if one.old_runs and one.stand is not Stand.WAITING)
    for one in (*current(state), *beside):
        if one.stand in _NOT_BACK:
            reason, detail = _WHY.get(one.stand, ("", ""))
            name, node = one.member.pod.name, one.member.node
            found[one.member.slot] = Failure(name, node, one.reason or reason, one.detail or detail)
    return tuple(found[slot] for slot in sorted(found))


def is_new(fault: FaultTold, one: MemberState | None, *, state: Round, stopped: float | None) -> bool:
    """Return whether a fault hit what runs since the round, and not what it has stopped; agents may tell of it late.

    ``one`` is its pod in the round, None where that does not know it, and ``stopped`` when everything was stopped, in
    seconds since the round began.
    """
    return fault.at is None or fault.at >= state.started_at + _new_from(one, state=state, stopped=stopped)


def _new_from(one: MemberState | None, *, state: Round, stopped: float | None) -> float:
    """Return since when what runs of a pod is new, in seconds since the round began.

    Where nothing is known to have been stopped of it, or it was let go by itself, all is that happened since then.
    """
    if one is None or one.stopped is None or one.let_go:
        return 0.0
    waits_for_others = not state.rolling and one.stand is not Stand.FAILED
    return stopped if stopped is not None and waits_for_others else one.stopped


@dataclass(frozen=True, slots=True)
class Mended:
    """What is kept of a round that is over: which faults were of what it has stopped. A round itself is large.

    ``by_pod``: Unix time since when what runs of a pod is new; of other pods all is since the round ``began``.
    """

    round: str
    began: float
    by_pod: Mapping[PodUid, float]

    @classmethod
    def by(cls, ended: Round) -> "Mended":
        """Return what a round has mended that has released its members."""
        since = {uid: _new_from(one, state=ended, stopped=ended.stopped) for uid, one in ended.members.items()}
        shared = {each: ended.started_at + each for each in since.values()}  # one number, not one for each pod
        return cls(ended.ref.id, ended.started_at, {uid: shared[each] for uid, each in since.items()})

    def has(self, fault: FaultTold) -> bool:
        """Whether the round has stopped what a fault hit. A device that is not usable is not mended by that."""
        if fault.needs_recreation or fault.at is None:
            return False
        return fault.at < self.by_pod.get(fault.pod, self.began)


def unheld(state: Round) -> tuple[MemberState, ...]:
    """Return the pods of which something new ran, or may have run, before everything old was dead."""
    return tuple(one for _, one in sorted(state.members.items()) if one.let_go or one.slipped > 0)


def old_may_run(state: Round) -> tuple[MemberState, ...]:
    """Return the pods of which something old may run though the round is over: those that made it fail."""
    return tuple(one for _, one in sorted(state.members.items()) if one.old_runs)
