"""Advance a round after its events: release members, start the next ones, and end the round. Pure."""

from kubemend.common.coordination import OrderKind
from kubemend.controller.model.members import PodPhase, PodUid
from kubemend.controller.rounds import outcome
from kubemend.controller.rounds.round_builder import RoundBuilder
from kubemend.controller.rounds.states import MemberPhase, MemberState, Phase

NO_ANSWER = "NoAnswer"


def progress(draft: RoundBuilder) -> None:
    """Advance as far as the known state allows."""
    if draft.state.rolling and not draft.phase.is_final:
        _roll(draft)
        return
    if draft.phase is Phase.STOPPING:
        if draft.proven:
            _trust_previous_leader(draft)
        draft.note_dead()
        if draft.proven or _may_release(draft):
            _release(draft)
    if draft.phase is Phase.RELEASING and _is_settled(draft):
        finish(draft)


def finish(draft: RoundBuilder) -> None:
    """End the round in its current state."""
    for uid, one in list(draft.members.items()):
        if one.phase is MemberPhase.RELEASING:
            detail = f"its agent has not reported it running within {draft.now - one.since:.0f} s"
            draft.change(uid, phase=MemberPhase.FAILED, reason=NO_ANSWER, detail=detail)
        elif one.phase is MemberPhase.JOINING and one.member.phase is PodPhase.RUNNING:
            draft.change(uid, phase=MemberPhase.RUNNING, running=draft.elapsed)
        if draft.members[uid].phase in (MemberPhase.FAILED, MemberPhase.LEAVING, MemberPhase.JOINING):
            draft.abort(uid)
    ending = outcome.ending(draft.frozen())
    draft.reason, draft.detail = ending.reason, ending.detail
    draft.ended = draft.elapsed
    if draft.stopped is None:
        draft.stopped = draft.elapsed
    draft.enter(ending.phase)


# ---- all together ----


def _trust_previous_leader(draft: RoundBuilder) -> None:
    """Count all members as stopped: a previous leader released some, so it knew that all old containers were dead."""
    for uid, one in list(draft.members.items()):
        if one.old_runs:
            draft.change(
                uid, phase=MemberPhase.STOPPED if one.phase is MemberPhase.STOPPING else one.phase, old_runs=False
            )


def _may_release(draft: RoundBuilder) -> bool:
    if draft.blocking:
        return False
    return draft.waited >= draft.state.limits.hold_for_recreated or not _waits_for_replacements(draft)


def _waits_for_replacements(draft: RoundBuilder) -> bool:
    """Return whether stopped members wait for recreated ones; these need not be held for one another."""
    if not draft.awaited and not draft.count(MemberPhase.LEAVING, MemberPhase.JOINING):
        return False
    everyone = draft.members.values()
    coming = draft.awaited or any(one.phase is MemberPhase.LEAVING or _is_replacement(one) for one in everyone)
    return bool(coming) and any(one.phase is MemberPhase.STOPPED and one.order is OrderKind.RESTART for one in everyone)


def _is_replacement(one: MemberState) -> bool:
    return one.phase is MemberPhase.JOINING and one.replaces


def _release(draft: RoundBuilder) -> None:
    draft.enter(Phase.RELEASING)
    draft.stopped = draft.elapsed
    for uid, one in list(draft.members.items()):
        if one.phase is MemberPhase.STOPPED:
            draft.change(uid, phase=MemberPhase.RELEASING)
            draft.release(uid)
        elif one.phase is MemberPhase.JOINING:
            draft.release(uid)
            if not one.replaces:
                draft.forget(uid)  # it had not begun to run before the round either
            elif not one.member.node:
                draft.change(uid, order=None)  # it has not run, and need not be held when it starts
        elif one.phase in (MemberPhase.LEAVING, MemberPhase.FAILED):
            draft.abort(uid)


def _is_settled(draft: RoundBuilder) -> bool:
    if draft.count(MemberPhase.RELEASING):
        return _answers_are_overdue(draft)
    if draft.again or draft.waited >= draft.state.limits.recreated:
        return True
    return not draft.awaited and not draft.count(MemberPhase.LEAVING, MemberPhase.JOINING)


def _answers_are_overdue(draft: RoundBuilder) -> bool:
    """Return whether released members have had their time to answer, because a fault waits for a decision.

    After an outage agents reconnect one after another: answers of those that have not yet are not missing.
    """
    if not draft.again:
        return False
    released_at = draft.state.started_at + (draft.stopped or 0.0)
    limits = draft.state.limits
    asked = (one for one in draft.members.values() if one.phase is MemberPhase.RELEASING)
    redials = any(one.member.node not in draft.connected for one in asked)
    return draft.now >= max(draft.again_at, released_at) + (limits.redial if redials else limits.after_fault)


# ---- one after another ----


def _roll(draft: RoundBuilder) -> None:
    """Advance a rolling round: stop members without a common wait, few at a time; after a failure start no more."""
    for uid in _in_phase(draft, MemberPhase.STOPPED):
        draft.change(uid, phase=MemberPhase.RELEASING)
        draft.release(uid)
    if _awaits_hellos(draft):
        return
    missing = [slot for slot, since in draft.awaited.items() if draft.now - since >= draft.state.limits.recreated]
    in_trouble = bool(missing or draft.again or _has_failed(draft))
    away = draft.count(MemberPhase.STOPPING, MemberPhase.LEAVING, MemberPhase.RELEASING, MemberPhase.JOINING)
    away += len(draft.awaited) - len(missing)
    assert draft.state.max_unavailable is not None
    if not in_trouble and draft.count(MemberPhase.WAITING):
        for uid in _in_phase(draft, MemberPhase.WAITING)[: max(draft.state.max_unavailable - away, 0)]:
            draft.change(uid, phase=MemberPhase.STOPPING)
            draft.stop(uid)
            away += 1
    if away == 0 or _answers_are_overdue(draft):
        finish(draft)


def _awaits_hellos(draft: RoundBuilder) -> bool:
    """Return whether a new leader does not know yet which members the previous one has away: their agents report that.

    Agents connect to it one after another. One that takes longer than they do has no member in the round, most likely.
    """
    if not draft.awaits_agents:
        return False
    waiting = (one for one in draft.members.values() if one.phase is MemberPhase.WAITING)
    return any(one.member.node not in draft.connected for one in waiting)


def _has_failed(draft: RoundBuilder) -> bool:
    failed = draft.count(MemberPhase.FAILED) and any(
        draft.members[uid].phase is MemberPhase.FAILED for uid in draft.newest.values()
    )
    return bool(failed)


def _in_phase(draft: RoundBuilder, phase: MemberPhase) -> list[PodUid]:
    """Return the pods in this phase, by their slots."""
    if not draft.count(phase):
        return []
    found = [(one.member.slot, uid) for uid, one in draft.members.items() if one.phase is phase]
    return [uid for _, uid in sorted(found)]
