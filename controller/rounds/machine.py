"""The round as a state machine: begin, advance and resume it. Pure.

``now`` is Unix time by a clock that never goes back while the process lives. Effects may be lost: they are repeated
until an event answers them. Durable are the Restart object with which the round began (``status``), and each agent's
record of its members, which its Hello reports. From these any replica resumes the round.

Invariants (``round_builder`` checks them, tests/unit/controller/rounds explores them):

- A member is released only when no old container of any other may run: it is stopped, completed, or its pod is gone.
  Exception: in a rolling round members do not wait for one another.
- A slot's pod is deleted at most once, and only if it opted in and a controller will recreate it.
- Every round ends if only time passes, and at its end every possible hold was released or aborted.
- An agent that released a pod by itself never holds it again in that round. So a round in which that happens before
  all old containers were stopped has failed, and another one begins right after it (``Advance.again``).
- A fault that is reported during the round belongs to the containers that the round stops, or is decided on right
  after it. Only the fault of a pod that is being deleted is dropped.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from kubemend.common.coordination import OrderKind
from kubemend.controller.decisions import cases
from kubemend.controller.decisions.facts import Decision, Kind, Reason, needs_recreation
from kubemend.controller.gangs import gang_options
from kubemend.controller.gangs import members as members_module
from kubemend.controller.model.faults import Cause, Fault, Request
from kubemend.controller.model.members import Member, NodeName, NodeView, PodPhase
from kubemend.controller.model.rounds import Abort, RoundEvent, RoundRef
from kubemend.controller.rounds import deadlines, events, progress, replacement
from kubemend.controller.rounds.round_builder import RoundBuilder
from kubemend.controller.rounds.states import Advance, Limits, MemberPhase, MemberState, Round
from kubemend.controller.rounds.status import Kept


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
    """Return the round that a decision begins; its first effects must wait until its Restart object exists.

    ``members`` are all pods of the gang, ``nodes`` theirs, and ``connected`` those with connected agents.
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
        check_at=now + limits.resend,
        renewed_at=now,
        resend_at=now + limits.resend_interval(members=len(everyone)),
    )
    draft = RoundBuilder(state, now=now)
    for member in _counting(everyone, present):
        _enrol(draft, member)
    # some may have failed since the decision
    failed = {slot for slot, member in present.items() if member.phase is PodPhase.FAILED}
    for slot in sorted(decision.recreate & present.keys() | failed):
        _replace(draft, present[slot], nodes)
    return _advanced(draft)


def advance(state: Round, received: Iterable[RoundEvent], *, now: float) -> Advance:
    """Apply events to a round and return it; none: time has passed. Many at once cost little more than one."""
    if state.phase.is_final:
        return Advance(state)
    draft = RoundBuilder(state, now=now)
    for event in received:
        if draft.phase.is_final:
            break
        events.apply(draft, event)
    deadlines.check(draft)
    return _advanced(draft)


def abandon(state: Round, *, reason: str, now: float) -> tuple[Abort, ...]:
    """Return the effects by which agents drop a round that an internal error has ended."""
    draft = RoundBuilder(state, now=now)
    replacement.fail(draft, reason=reason, detail="")
    return tuple(effect for effect in draft.effects() if isinstance(effect, Abort))


def resume(
    ref: RoundRef,
    *,
    kept: Kept,
    members: Iterable[Member],
    nodes: Mapping[NodeName, NodeView],
    opted_in_namespaces: frozenset[str] = frozenset(),
    limits: Limits | None = None,
    max_unavailable: int | None = None,
    now: float,
) -> Advance:
    """Resume a previous leader's round, as far as it is known, and return it with the next effects.

    The results in agents' Hellos follow as events. Pods that are newer than all with which the round began are
    replacements. Members on nodes that are not ready are lost if their agents do not connect in time, as after any
    other loss of a connection.
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
        resumed=True,
        lost=frozenset(name for name, node in nodes.items() if cases.is_lost(node) and not node.out_of_service),
        namespaces=opted_in_namespaces,
        max_unavailable=max_unavailable,
        check_at=now + limits.resend,
        renewed_at=now,
        resend_at=now + limits.resend_interval(members=len(everyone)),
    )
    draft = RoundBuilder(state, now=now)
    for member in _counting(everyone, present):
        is_new = member.created_at > kept.members_until
        if is_new or member.deleting:
            draft.replaced.add(member.slot)
        _enrol(draft, member, is_new=is_new)
    replacements = sum(one.replaces and members_module.interchangeable(one.member) for one in draft.members.values())
    to_replace = present.keys() if kept.decision.kind is Kind.RECREATE_ALL else kept.decision.recreate
    for slot in sorted((to_replace | kept.slots) - present.keys()):
        if replacements:
            replacements -= 1  # one of them has taken its place; which one does not matter
        else:
            draft.awaited[slot] = now
    for slot in sorted(present.keys() & (to_replace | cases.lost_slots(present, nodes, but=draft.lost))):
        _replace(draft, present[slot], nodes)
    return _advanced(draft)


def _advanced(draft: RoundBuilder) -> Advance:
    progress.progress(draft)
    over = draft.phase.is_final
    state = draft.frozen()
    return Advance(state, draft.effects(), None if over else state.check_at, state.again if over else ())


def _limits(limits: Limits, members: Iterable[Member]) -> Limits:
    """Return the limits with the gang's own hold. It ends so long before the round that released members can answer."""
    try:
        hold = gang_options.of(members).hold
    except gang_options.BadAnnotationError:
        hold = None  # no round is begun on it; one that was begun before continues
    longest = max(limits.whole - limits.release, limits.whole / 2)
    return replace(limits, hold_for_recreated=min(limits.hold_for_recreated if hold is None else hold, longest))


