"""What each event makes of a round. Whatever comes twice, late or about nobody of the round changes nothing. Pure."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

from controller.model.members import Member, PodPhase
from controller.model.rounds import (
    Cancelled,
    FaultTold,
    MemberSeen,
    NodeTold,
    OrderKind,
    PodGone,
    RoundEvent,
    StepTold,
    TimePassed,
)
from controller.rounds import answers, losing, outcome
from controller.rounds.draft import Draft
from controller.rounds.states import BEFORE_RELEASE, OVER, MemberState, Phase, Stand


def apply(draft: Draft, event: RoundEvent) -> None:
    """Take an event in. Nothing is released here, and nothing ends well: that is for ``progress``."""
    _HANDLERS[type(event)](draft, event)


# ---- the API server's word ----


def _pod_gone(draft: Draft, event: PodGone) -> None:
    one = draft.members.get(event.pod)
    if one is not None and one.stand not in OVER:
        losing.gone(draft, event.pod)


def _seen(draft: Draft, event: MemberSeen) -> None:
    member = event.member
    one = draft.members.get(member.pod.uid)
    if one is None:
        _newcomer(draft, member)
    elif one.stand not in OVER:
        _look_again(draft, one, member)


def _newcomer(draft: Draft, member: Member) -> None:
    """A pod that was not there when the round began: what it starts is held while others stop."""
    if member.is_over or member.deleting:
        return
    holds = draft.phase is Phase.STOPPING and not draft.state.rolling
    replaces = member.slot in draft.awaited or member.slot in draft.newest
    if not holds and not replaces:
        return
    order = OrderKind.HOLD if holds else None
    draft.replaced.add(member.slot)
    draft.add(MemberState(member, Stand.JOINING, draft.now, order=order, replaces=replaces))
    draft.stop(member.pod.uid)
    _perhaps_running(draft, member)


def _look_again(draft: Draft, one: MemberState, member: Member) -> None:
    uid = member.pod.uid
    one = draft.change(uid, member=member)
    if member.phase is PodPhase.SUCCEEDED:
        draft.change(uid, stand=Stand.COMPLETED, old_runs=False)
    elif member.phase is PodPhase.FAILED:
        _pod_failed(draft, one)
    elif member.deleting and one.stand in BEFORE_RELEASE:
        losing.leave(draft, member)
    elif one.stand is Stand.JOINING:
        draft.stop(uid)
        _perhaps_running(draft, member)


def _pod_failed(draft: Draft, one: MemberState) -> None:
    """Kubelet says that all its containers have ended, and none will be started again."""
    uid, detail = one.member.pod.uid, "the pod has failed"
    one = draft.change(uid, old_runs=False)
    if one.stand in (Stand.WAITING, Stand.STOPPING, Stand.STOPPED):
        losing.lose(draft, uid, reason="PodFailed", detail=detail)
    elif one.stand is not Stand.LEAVING:
        draft.change(uid, stand=Stand.FAILED, reason="PodFailed", detail=detail)


def _perhaps_running(draft: Draft, member: Member) -> None:
    """A pod that nobody was told to hold runs when the API server says so."""
    one = draft.members[member.pod.uid]
    if one.order is None and member.phase is PodPhase.RUNNING:
        draft.change(member.pod.uid, stand=Stand.RUNNING, running=draft.elapsed)


# ---- nodes, faults, people ----


def _node_told(draft: Draft, event: NodeTold) -> None:
    if event.out_of_service:
        draft.dead.add(event.node)
    is_new = event.connected and event.node not in draft.connected
    (draft.connected.add if event.connected else draft.connected.discard)(event.node)
    if not (is_new or event.out_of_service or (event.lost and not event.connected)):
        return
    for uid in draft.on_node(event.node):
        one = draft.members[uid]
        if one.stand in OVER:
            continue
        if event.out_of_service:
            _node_dead(draft, one)
        elif event.lost and not event.connected:
            if one.stand is Stand.STOPPING:
                losing.lose(draft, uid, reason="NodeLost", detail=f"node {event.node} is not ready, nor is its agent")
        elif event.connected:
            if is_new and one.stand is Stand.STOPPING:
                draft.change(uid, since=draft.now)  # only now can its agent be asked
            _say_again(draft, one)


def _node_dead(draft: Draft, one: MemberState) -> None:
    """KEP-2268: nothing runs on a node that is out of service, so its pods are deleted by force, and not waited for."""
    uid, detail = one.member.pod.uid, f"node {one.member.node} is out of service"
    one = draft.change(uid, old_runs=False)
    if one.stand in BEFORE_RELEASE and draft.phase is Phase.STOPPING:
        losing.lose(draft, uid, reason="NodeOutOfService", detail=detail)
    elif one.stand in (Stand.RELEASING, Stand.JOINING):
        draft.change(uid, stand=Stand.FAILED, reason="NodeOutOfService", detail=detail)
    elif one.stand is Stand.LEAVING and one.recreated:
        draft.recreate(uid)


def _say_again(draft: Draft, one: MemberState) -> None:
    uid = one.member.pod.uid
    if one.stand in (Stand.STOPPING, Stand.JOINING, Stand.STOPPED):
        draft.stop(uid)
    elif one.stand is Stand.RELEASING:
        draft.release(uid)


def _fault_told(draft: Draft, event: FaultTold) -> None:
    """While all are stopped a fault is one of the round; one of what the round does not stop is decided on after it.

    That is what was started anew, but also what runs of a pod that has failed, or that the round does not know.
    """
    one = draft.members.get(event.pod)
    if one is not None and one.stand in (Stand.LEAVING, Stand.GONE):
        return
    if one is not None and one.order is not None and one.stand in BEFORE_RELEASE and draft.phase is Phase.STOPPING:
        if event.needs_recreation:
            losing.lose(draft, event.pod, reason=event.code, detail=event.message, device=True)
        elif one.stand is Stand.WAITING:
            draft.change(event.pod, stand=Stand.STOPPING)
            draft.stop(event.pod)
    elif event.needs_recreation or outcome.is_new(event, one, state=draft.state, stopped=draft.stopped):
        draft.remember(event)


def _cancelled(draft: Draft, event: Cancelled) -> None:
    if draft.phase is Phase.STOPPING:
        losing.fail(draft, reason="Cancelled", detail=event.reason)


def _time_passed(draft: Draft, event: TimePassed) -> None:
    """What follows from it is for ``deadlines``."""


_HANDLERS: Final[Mapping[type, Callable[[Draft, Any], None]]] = MappingProxyType(
    {
        StepTold: answers.told,
        PodGone: _pod_gone,
        MemberSeen: _seen,
        NodeTold: _node_told,
        FaultTold: _fault_told,
        Cancelled: _cancelled,
        TimePassed: _time_passed,
    }
)
