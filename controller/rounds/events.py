"""Apply each event to a round. An event that is repeated, late or about no member has no effect. Pure."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

from kubemend.common import coordination
from kubemend.common.coordination import OrderKind
from kubemend.controller.decisions.facts import needs_recreation
from kubemend.controller.model.faults import Fault
from kubemend.controller.model.members import Member, PodPhase
from kubemend.controller.model.rounds import (
    Cancelled,
    FaultReported,
    MemberDropped,
    MemberLeft,
    MemberSeen,
    NodeChanged,
    PodGone,
    RoundEvent,
    StepResult,
    TimePassed,
)
from kubemend.controller.rounds import answers, outcome, replacement
from kubemend.controller.rounds.round_builder import RoundBuilder
from kubemend.controller.rounds.states import BEFORE_RELEASE, OVER, MemberPhase, MemberState, Phase


def apply(draft: RoundBuilder, event: RoundEvent) -> None:
    """Apply an event. Members are released and rounds succeed only in ``progress``."""
    _HANDLERS[type(event)](draft, event)


def count_running_pod(draft: RoundBuilder, member: Member) -> None:
    """Count a pod without an order to hold it as running when the API server shows that."""
    one = draft.members[member.pod.uid]
    if one.order is None and member.phase is PodPhase.RUNNING:
        draft.change(member.pod.uid, phase=MemberPhase.RUNNING, running=draft.elapsed)


# ---- state of the API server ----


def _pod_gone(draft: RoundBuilder, event: PodGone) -> None:
    one = draft.members.get(event.pod)
    if one is not None and one.phase not in OVER:
        replacement.gone(draft, event.pod)


def _dropped(draft: RoundBuilder, event: MemberDropped) -> None:
    """Wait for no replacement: the gang is smaller now."""
    one = draft.members.get(event.pod)
    if one is not None and one.member.slot in draft.awaited and draft.newest.get(one.member.slot) == event.pod:
        draft.vacate(one.member.slot)


def _left(draft: RoundBuilder, event: MemberLeft) -> None:
    """End the round for a member that left its gang: its pod must not be deleted, and it no longer reports its stop.

    After the release the round no longer waits for it: its agent's report, and its next pod, go to its new gang.
    """
    one = draft.members.get(event.pod)
    if one is None:
        return
    is_leaving = one.phase is MemberPhase.LEAVING
    if draft.phase is Phase.STOPPING and (is_leaving or one.phase in BEFORE_RELEASE):
        _end_without(draft, one)
    elif is_leaving or one.phase in (MemberPhase.RELEASING, MemberPhase.JOINING):
        draft.forget(event.pod)


def _end_without(draft: RoundBuilder, one: MemberState) -> None:
    """End the round. The fault with which it began is decided on again, for the gang as it is now, as are those that it
    has taken since then (``coordinator.gang_worker``).
    """
    cause, again = draft.state.cause, None
    if isinstance(cause, Fault) and cause.pod.uid != one.member.pod.uid:
        again = FaultReported(cause.pod.uid, cause.code, cause.message, needs_recreation(cause), at=cause.at)
    detail = f"pod {one.member.pod} left the gang: its labels were changed"
    replacement.fail(draft, reason=replacement.MEMBER_LEFT, detail=detail, again=again)


def _seen(draft: RoundBuilder, event: MemberSeen) -> None:
    member = event.member
    one = draft.members.get(member.pod.uid)
    if one is None:
        _add_newcomer(draft, member)
    elif one.phase not in OVER:
        _update_member(draft, one, member)


def _add_newcomer(draft: RoundBuilder, member: Member) -> None:
    """Add a pod that did not exist when the round began: its containers are held while others stop."""
    if member.is_over or member.deleting:
        return
    holds = draft.phase is Phase.STOPPING and not draft.state.rolling
    place = replacement.place_for(draft, member)
    if not holds and place is None:
        return
    order = OrderKind.HOLD if holds else None
    draft.replaced.add(member.slot)
    if place is not None and place != member.slot:
        draft.vacate(place)
    draft.add(MemberState(member, MemberPhase.JOINING, draft.now, order=order, replaces=place is not None))
    draft.stop(member.pod.uid)
    count_running_pod(draft, member)


def _update_member(draft: RoundBuilder, one: MemberState, member: Member) -> None:
    uid = member.pod.uid
    one = draft.change(uid, member=member)
    if member.phase is PodPhase.SUCCEEDED:
        draft.change(uid, phase=MemberPhase.COMPLETED, old_runs=False)
    elif member.phase is PodPhase.FAILED:
        _pod_failed(draft, one)
    elif member.deleting and one.phase in BEFORE_RELEASE:
        replacement.leave(draft, member)
    elif one.phase is MemberPhase.JOINING:
        draft.stop(uid)
        count_running_pod(draft, member)


def _pod_failed(draft: RoundBuilder, one: MemberState) -> None:
    """Handle a failed pod. By kubelet's report all its containers have ended, and none will be started again."""
    uid, detail = one.member.pod.uid, "the pod has failed"
    one = draft.change(uid, old_runs=False)
    if one.phase in (MemberPhase.WAITING, MemberPhase.STOPPING, MemberPhase.STOPPED):
        replacement.lose(draft, uid, reason="PodFailed", detail=detail)
    elif one.phase is not MemberPhase.LEAVING:
        draft.change(uid, phase=MemberPhase.FAILED, reason="PodFailed", detail=detail)