def _counting(everyone: Iterable[Member], present: Mapping[str, Member]) -> Iterator[Member]:
    """Yield the pods that a round handles: all that may run, and then those that count for their slots."""
    yield from (each for each in everyone if not each.is_over and present[each.slot] is not each)
    yield from present.values()


def _enrol(draft: RoundBuilder, member: Member, *, is_new: bool = False) -> None:
    """Add a pod that exists when the round begins or is resumed."""
    rolling = draft.state.rolling
    if member.phase is PodPhase.SUCCEEDED:
        draft.add(MemberState(member, MemberPhase.COMPLETED, draft.now))
    elif member.phase is PodPhase.FAILED:
        draft.add(MemberState(member, MemberPhase.STOPPED, draft.now))
    elif is_new or member.phase is PodPhase.PENDING:
        if rolling and not is_new:
            return  # it is unavailable already, and not because of this round
        order = None if rolling else OrderKind.HOLD
        draft.add(MemberState(member, MemberPhase.JOINING, draft.now, order=order, replaces=is_new))
        draft.stop(member.pod.uid)
        events.count_running_pod(draft, member)
    elif member.deleting:
        dead = member.node in draft.dead
        reason = replacement.POD_DELETING
        draft.add(MemberState(member, MemberPhase.LEAVING, draft.now, old_runs=not dead, reason=reason))
        if dead:
            replacement.lose_with_node(draft, member.pod.uid)
    else:
        phase = MemberPhase.WAITING if rolling else MemberPhase.STOPPING
        draft.add(MemberState(member, phase, draft.now, order=OrderKind.RESTART, old_runs=True))
        if not rolling:
            draft.stop(member.pod.uid)


def _replace(draft: RoundBuilder, member: Member, nodes: Mapping[NodeName, NodeView]) -> None:
    """Begin to replace a pod, as decided."""
    uid, cause = member.pod.uid, draft.state.cause
    one = draft.members.get(uid)
    if (
        draft.phase.is_final
        or one is None
        or member.slot in draft.replaced
        or one.phase not in (MemberPhase.WAITING, MemberPhase.STOPPING, MemberPhase.STOPPED, MemberPhase.JOINING)
    ):
        return
    if isinstance(cause, Fault) and cause.pod.uid == uid and needs_recreation(cause):
        replacement.lose(draft, uid, reason=cause.code, detail=cause.message, device=True)
    elif member.phase is PodPhase.FAILED:
        replacement.lose(draft, uid, reason="PodFailed", detail="the pod has failed")
    elif isinstance(cause, Request) and cause.recreate:
        replacement.lose(draft, uid, reason="Requested", detail=cause.reason)
    else:
        reason, detail = _placement_reason(member, nodes.get(member.node), decided=draft.state.decision.reason)
        replacement.lose(draft, uid, reason=reason, detail=detail)


def _placement_reason(member: Member, node: NodeView | None, *, decided: Reason) -> tuple[str, str]:
    """Return the reason and the detail of the replacement of a pod that may not run on its node.

    What was ``decided`` may no longer hold when a new leader resumes the round.
    """
    why = None if cases.is_lost(node) else cases.departure(member, node) or decided
    if why is Reason.MAINTENANCE_PLANNED:
        return why.value, f"maintenance of node {member.node} is planned"
    if why is Reason.EVICTION_REQUESTED:
        return why.value, "an EvictionRequest names the pod"
    return "NodeLost", f"node {member.node} is not ready"
