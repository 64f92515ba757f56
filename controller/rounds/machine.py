"""The round as a state machine: begin it, move it on, take it over. Pure.

``now`` is Unix time by a clock that never goes back while the process lives. Effects may be lost: they are given again
until an event answers them. What is durable is the Restart object with which the round began (``status``), and what
each agent remembers of its members and tells in its Hello; from these any replica goes on.

What holds at every moment (``transitions`` and ``draft`` check it, tests/unit/controller/rounds explores it):

- A member is released only when nothing old of any other may run: it is stopped, completed, or its pod is gone. Not so
  in a rolling round, whose members do not wait for one another.
- A slot's pod is deleted at most once, and only one that opted in and that somebody brings back.
- Every round ends if only time passes, and at its end whatever may be held was released or aborted.
- An agent that has let a pod go by itself never holds it again in that round. So a round in which one does so before
  everything old was stopped has failed, and another one begins right after it (``Advance.again``).
- A fault that is told while the round is on is of what the round stops, or is decided on right after it. Only that of a
  pod that goes is nobody's any more.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from controller.decisions import cases
from controller.decisions.facts import Decision, Kind, needs_recreation
from controller.gangs import members as members_module
from controller.gangs import wishes
from controller.model.faults import Cause, Fault, Request
from controller.model.members import Member, NodeName, NodeView, PodPhase
from controller.model.rounds import OrderKind, RoundEvent, RoundRef, StepTold
from controller.rounds import deadlines, events, losing, progress
from controller.rounds.draft import Draft
from controller.rounds.states import Advance, Limits, MemberState, Round, Stand
from controller.rounds.status import Kept


def begin(
    ref: RoundRef,
    *,
    cause: Cause,
    decision: Decision,
    members: Iterable[Member],
    nodes: Mapping[NodeName, NodeView],
    connected: frozenset[NodeName] = frozenset(),
    opted_in_namespaces: frozenset[str] = frozenset(),
    limits: Limits | None = None,
    now: float,
) -> Advance:
    """Return the round that a decision begins; its first effects must wait until its Restart object is there.

    ``members`` are all pods of the gang, ``nodes`` theirs, and ``connected`` those whose agents are.
    """
    assert decision.kind.begins_round, f"{ref.id}: {decision.kind} begins no round"
    everyone = tuple(members)
    present = members_module.by_slot(everyone)
    limits = _limits(limits or Limits(), present.values())
    state = Round(
        ref=ref,
        cause=cause,
        decision=decision,
        limits=limits,
        started_at=now,
        counted_from=now,
        connected=connected,
        dead=frozenset(name for name, node in nodes.items() if node.out_of_service),
        namespaces=opted_in_namespaces,
        max_unavailable=cause.max_unavailable if isinstance(cause, Request) else None,
        look_at=now + limits.resend,
        renewed_at=now,
        say_at=now + limits.say_again(members=len(everyone)),
    )
    draft = Draft(state, now=now)
    for member in _counting(everyone, present):
        _enrol(draft, member)
    failed = {slot for slot, member in present.items() if member.phase is PodPhase.FAILED}  # some since the decision
    for slot in sorted(decision.recreate & present.keys() | failed):
        _replace(draft, present[slot])
    return _advanced(draft)


def advance(state: Round, told: Iterable[RoundEvent], *, now: float) -> Advance:
    """Return what events make of a round; none: time has passed. Many at once cost little more than one."""
    if state.phase.is_final:
        return Advance(state)
    draft = Draft(state, now=now)
    for event in told:
        if draft.phase.is_final:
            break
        events.apply(draft, event)
    deadlines.look(draft)
    return _advanced(draft)


def resume(
    ref: RoundRef,
    *,
    kept: Kept,
    members: Iterable[Member],
    nodes: Mapping[NodeName, NodeView],
    told: Iterable[StepTold] = (),
    opted_in_namespaces: frozenset[str] = frozenset(),
    limits: Limits | None = None,
    max_unavailable: int | None = None,
    now: float,
) -> Advance:
    """Return a round that a former leader has begun, as far as it can be known, with what is to be done next.

    ``told`` is what agents have said of it in their Hellos so far; what others say follows as events. Pods that are
    newer than the Restart object have come in the place of others.
    """
    everyone = tuple(members)
    present = members_module.by_slot(everyone)
    limits = _limits(limits or Limits(), present.values())
    state = Round(
        ref=ref,
        cause=kept.cause,
        decision=kept.decision,
        limits=limits,
        started_at=min(kept.started_at, now),
        counted_from=now,
        dead=frozenset(name for name, node in nodes.items() if node.out_of_service),
        namespaces=opted_in_namespaces,
        max_unavailable=max_unavailable,
        look_at=now + limits.resend,
        renewed_at=now,
        say_at=now + limits.say_again(members=len(everyone)),
    )
    draft = Draft(state, now=now)
    for member in _counting(everyone, present):
        is_new = member.created_at > kept.created_at
        if is_new or member.deleting:
            draft.replaced.add(member.slot)
        _enrol(draft, member, is_new=is_new)
    for event in told:
        events.apply(draft, event)
    to_replace = present.keys() if kept.decision.kind is Kind.RECREATE_ALL else kept.decision.recreate
    for slot in sorted(to_replace | cases.lost_slots(present, nodes)):
        if slot not in present:
            draft.awaited[slot] = now
        elif not draft.phase.is_final and not draft.proven:
            _replace(draft, present[slot])
    return _advanced(draft)


def _advanced(draft: Draft) -> Advance:
    progress.progress(draft)
    over = draft.phase.is_final
    state = draft.frozen()
    return Advance(state, draft.effects(), None if over else state.look_at, state.again if over else ())


def _limits(limits: Limits, members: Iterable[Member]) -> Limits:
    try:
        hold = wishes.of(members).hold
    except wishes.BadAnnotationError:
        return limits  # no round is begun on it; one that was begun before goes on
    return limits if hold is None else replace(limits, hold_for_recreated=hold)


def _counting(everyone: Iterable[Member], present: Mapping[str, Member]) -> Iterator[Member]:
    """Yield the pods that a round has to do with: all that may run, and at last those that count for their slots."""
    yield from (each for each in everyone if not each.is_over and present[each.slot] is not each)
    yield from present.values()


def _enrol(draft: Draft, member: Member, *, is_new: bool = False) -> None:
    """Take a pod in that is there when the round begins, or is taken over."""
    rolling = draft.state.rolling
    if member.phase is PodPhase.SUCCEEDED:
        draft.add(MemberState(member, Stand.COMPLETED, draft.now))
    elif member.phase is PodPhase.FAILED:
        draft.add(MemberState(member, Stand.STOPPED, draft.now))
    elif is_new or member.phase is PodPhase.PENDING:
        if rolling and not is_new:
            return  # it is away already, and not by our doing
        order = None if rolling else OrderKind.HOLD
        draft.add(MemberState(member, Stand.JOINING, draft.now, order=order, replaces=is_new))
        draft.stop(member.pod.uid)
    elif member.deleting:
        draft.add(MemberState(member, Stand.LEAVING, draft.now, old_runs=True, reason=losing.POD_DELETING))
    else:
        stand = Stand.WAITING if rolling else Stand.STOPPING
        draft.add(MemberState(member, stand, draft.now, order=OrderKind.RESTART, old_runs=True))
        if not rolling:
            draft.stop(member.pod.uid)


def _replace(draft: Draft, member: Member) -> None:
    """Begin with the replacement of a pod that was decided on."""
    uid, cause = member.pod.uid, draft.state.cause
    one = draft.members.get(uid)
    if (
        one is None
        or member.slot in draft.replaced
        or one.stand not in (Stand.WAITING, Stand.STOPPING, Stand.STOPPED, Stand.JOINING)
    ):
        return
    if isinstance(cause, Fault) and cause.pod.uid == uid and needs_recreation(cause):
        losing.lose(draft, uid, reason=cause.code, detail=cause.message, device=True)
    elif member.phase is PodPhase.FAILED:
        losing.lose(draft, uid, reason="PodFailed", detail="the pod has failed")
    elif isinstance(cause, Request) and cause.recreate:
        losing.lose(draft, uid, reason="Requested", detail=cause.why)
    else:
        losing.lose(draft, uid, reason="NodeLost", detail=f"node {member.node} is not ready")
