"""Apply an agent's result for one member to a round. Pure."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final

from kubemend.common.coordination import OrderKind, StepPhase
from kubemend.controller.model.faults import Request
from kubemend.controller.model.rounds import FaultReported, StepResult
from kubemend.controller.rounds import replacement
from kubemend.controller.rounds.round_builder import RoundBuilder
from kubemend.controller.rounds.states import BEFORE_RELEASE, OVER, MemberPhase, MemberState, Phase

_NOT_STARTED: Final = "NotStarted"
"""The reason of STOPPED for a member whose successor has not started (``agent.rounds.session``)."""
_NOT_HELD = (MemberPhase.WAITING, MemberPhase.STOPPING, MemberPhase.JOINING)


def apply(draft: RoundBuilder, result: StepResult) -> None:
    """Apply a member's phase, as its agent reports it."""
    one = draft.members.get(result.pod)
    if one is None or (
        one.phase in OVER and not (one.phase is MemberPhase.FAILED and result.phase is StepPhase.SELF_RELEASED)
    ):
        return
    if (answer := _ANSWERS.get(result.phase)) is not None:
        answer(draft, one, result)


def _on_stopping(draft: RoundBuilder, one: MemberState, result: StepResult) -> None:
    """Record progress: the current step extends the deadline, which counts from the last report (``deadlines``)."""
    if one.phase is MemberPhase.WAITING:  # a previous leader has ordered that (rolling)
        draft.change(result.pod, phase=MemberPhase.STOPPING)
        draft.stop(result.pod)
    elif result.reason and one.phase is MemberPhase.STOPPING:
        doing = f"{result.reason} ({result.detail})" if result.detail else result.reason
        draft.change(result.pod, reported_at=draft.now, doing=doing)


def _on_stopped(draft: RoundBuilder, one: MemberState, result: StepResult) -> None:
    if draft.phase is Phase.RELEASING and one.phase is MemberPhase.JOINING:
        # it is a replacement and is held, because its agent does not know of the release
        draft.change(result.pod, phase=MemberPhase.RELEASING, stopped=draft.elapsed, **_measured(result))
        draft.release(result.pod)
    elif one.phase in _NOT_HELD:
        late = result.reason == _NOT_STARTED
        draft.change(
            result.pod, phase=MemberPhase.STOPPED, old_runs=False, stopped=draft.elapsed, late=late, **_measured(result)
        )
    elif one.phase is MemberPhase.STOPPED:
        draft.change(result.pod, **_measured(result))  # its successor has started, and is held
    elif one.phase is MemberPhase.LEAVING and one.old_runs:
        # it was given up too early: its pod leaves, but nothing blocks on that any longer
        draft.change(result.pod, old_runs=False, stopped=draft.elapsed, **_measured(result))
    elif one.phase is MemberPhase.RELEASING and result.reason:
        draft.change(result.pod, reported_at=draft.now, doing=result.reason)  # it was released, but does not run yet


def _on_running(draft: RoundBuilder, one: MemberState, result: StepResult) -> None:
    if one.phase is MemberPhase.JOINING and draft.phase is Phase.STOPPING:
        draft.change(
            result.pod, phase=MemberPhase.RUNNING, running=draft.elapsed, self_released=True, **_measured(result)
        )
    elif draft.phase is Phase.STOPPING and not (draft.state.resumed or draft.state.rolling):
        # A compromised node must not have the others released next to old containers.
        if not isinstance(draft.state.cause, Request):
            _on_self_released(draft, one, result)  # no leader has released it
        elif one.phase in BEFORE_RELEASE:
            # A previous leader released it and could not record the round, which has the same id now.
            draft.change(
                result.pod, phase=MemberPhase.RUNNING, old_runs=False, running=draft.elapsed, **_measured(result)
            )
    elif one.phase in (*BEFORE_RELEASE, MemberPhase.RELEASING):
        # A previous leader released it, which was not known here: then all old containers were dead.
        draft.proven = True
        draft.change(result.pod, phase=MemberPhase.RUNNING, old_runs=False, running=draft.elapsed, **_measured(result))
    elif one.phase is MemberPhase.LEAVING and one.order is OrderKind.RESTART and not draft.state.rolling:
        draft.proven = True
        draft.change(result.pod, old_runs=False, **_measured(result))


def _on_completed(draft: RoundBuilder, _one: MemberState, result: StepResult) -> None:
    draft.change(result.pod, phase=MemberPhase.COMPLETED, old_runs=False, **_measured(result))


