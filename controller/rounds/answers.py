"""What an agent's word on one member makes of a round. Pure."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final

from controller.model.rounds import FaultTold, OrderKind, StepPhase, StepTold
from controller.rounds import losing
from controller.rounds.draft import Draft
from controller.rounds.states import BEFORE_RELEASE, OVER, MemberState, Phase, Stand

_NOT_HELD = (Stand.WAITING, Stand.STOPPING, Stand.JOINING)


def told(draft: Draft, told: StepTold) -> None:
    """Take in where a member stands, by its agent's word."""
    one = draft.members.get(told.pod)
    if one is None or (one.stand in OVER and not (one.stand is Stand.FAILED and told.phase is StepPhase.SELF_RELEASED)):
        return
    if (answer := _ANSWERS.get(told.phase)) is not None:
        answer(draft, one, told)


def _told_stopping(draft: Draft, one: MemberState, told: StepTold) -> None:
    """It is on its way: what it is at is news for its deadline, which counts from the last word (``deadlines``)."""
    if told.reason and one.stand is Stand.STOPPING:
        draft.change(told.pod, heard=draft.now, doing=told.reason)


def _told_stopped(draft: Draft, one: MemberState, told: StepTold) -> None:
    if draft.phase is Phase.RELEASING and one.stand is Stand.JOINING:
        # It has come anew and is held, for it has not heard of the release.
        draft.change(told.pod, stand=Stand.RELEASING, stopped=draft.elapsed, **_measured(told))
        draft.release(told.pod)
    elif one.stand in _NOT_HELD:
        draft.change(told.pod, stand=Stand.STOPPED, old_runs=False, stopped=draft.elapsed, **_measured(told))
    elif one.stand is Stand.LEAVING and one.old_runs:
        # It was given up too early: its pod leaves, but nobody need wait for that any more.
        draft.change(told.pod, old_runs=False, stopped=draft.elapsed, **_measured(told))
    elif one.stand is Stand.RELEASING and told.reason:
        draft.change(told.pod, heard=draft.now, doing=told.reason)  # it was let go, and does not run yet


def _told_running(draft: Draft, one: MemberState, told: StepTold) -> None:
    if one.stand is Stand.JOINING and draft.phase is Phase.STOPPING:
        draft.change(told.pod, stand=Stand.RUNNING, running=draft.elapsed, let_go=True, **_measured(told))
    elif one.stand in (*BEFORE_RELEASE, Stand.RELEASING):
        # Released by a former leader, before we knew: then everything old was dead.
        draft.proven |= one.stand is not Stand.RELEASING and not draft.state.rolling
        draft.change(told.pod, stand=Stand.RUNNING, old_runs=False, running=draft.elapsed, **_measured(told))
    elif one.stand is Stand.LEAVING and one.order is OrderKind.RESTART and not draft.state.rolling:
        draft.proven = True
        draft.change(told.pod, old_runs=False, **_measured(told))


def _told_completed(draft: Draft, _one: MemberState, told: StepTold) -> None:
    draft.change(told.pod, stand=Stand.COMPLETED, old_runs=False, **_measured(told))


def _told_refused(draft: Draft, one: MemberState, told: StepTold) -> None:
    if told.reason == losing.COMPLETED:
        _told_completed(draft, one, told)
    elif one.stand in (Stand.WAITING, Stand.STOPPING):
        if told.reason == losing.POD_DELETING:
            losing.leave(draft, replace(one.member, deleting=True))
        elif told.reason in losing.MENDED_BY_RECREATION:
            device = told.reason == losing.DEVICE_NOT_USABLE
            losing.lose(draft, told.pod, reason=told.reason, detail=told.detail, device=device)
        else:
            losing.give_up(draft, told.pod, reason=told.reason, detail=told.detail)
    else:
        _failed(draft, one, told)


def _told_failed(draft: Draft, one: MemberState, told: StepTold) -> None:
    reason = told.reason or told.phase.value
    if draft.phase is Phase.STOPPING and one.stand in (Stand.WAITING, Stand.STOPPING, Stand.STOPPED):
        losing.lose(draft, told.pod, reason=reason, detail=told.detail)
    else:
        _failed(draft, one, told)


def _failed(draft: Draft, one: MemberState, told: StepTold) -> None:
    if one.stand is Stand.LEAVING:
        return
    # One that came anew and cannot be held runs as it likes, perhaps beside old ones.
    let_go = one.let_go or (one.stand is Stand.JOINING and draft.phase is Phase.STOPPING)
    reason = told.reason or told.phase.value
    draft.change(told.pod, stand=Stand.FAILED, reason=reason, detail=told.detail, let_go=let_go, **_measured(told))


def _told_self_released(draft: Draft, one: MemberState, told: StepTold) -> None:
    """It runs unbidden. Before the release it may have met old ones, so all are stopped anew by another round.

    An agent never holds a pod again for a round in which it let it go: that is final for (round, pod). One to which the
    round was aborted says the same, though it may not have begun to stop it.
    """
    aborted = told.reason == losing.ABORTED
    if aborted and draft.state.rolling:
        if one.stand in BEFORE_RELEASE:
            losing.give_up(draft, told.pod, reason=losing.ABORTED, detail=told.detail)
        return
    if draft.phase is Phase.RELEASING or draft.proven or draft.state.rolling:
        stand = Stand.RUNNING if one.stand in (*BEFORE_RELEASE, Stand.RELEASING) else one.stand
        running = draft.elapsed if one.running is None and stand is Stand.RUNNING else one.running
        let_go = one.let_go or not aborted  # those that are out of the round were told so at the release
        draft.change(told.pod, stand=stand, old_runs=False, let_go=let_go, running=running, **_measured(told))
        return
    old_runs = one.old_runs and aborted
    if one.stand is Stand.LEAVING:
        draft.change(told.pod, old_runs=old_runs, let_go=True, **_measured(told))
        return
    reason = losing.ABORTED if aborted else losing.SELF_RELEASED
    draft.change(told.pod, stand=Stand.FAILED, old_runs=old_runs, reason=reason, let_go=True, **_measured(told))
    detail = f"{one.member.slot} was let run before everything old was stopped: {told.detail or told.reason}"
    # What was aborted was given up by a former leader, and that stands.
    again = None if aborted else FaultTold(told.pod, losing.SELF_RELEASED, detail)
    losing.fail(draft, reason=reason, detail=detail, again=again)


def _told_gone(draft: Draft, one: MemberState, told: StepTold) -> None:
    # A pod that has only just come may not have reached its node yet.
    if one.stand is not Stand.JOINING:
        losing.gone(draft, told.pod)


_ANSWERS: Final[Mapping[StepPhase, Callable[[Draft, MemberState, StepTold], None]]] = MappingProxyType(
    {
        StepPhase.STOPPING: _told_stopping,
        StepPhase.STOPPED: _told_stopped,
        StepPhase.RUNNING: _told_running,
        StepPhase.COMPLETED: _told_completed,
        StepPhase.REFUSED: _told_refused,
        StepPhase.STUCK: _told_failed,
        StepPhase.FAILED: _told_failed,
        StepPhase.SELF_RELEASED: _told_self_released,
        StepPhase.GONE: _told_gone,
    }
)


def _measured(told: StepTold) -> dict[str, Any]:
    measured: dict[str, Any] = {"slipped": told.slipped} if told.slipped > 0 else {}
    return measured | {"seconds": told.seconds} if told.seconds else measured
