"""What follows once events are taken in: who is released, who is next, and how the round ends. Pure."""

from controller.model.members import PodPhase, PodUid
from controller.model.rounds import OrderKind
from controller.rounds import outcome
from controller.rounds.draft import Draft
from controller.rounds.states import MemberState, Phase, Stand

NO_ANSWER = "NoAnswer"


def progress(draft: Draft) -> None:
    """Go on as far as what is known allows."""
    if draft.state.rolling and not draft.phase.is_final:
        _roll(draft)
        return
    if draft.phase is Phase.STOPPING:
        if draft.proven:
            _believe_former_leader(draft)
        if draft.proven or _may_release(draft):
            _release(draft)
    if draft.phase is Phase.RELEASING and _is_settled(draft):
        finish(draft)


def finish(draft: Draft) -> None:
    """End the round as it stands."""
    for uid, one in list(draft.members.items()):
        if one.stand is Stand.RELEASING:
            detail = f"its agent has not told that it runs within {draft.now - one.since:.0f} s"
            draft.change(uid, stand=Stand.FAILED, reason=NO_ANSWER, detail=detail)
        elif one.stand is Stand.JOINING and one.member.phase is PodPhase.RUNNING:
            draft.change(uid, stand=Stand.RUNNING, running=draft.elapsed)
        if draft.members[uid].stand in (Stand.FAILED, Stand.LEAVING, Stand.JOINING):
            draft.abort(uid)
    ending = outcome.ending(draft.frozen())
    draft.reason, draft.detail = ending.reason, ending.detail
    draft.ended = draft.elapsed
    if draft.stopped is None:
        draft.stopped = draft.elapsed
    draft.enter(ending.phase)


# ---- all together ----


def _believe_former_leader(draft: Draft) -> None:
    """It has released some, so it knew that everything old was dead; what we still miss are words, not deaths."""
    for uid, one in list(draft.members.items()):
        if one.old_runs:
            draft.change(uid, stand=Stand.STOPPED if one.stand is Stand.STOPPING else one.stand, old_runs=False)


def _may_release(draft: Draft) -> bool:
    if draft.blocking:
        return False
    return draft.waited >= draft.state.limits.hold_for_recreated or not _is_worth_waiting(draft)


def _is_worth_waiting(draft: Draft) -> bool:
    """Whether members that stayed are held for some that come anew; these need not be held for one another."""
    if not draft.awaited and not draft.count(Stand.LEAVING, Stand.JOINING):
        return False
    everyone = draft.members.values()
    coming = draft.awaited or any(one.stand is Stand.LEAVING or _comes_anew(one) for one in everyone)
    return bool(coming) and any(one.stand is Stand.STOPPED and one.order is OrderKind.RESTART for one in everyone)


def _comes_anew(one: MemberState) -> bool:
    return one.stand is Stand.JOINING and one.replaces


def _release(draft: Draft) -> None:
    draft.enter(Phase.RELEASING)
    draft.stopped = draft.elapsed
    for uid, one in list(draft.members.items()):
        if one.stand is Stand.STOPPED:
            draft.change(uid, stand=Stand.RELEASING)
            draft.release(uid)
        elif one.stand is Stand.JOINING:
            draft.release(uid)
            if not one.replaces:
                draft.forget(uid)  # it had not begun to run before the round either
        elif one.stand in (Stand.LEAVING, Stand.FAILED):
            draft.abort(uid)


def _is_settled(draft: Draft) -> bool:
    if draft.count(Stand.RELEASING):
        return _hurries(draft)
    if draft.again or draft.waited >= draft.state.limits.recreated:
        return True
    return not draft.awaited and not draft.count(Stand.LEAVING, Stand.JOINING)


def _hurries(draft: Draft) -> bool:
    """Whether those that were released have had their time to answer, as there is a fault to be decided on.

    After an outage agents come back one after another: the answers of those that have not yet are not missing.
    """
    if not draft.again:
        return False
    released_at = draft.state.started_at + (draft.stopped or 0.0)
    limits = draft.state.limits
    asked = (one for one in draft.members.values() if one.stand is Stand.RELEASING)
    redials = any(one.member.node not in draft.connected for one in asked)
    return draft.now >= max(draft.again_at, released_at) + (limits.redial if redials else limits.after_fault)


# ---- one after another ----


def _roll(draft: Draft) -> None:
    """Nobody waits for another to be stopped, but only so many are away at a time. After a failure none is begun."""
    for uid in _standing(draft, Stand.STOPPED):
        draft.change(uid, stand=Stand.RELEASING)
        draft.release(uid)
    missing = [slot for slot, since in draft.awaited.items() if draft.now - since >= draft.state.limits.recreated]
    in_trouble = bool(missing or draft.again or _has_failed(draft))
    away = draft.count(Stand.STOPPING, Stand.LEAVING, Stand.RELEASING, Stand.JOINING)
    away += len(draft.awaited) - len(missing)
    assert draft.state.max_unavailable is not None
    if not in_trouble and draft.count(Stand.WAITING):
        for uid in _standing(draft, Stand.WAITING)[: max(draft.state.max_unavailable - away, 0)]:
            draft.change(uid, stand=Stand.STOPPING)
            draft.stop(uid)
            away += 1
    if away == 0 or _hurries(draft):
        finish(draft)


def _has_failed(draft: Draft) -> bool:
    failed = draft.count(Stand.FAILED) and any(
        draft.members[uid].stand is Stand.FAILED for uid in draft.newest.values()
    )
    return bool(failed)


def _standing(draft: Draft, stand: Stand) -> list[PodUid]:
    """Return the pods that stand there, by their slots."""
    if not draft.count(stand):
        return []
    found = [(one.member.slot, uid) for uid, one in draft.members.items() if one.stand is stand]
    return [uid for _, uid in sorted(found)]