def _on_refused(draft: RoundBuilder, one: MemberState, result: StepResult) -> None:
    if result.reason == replacement.COMPLETED:
        _on_completed(draft, one, result)
    elif one.phase in (MemberPhase.WAITING, MemberPhase.STOPPING):
        if result.reason == replacement.POD_DELETING:
            replacement.leave(draft, replace(one.member, deleting=True))
        elif result.reason in replacement.FIXED_BY_RECREATION:
            device = result.reason == replacement.DEVICE_NOT_USABLE
            replacement.lose(draft, result.pod, reason=result.reason, detail=result.detail, device=device)
        else:
            replacement.give_up(draft, result.pod, reason=result.reason, detail=result.detail)
    else:
        _failed(draft, one, result)


def _on_failed(draft: RoundBuilder, one: MemberState, result: StepResult) -> None:
    reason = result.reason or result.phase.value
    if draft.phase is Phase.STOPPING and one.phase in (MemberPhase.WAITING, MemberPhase.STOPPING, MemberPhase.STOPPED):
        device = reason == replacement.DEVICE_NOT_USABLE  # it has failed its proof
        replacement.lose(draft, result.pod, reason=reason, detail=result.detail, device=device)
    else:
        _failed(draft, one, result)


def _failed(draft: RoundBuilder, one: MemberState, result: StepResult) -> None:
    if one.phase is MemberPhase.LEAVING:
        return
    # A replacement that cannot be held runs freely, perhaps next to old containers.
    self_released = one.self_released or (one.phase is MemberPhase.JOINING and draft.phase is Phase.STOPPING)
    reason = result.reason or result.phase.value
    draft.change(
        result.pod,
        phase=MemberPhase.FAILED,
        reason=reason,
        detail=result.detail,
        self_released=self_released,
        **_measured(result),
    )


def _on_self_released(draft: RoundBuilder, one: MemberState, result: StepResult) -> None:
    """Handle a member that its agent released by itself. Before the release it may have run next to old containers.

    Then another round stops all members again. An agent never holds a pod again for a round in which it released it:
    that is final for (round, pod). An agent whose round was aborted reports the same, though it may not have begun to
    stop the pod.
    """
    aborted = result.reason == replacement.ABORTED
    if aborted and draft.state.rolling:
        if one.phase in BEFORE_RELEASE:
            replacement.give_up(draft, result.pod, reason=replacement.ABORTED, detail=result.detail)
        return
    if draft.phase is Phase.RELEASING or draft.proven or draft.state.rolling:
        phase = MemberPhase.RUNNING if one.phase in (*BEFORE_RELEASE, MemberPhase.RELEASING) else one.phase
        running = draft.elapsed if one.running is None and phase is MemberPhase.RUNNING else one.running
        self_released = one.self_released or not aborted  # those left out of the round got that with the release
        draft.change(
            result.pod, phase=phase, old_runs=False, self_released=self_released, running=running, **_measured(result)
        )
        return
    old_runs = one.old_runs and aborted
    if one.phase is MemberPhase.LEAVING:
        draft.change(result.pod, old_runs=old_runs, self_released=True, **_measured(result))
        return
    reason = replacement.ABORTED if aborted else replacement.SELF_RELEASED
    draft.change(
        result.pod, phase=MemberPhase.FAILED, old_runs=old_runs, reason=reason, self_released=True, **_measured(result)
    )
    detail = f"{one.member.slot} was released before all old containers were stopped: {result.detail or result.reason}"
    # An abort means that a previous leader gave the round up; that decision stands.
    again = None if aborted else FaultReported(result.pod, replacement.SELF_RELEASED, detail)
    replacement.fail(draft, reason=reason, detail=detail, again=again)


def _on_gone(draft: RoundBuilder, one: MemberState, result: StepResult) -> None:
    # A pod that was just created may not have reached its node yet.
    if one.phase is not MemberPhase.JOINING:
        replacement.gone(draft, result.pod)


_ANSWERS: Final[Mapping[StepPhase, Callable[[RoundBuilder, MemberState, StepResult], None]]] = MappingProxyType(
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


def _measured(result: StepResult) -> dict[str, Any]:
    measured: dict[str, Any] = {"unheld_seconds": result.unheld_seconds} if result.unheld_seconds > 0 else {}
    return measured | {"seconds": result.seconds} if result.seconds else measured
