"""What time alone brings: what has no answer is said again, holds are renewed, and patience ends. Pure."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, Protocol

from controller.gangs import wishes
from controller.model.members import PodPhase, PodUid
from controller.model.rounds import OrderKind
from controller.rounds import losing, progress
from controller.rounds.draft import Draft
from controller.rounds.states import MemberState, Phase, Stand

_RENEWALS = 3  # within the time for which an agent holds without a word: two of them may be lost


def look(draft: Draft) -> None:
    """Look at every deadline, at most once per resend interval; say things again as often, or less in large rounds."""
    limits = draft.state.limits
    if draft.phase.is_final or draft.now < draft.look_at:
        return
    draft.look_at = draft.now + limits.resend
    renews = draft.now - draft.renewed_at >= limits.hold / _RENEWALS
    again = renews or draft.now >= draft.say_at
    if again:
        draft.say_at = draft.now + limits.say_again(members=len(draft.members))
    for uid, one in list(draft.members.items()):
        if (duty := _DUTIES.get(one.stand)) is not None:
            duty(draft, uid, one, again=again)
        elif renews and _may_be_held(draft, one):
            draft.stop(uid)
        if draft.phase.is_final:
            return
    if renews:
        draft.renewed_at = draft.now
    if draft.waited >= limits.whole:
        _time_is_up(draft)


def _may_be_held(draft: Draft, one: MemberState) -> bool:
    """Whether its agent holds something of it: one that has failed, too, must not run before the others."""
    failed = one.stand is Stand.FAILED and draft.phase is Phase.STOPPING and not draft.state.rolling
    return one.stand is Stand.STOPPED or failed


def _stopping(draft: Draft, uid: PodUid, one: MemberState, *, again: bool) -> None:
    limits = draft.state.limits
    patience = limits.stop + wishes.grace_seconds(one.member)
    if one.member.node not in draft.connected:
        patience += limits.reconnect
    if _is_overdue(draft, one, patience=patience, silence=limits.stop):
        losing.lose(draft, uid, reason="StopDeadline", detail=f"it has not stopped within {_waited(draft, one)}")
    elif again:
        draft.stop(uid)


def _leaving(draft: Draft, uid: PodUid, one: MemberState, *, again: bool) -> None:
    if draft.now - one.since < draft.state.limits.absence:
        if again and one.recreated and (not one.member.deleting or one.member.node in draft.dead):
            draft.recreate(uid)
    elif one.old_runs:
        detail = f"its pod is not gone after {draft.state.limits.absence:g} s"
        losing.give_up(draft, uid, reason="OldNotGone", detail=detail)


def _joining(draft: Draft, uid: PodUid, one: MemberState, *, again: bool) -> None:
    if draft.phase is Phase.STOPPING:
        if again:
            draft.stop(uid)
    elif one.order is OrderKind.HOLD:
        if again:
            draft.release(uid)
        _perhaps_never_held(draft, uid, one)
    if draft.state.rolling and draft.now - one.since >= draft.state.limits.recreated:
        draft.change(uid, stand=Stand.FAILED, reason="NotRunning", detail="its new pod does not run")


def _perhaps_never_held(draft: Draft, uid: PodUid, one: MemberState) -> None:
    """The order to hold it did not come there in time: it has run from its start on, and its agent knows no round."""
    assert draft.stopped is not None
    since_release = draft.elapsed - draft.stopped
    if one.member.phase is PodPhase.RUNNING and since_release >= draft.state.limits.release:
        draft.change(uid, stand=Stand.RUNNING, running=draft.elapsed, let_go=True)


def _releasing(draft: Draft, uid: PodUid, one: MemberState, *, again: bool) -> None:
    patience = draft.state.limits.release
    if _is_overdue(draft, one, patience=patience, silence=patience):
        detail = f"its agent has not told that it runs within {_waited(draft, one)}"
        draft.change(uid, stand=Stand.FAILED, reason=progress.NO_ANSWER, detail=detail)
    elif again:
        draft.release(uid)


def _is_overdue(draft: Draft, one: MemberState, *, patience: float, silence: float) -> bool:
    """Whether a member has had its time: ``patience`` seconds, and ``silence`` more after each word that it goes on.

    Memory of a device is freed at its own pace, and a busy node starts slowly; but nobody is waited for without end.
    """
    due = max(one.since + patience, one.heard + silence)
    return draft.now >= min(due, one.since + max(patience, draft.state.limits.slow))


def _waited(draft: Draft, one: MemberState) -> str:
    last = f"; its agent told last that it is at {one.doing}" if one.doing else ""
    return f"{draft.now - one.since:.0f} s{last}"


class _Duty(Protocol):
    """What is to be done about a pod at a look; ``again``: what has no answer is to be said again."""

    def __call__(self, draft: Draft, uid: PodUid, one: MemberState, *, again: bool) -> None: ...


_DUTIES: Final[Mapping[Stand, _Duty]] = MappingProxyType(
    {
        Stand.STOPPING: _stopping,
        Stand.LEAVING: _leaving,
        Stand.JOINING: _joining,
        Stand.RELEASING: _releasing,
    }
)


def _time_is_up(draft: Draft) -> None:
    if draft.phase is Phase.RELEASING or draft.state.rolling:
        progress.finish(draft)
    else:
        losing.fail(draft, reason="Timeout", detail=f"it was not stopped within {draft.state.limits.whole:g} s")
