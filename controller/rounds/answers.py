"""Apply an agent's result for one member to a round. Pure."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final

from kubemend.common.coordination import OrderKind, StepPhase
from kubemend.controller.model.rounds import FaultTold, StepTold
from kubemend.controller.rounds import replacement
from kubemend.controller.rounds.round_builder import RoundBuilder
from kubemend.controller.rounds.states import BEFORE_RELEASE, OVER, MemberPhase, MemberState, Phase

_NOT_STARTED: Final = "NotStarted"
"""The reason of STOPPED for a member whose successor has not started (``agent.rounds.session``)."""
_NOT_HELD = (MemberPhase.WAITING, MemberPhase.STOPPING, MemberPhase.JOINING)


def told(draft: RoundBuilder, told: StepTold) -> None:
    """Apply a member's phase, as its agent reports it."""
    one = draft.members.get(told.pod)
    if one is None or (
        one.stand in OVER and not (one.stand is MemberPhase.FAILED and told.phase is StepPhase.SELF_RELEASED)
    ):
        return
    if (answer := _ANSWERS.get(told.phase)) is not None:
        answer(draft, one, told)


def _on_stopping(draft: RoundBuilder, one: MemberState, told: StepTold) -> None:
    """Record progress: the current step extends the deadline, which counts from the last report (``deadlines``)."""
    if told.reason and one.stand is MemberPhase.STOPPING:
        doing = f"{told.reason} ({told.detail})" if told.detail else told.reason
        draft.change(told.pod, heard=draft.now, doing=doing)


def _on_stopped(draft: RoundBuilder, one: MemberState, told: StepTold) -> None:
    if draft.phase is Phase.RELEASING and one.stand is MemberPhase.JOINING:
        # it is a replacement and is held, because its agent does not know of the release
        draft.change(told.pod, stand=MemberPhase.RELEASING, stopped=draft.elapsed, **_measured(told))
        draft.release(told.pod)
    elif one.stand in _NOT_HELD:
        late = told.reason == _NOT_STARTED
        draft.change(
            told.pod, stand=MemberPhase.STOPPED, old_runs=False, stopped=draft.elapsed, late=late, **_measured(told)
        )
    elif one.stand is MemberPhase.STOPPED:
        draft.change(told.pod, **_measured(told))  # its successor has started, and is held
    elif one.stand is MemberPhase.LEAVING and one.old_runs:
        # it was given up too early: its pod leaves, but nothing blocks on that any longer
        draft.change(told.pod, old_runs=False, stopped=draft.elapsed, **_measured(told))
    elif one.stand is MemberPhase.RELEASING and told.reason:
        draft.change(told.pod, heard=draft.now, doing=told.reason)  # it was released, but does not run yet


def _on_running(draft: RoundBuilder, one: MemberState, told: StepTold) -> None:
    if one.stand is MemberPhase.JOINING and draft.phase is Phase.STOPPING:
        draft.change(told.pod, stand=MemberPhase.RUNNING, running=draft.elapsed, let_go=True, **_measured(told))
    elif one.stand in (*BEFORE_RELEASE, MemberPhase.RELEASING):
        # A previous leader released it, which was not known here: then all old containers were dead.
        draft.proven |= one.stand is not MemberPhase.RELEASING and not draft.state.rolling
        draft.change(told.pod, stand=MemberPhase.RUNNING, old_runs=False, running=draft.elapsed, **_measured(told))
    elif one.stand is MemberPhase.LEAVING and one.order is OrderKind.RESTART and not draft.state.rolling:
        draft.proven = True
        draft.change(told.pod, old_runs=False, **_measured(told))


def _on_completed(draft: RoundBuilder, _one: MemberState, told: StepTold) -> None:
    draft.change(told.pod, stand=MemberPhase.COMPLETED, old_runs=False, **_measured(told))


def _on_refused(draft: RoundBuilder, one: MemberState, told: StepTold) -> None:
    if told.reason == replacement.COMPLETED:
        _on_completed(draft, one, told)
    elif one.stand in (MemberPhase.WAITING, MemberPhase.STOPPING):
        if told.reason == replacement.POD_DELETING:
            replacement.leave(draft, replace(one.member, deleting=True))
        elif told.reason in replacement.MENDED_BY_RECREATION:
            device = told.reason == replacement.DEVICE_NOT_USABLE
            replacement.lose(draft, told.pod, reason=told.reason, detail=told.detail, device=device)
        else:
            replacement.give_up(draft, told.pod, reason=told.reason, detail=told.detail)
    else:
        _failed(draft, one, told)