# ---- nodes, faults, requests ----


def _node_changed(draft: RoundBuilder, event: NodeChanged) -> None:
    if event.out_of_service:
        draft.dead.add(event.node)
    is_new = event.connected and event.node not in draft.connected
    (draft.connected.add if event.connected else draft.connected.discard)(event.node)
    is_lost = event.lost and not event.connected and not event.out_of_service
    (draft.lost.add if is_lost and draft.awaits_agents else draft.lost.discard)(event.node)
    if is_lost and not draft.awaits_agents:
        replacement.lose_unreachable(draft, event.node)
    if not (is_new or event.out_of_service):
        return
    for uid in draft.on_node(event.node):
        one = draft.members[uid]
        if event.out_of_service:
            _node_dead(draft, one)
        else:
            if one.phase in (MemberPhase.STOPPING, MemberPhase.RELEASING):
                draft.change(uid, since=draft.now)  # only now can its agent get the order
            _repeat_order(draft, one)


def _node_dead(draft: RoundBuilder, one: MemberState) -> None:
    """Handle a node that is out of service (KEP-2268).

    Nothing runs on it, so its pods are deleted by force, without a wait.
    """
    uid = one.member.pod.uid
    one = draft.change(uid, old_runs=False)
    if one.phase is MemberPhase.LEAVING and one.recreated:
        replacement.delete_again(draft, uid)
    elif one.phase is MemberPhase.LEAVING or (one.phase in BEFORE_RELEASE and draft.phase is Phase.STOPPING):
        replacement.lose_with_node(draft, uid)
    elif one.phase in (MemberPhase.RELEASING, MemberPhase.JOINING):
        detail = f"node {one.member.node} is out of service"
        draft.change(uid, phase=MemberPhase.FAILED, reason=replacement.NODE_OUT_OF_SERVICE, detail=detail)


def _repeat_order(draft: RoundBuilder, one: MemberState) -> None:
    uid = one.member.pod.uid
    if one.phase in (MemberPhase.STOPPING, MemberPhase.JOINING, MemberPhase.STOPPED):
        draft.stop(uid)
    elif one.phase is MemberPhase.RELEASING:
        draft.release(uid)


def _fault_reported(draft: RoundBuilder, event: FaultReported) -> None:
    """Assign a fault to the round while all members are stopped; other faults are decided on after the round.

    These are faults of restarted containers, and of containers that run in a failed pod or in a pod unknown to the
    round.
    """
    one = draft.members.get(event.pod)
    if one is not None and one.phase in (MemberPhase.LEAVING, MemberPhase.GONE):
        return
    if one is not None and one.order is not None and one.phase in BEFORE_RELEASE and draft.phase is Phase.STOPPING:
        if event.needs_recreation:
            replacement.lose(draft, event.pod, reason=event.code, detail=event.message, device=True)
        elif one.phase is MemberPhase.WAITING:
            draft.change(event.pod, phase=MemberPhase.STOPPING)
            draft.stop(event.pod)
    elif event.needs_recreation or outcome.is_new(event, one, state=draft.state, stopped=draft.stopped):
        draft.remember(event)


def _cancelled(draft: RoundBuilder, event: Cancelled) -> None:
    """Fail the round; after the release only wait for no recreated member: a JobSet that is suspended creates none."""
    if draft.phase is Phase.STOPPING:
        replacement.fail(draft, reason=coordination.CANCELLED, detail=event.reason)
        return
    draft.awaited.clear()
    for uid, one in list(draft.members.items()):
        if one.phase in (MemberPhase.LEAVING, MemberPhase.JOINING):
            draft.forget(uid)


def _time_passed(draft: RoundBuilder, event: TimePassed) -> None:
    """Do nothing here; ``deadlines`` handles the passing of time."""


_HANDLERS: Final[Mapping[type, Callable[[RoundBuilder, Any], None]]] = MappingProxyType(
    {
        StepResult: answers.apply,
        PodGone: _pod_gone,
        MemberDropped: _dropped,
        MemberLeft: _left,
        MemberSeen: _seen,
        NodeChanged: _node_changed,
        FaultReported: _fault_reported,
        Cancelled: _cancelled,
        TimePassed: _time_passed,
    }
)
