"""Apply the passing of time: repeat unanswered orders, renew holds, and enforce timeouts. Pure."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, Protocol

from kubemend.common.coordination import OrderKind
from kubemend.controller.gangs import gang_options
from kubemend.controller.model.members import PodPhase, PodUid
from kubemend.controller.rounds import progress, replacement
from kubemend.controller.rounds.round_builder import RoundBuilder
from kubemend.controller.rounds.states import MemberPhase, MemberState, Phase

RENEWALS: Final = 3
"""Of holds, within the time for which an agent holds without a message: two of them may be lost."""


def check(draft: RoundBuilder) -> None:
    """Check every deadline, at most once per resend interval; repeat orders as often, or less often in large rounds."""
    limits = draft.state.limits
    if draft.phase.is_final or draft.now < draft.check_at:
        return
    draft.check_at = draft.now + limits.resend
    if draft.lost and not draft.awaits_agents:
        for node in sorted(draft.lost):
            replacement.lose_unreachable(draft, node)
        draft.lost.clear()
        if draft.phase.is_final:
            return
    renews = draft.now - draft.renewed_at >= limits.hold / RENEWALS
    again = renews or draft.now >= draft.resend_at
    if again:
        draft.resend_at = draft.now + limits.resend_interval(members=len(draft.members))
    for uid, one in list(draft.members.items()):
        if (duty := _DUTIES.get(one.phase)) is not None:
            duty(draft, uid, one, again=again)
        elif renews and _may_be_held(draft, one):
            draft.stop(uid)
        if draft.phase.is_final:
            return
    if renews:
        draft.renewed_at = draft.now
    if draft.waited >= limits.whole:
        _end_by_timeout(draft)


def _may_be_held(draft: RoundBuilder, one: MemberState) -> bool:
    """Return whether its agent may hold it. A member that failed must not run before the others, either."""
    failed = one.phase is MemberPhase.FAILED and draft.phase is Phase.STOPPING and not draft.state.rolling
    return one.phase is MemberPhase.STOPPED or failed


def _stopping(draft: RoundBuilder, uid: PodUid, one: MemberState, *, again: bool) -> None:
    limits = draft.state.limits
    silence = _silence(draft, one, limits.stop)
    grace = limits.grace if limits.grace is not None else gang_options.grace_seconds(one.member)
    if _is_overdue(draft, one, timeout=silence + grace, silence=silence):
        replacement.lose(
            draft, uid, reason="StopDeadline", detail=f"the member has not stopped within {_waited(draft, one)}"
        )
    elif again:
        draft.stop(uid)


def _leaving(draft: RoundBuilder, uid: PodUid, one: MemberState, *, again: bool) -> None:
    if draft.now - one.since < draft.state.limits.absence:
        if again and one.recreated and (not one.member.deleting or one.member.node in draft.dead):
            replacement.delete_again(draft, uid)
    elif one.old_runs:
        detail = f"its pod still exists after {draft.state.limits.absence:g} s"
        replacement.give_up(draft, uid, reason="OldNotGone", detail=detail)


def _joining(draft: RoundBuilder, uid: PodUid, one: MemberState, *, again: bool) -> None:
    if draft.phase is Phase.STOPPING:
        if again:
            draft.stop(uid)
    elif one.order is OrderKind.HOLD:
        if again:
            draft.release(uid)
        _count_as_never_held(draft, uid, one)
    if draft.state.rolling and draft.now - one.since >= draft.state.limits.recreated:
        draft.change(uid, phase=MemberPhase.FAILED, reason="NotRunning", detail="its new pod is not running")


def _count_as_never_held(draft: RoundBuilder, uid: PodUid, one: MemberState) -> None:
    """Count a member as running if the order to hold it came too late: its agent then knows no round."""
    assert draft.stopped is not None
    since_release = draft.elapsed - draft.stopped
    if one.member.phase is PodPhase.RUNNING and since_release >= draft.state.limits.release:
        draft.change(uid, phase=MemberPhase.RUNNING, running=draft.elapsed, self_released=True)


def _releasing(draft: RoundBuilder, uid: PodUid, one: MemberState, *, again: bool) -> None:
    timeout = _silence(draft, one, draft.state.limits.release)
    if _is_overdue(draft, one, timeout=timeout, silence=timeout):
        detail = f"its agent has not reported it running within {_waited(draft, one)}"
        draft.change(uid, phase=MemberPhase.FAILED, reason=progress.NO_ANSWER, detail=detail)
    elif again:
        draft.release(uid)


def _silence(draft: RoundBuilder, one: MemberState, timeout: float) -> float:
    """Return the seconds without a report after which a member counts as lost.

    It gets more time if its agent is not connected, because that may be restarting. It does not matter how late in the
    stop, or in the release, the connection was lost.
    """
    limits = draft.state.limits
    silence = limits.silence(timeout, members=len(draft.members))
    return silence if one.member.node in draft.connected else silence + limits.reconnect


def _is_overdue(draft: RoundBuilder, one: MemberState, *, timeout: float, silence: float) -> bool:
    """Return whether a member is overdue: after ``timeout`` seconds, and ``silence`` after each report of progress.

    Devices free their memory at their own pace, and a busy node starts slowly; but no member is waited for
    indefinitely.
    """
    due = max(one.since + timeout, one.reported_at + silence)
    return draft.now >= min(due, one.since + max(timeout, draft.state.limits.slow))


def _waited(draft: RoundBuilder, one: MemberState) -> str:
    last = f"; the last step that its agent reported is {one.doing}" if one.doing else ""
    return f"{draft.now - one.since:.0f} s{last}"


class _Duty(Protocol):
    """Handle a pod at a check of the deadlines; ``again``: unanswered orders must be repeated."""

    def __call__(self, draft: RoundBuilder, uid: PodUid, one: MemberState, *, again: bool) -> None: ...


_DUTIES: Final[Mapping[MemberPhase, _Duty]] = MappingProxyType(
    {
        MemberPhase.STOPPING: _stopping,
        MemberPhase.LEAVING: _leaving,
        MemberPhase.JOINING: _joining,
        MemberPhase.RELEASING: _releasing,
    }
)


def _end_by_timeout(draft: RoundBuilder) -> None:
    if draft.phase is Phase.RELEASING or draft.state.rolling:
        progress.finish(draft)
    else:
        replacement.fail(
            draft, reason="Timeout", detail=f"the gang was not stopped within {draft.state.limits.whole:g} s"
        )