def _on_failed(draft: RoundBuilder, one: MemberState, told: StepTold) -> None:
    reason = told.reason or told.phase.value
    if draft.phase is Phase.STOPPING and one.stand in (MemberPhase.WAITING, MemberPhase.STOPPING, MemberPhase.STOPPED):
        device = reason == replacement.DEVICE_NOT_USABLE  # it has failed its proof
        replacement.lose(draft, told.pod, reason=reason, detail=told.detail, device=device)
    else:
        _failed(draft, one, told)


def _failed(draft: RoundBuilder, one: MemberState, told: StepTold) -> None:
    if one.stand is MemberPhase.LEAVING:
        return
    # A replacement that cannot be held runs freely, perhaps next to old containers.
    let_go = one.let_go or (one.stand is MemberPhase.JOINING and draft.phase is Phase.STOPPING)
    reason = told.reason or told.phase.value
    draft.change(
        told.pod, stand=MemberPhase.FAILED, reason=reason, detail=told.detail, let_go=let_go, **_measured(told)
    )


def _on_self_released(draft: RoundBuilder, one: MemberState, told: StepTold) -> None:
    """Handle a member that its agent released by itself. Before the release it may have run next to old containers.

    Then another round stops all members again. An agent never holds a pod again for a round in which it released it:
    that is final for (round, pod). An agent whose round was aborted reports the same, though it may not have begun to
    stop the pod.
    """
    aborted = told.reason == replacement.ABORTED
    if aborted and draft.state.rolling:
        if one.stand in BEFORE_RELEASE:
            replacement.give_up(draft, told.pod, reason=replacement.ABORTED, detail=told.detail)
        return
    if draft.phase is Phase.RELEASING or draft.proven or draft.state.rolling:
        stand = MemberPhase.RUNNING if one.stand in (*BEFORE_RELEASE, MemberPhase.RELEASING) else one.stand
        running = draft.elapsed if one.running is None and stand is MemberPhase.RUNNING else one.running
        let_go = one.let_go or not aborted  # those left out of the round got that with the release
        draft.change(told.pod, stand=stand, old_runs=False, let_go=let_go, running=running, **_measured(told))
        return
    old_runs = one.old_runs and aborted
    if one.stand is MemberPhase.LEAVING:
        draft.change(told.pod, old_runs=old_runs, let_go=True, **_measured(told))
        return
    reason = replacement.ABORTED if aborted else replacement.SELF_RELEASED
    draft.change(told.pod, stand=MemberPhase.FAILED, old_runs=old_runs, reason=reason, let_go=True, **_measured(told))
    detail = f"{one.member.slot} was released before all old containers were stopped: {told.detail or told.reason}"
    # An abort means that a previous leader gave the round up; that decision stands.
    again = None if aborted else FaultTold(told.pod, replacement.SELF_RELEASED, detail)
    replacement.fail(draft, reason=reason, detail=detail, again=again)


def _on_gone(draft: RoundBuilder, one: MemberState, told: StepTold) -> None:
    # A pod that was just created may not have reached its node yet.
    if one.stand is not MemberPhase.JOINING:
        replacement.gone(draft, told.pod)


_ANSWERS: Final[Mapping[StepPhase, Callable[[RoundBuilder, MemberState, StepTold], None]]] = MappingProxyType(
    {
        StepPhase.STOPPING: _on_stopping,
        StepPhase.STOPPED: _on_stopped,
        StepPhase.RUNNING: _on_running,
        StepPhase.COMPLETED: _on_completed,
        StepPhase.REFUSED: _on_refused,
        StepPhase.STUCK: _on_failed,
        StepPhase.FAILED: _on_failed,
        StepPhase.SELF_RELEASED: _on_self_released,
        StepPhase.GONE: _on_gone,
    }
)


def _measured(told: StepTold) -> dict[str, Any]:
    measured: dict[str, Any] = {"slipped": told.slipped} if told.slipped > 0 else {}
    return measured | {"seconds": told.seconds} if told.seconds else measured
