"""Handle members that cannot be restarted in place: recreate them, wait for them, or fail the round. Pure."""

import itertools
from typing import Final

from kubemend.controller.gangs import members
from kubemend.controller.model.members import Member, NodeName, PodUid
from kubemend.controller.model.rounds import FaultReported
from kubemend.controller.rounds.round_builder import RoundBuilder
from kubemend.controller.rounds.states import MemberPhase, Phase

SELF_RELEASED: Final = "SelfReleased"
ABORTED: Final = "Aborted"
DEVICE_NOT_USABLE: Final = "DeviceNotUsable"
NODE_OUT_OF_SERVICE: Final = "NodeOutOfService"
POD_DELETING: Final = "PodDeleting"
MEMBER_LEFT: Final = "MemberLeft"
COMPLETED: Final = "Completed"

FIXED_BY_RECREATION: Final = frozenset(
    {
        DEVICE_NOT_USABLE,
        "AlreadyTerminated",
        "PodNotRunning",
        "PostStartUnsupported",
        "RestartPolicyNever",
        "RuntimeHidesConfig",
        "SandboxNotReady",
    }
)
"""Refusals of an agent (agent.restart.Reason) that do not apply to a new pod.

For all others a deletion would not help (BadAnnotation), or would break what the refusal protects (JobBackoffLimit,
LeaderWorkerSetRecreatesGroup, StaticPod).
"""


def lose(draft: RoundBuilder, uid: PodUid, *, reason: str, detail: str = "", device: bool = False) -> None:
    """Recreate a pod that cannot be restarted in place; if that is not allowed, give it up.

    The round can continue without a pod in which no old container runs: that one has failed, the others are released in
    the end. A pod that another client deletes is awaited, except on a node that is out of service: no kubelet ends it
    there, and Kubernetes' garbage collector removes it up to 20 s later (``gcCheckPeriod`` in pkg/controller/podgc).
    """
    one = draft.members[uid]
    bar = members.bar(one.member, namespaces=draft.state.namespaces)
    may_delete = bar is None and one.member.slot not in draft.replaced
    if one.member.deleting and not (may_delete and one.member.node in draft.dead):
        draft.change(uid, phase=MemberPhase.LEAVING, reason=reason, detail=detail)
        return
    if may_delete:
        draft.replaced.add(one.member.slot)
        draft.change(uid, phase=MemberPhase.LEAVING, reason=reason, detail=detail, recreated=True, device=device)
        draft.recreate(uid)
        return
    message = (
        members.kept(one.member, bar) if bar is not None else "a pod of its slot was already replaced in this round"
    )
    give_up(draft, uid, reason=reason, detail=f"{detail}; {message}" if detail else message)


def delete_again(draft: RoundBuilder, uid: PodUid) -> None:
    """Repeat the request to delete a pod; give it up if it must stay now: it has opted out, or has lost its owner."""
    one = draft.members[uid]
    bar = members.bar(one.member, namespaces=draft.state.namespaces)
    if bar is None:
        draft.recreate(uid)
    elif not one.member.deleting:
        give_up(draft, uid, reason=one.reason, detail=f"{one.detail}; {members.kept(one.member, bar)}")


def lose_unreachable(draft: RoundBuilder, node: NodeName) -> None:
    """Lose the members that have not stopped on a node that is not ready, and whose agent is not connected."""
    for uid in draft.on_node(node):
        if draft.members[uid].phase is MemberPhase.STOPPING and not draft.phase.is_final:
            lose(draft, uid, reason="NodeLost", detail=f"node {node} is not ready, and its agent is not connected")


def lose_with_node(draft: RoundBuilder, uid: PodUid) -> None:
    """Lose a pod whose node is out of service (KEP-2268): nothing runs there."""
    node = draft.members[uid].member.node
    lose(draft, uid, reason=NODE_OUT_OF_SERVICE, detail=f"node {node} is out of service")


def give_up(draft: RoundBuilder, uid: PodUid, *, reason: str, detail: str) -> None:
    """Count a pod as failed; if an old container of it may run, the others cannot be released, and the round fails."""
    one = draft.change(uid, phase=MemberPhase.FAILED, reason=reason, detail=detail)
    if one.old_runs and not draft.state.rolling:
        fail(draft, reason=reason, detail=f"{one.member.slot}: {detail}" if detail else one.member.slot)


def leave(draft: RoundBuilder, member: Member) -> None:
    """Wait until a pod is gone that another client has deleted."""
    draft.change(member.pod.uid, phase=MemberPhase.LEAVING, member=member, reason=POD_DELETING)


def gone(draft: RoundBuilder, uid: PodUid) -> None:
    """Record that none of a pod's containers will ever run again; wait for its replacement if one will come.

    After the release that applies only to a pod that was leaving before: a later deletion does not concern the round.
    """
    counts = draft.phase is Phase.STOPPING or draft.members[uid].phase is MemberPhase.LEAVING
    one = draft.change(uid, phase=MemberPhase.GONE, old_runs=False)
    slot = one.member.slot
    if counts and one.member.owner is not None and draft.newest.get(slot) == uid:
        draft.awaited[slot] = draft.now


def place_for(draft: RoundBuilder, newcomer: Member) -> str | None:
    """Return the slot whose place a new pod takes; None if it replaces no pod.

    A pod whose owner names its pods at random takes the place of one of the same owner that is gone or leaving.
    """
    if newcomer.slot in draft.awaited or newcomer.slot in draft.newest:
        return newcomer.slot
    if not members.interchangeable(newcomer):
        return None
    gone = ((slot, draft.newest[slot]) for slot in draft.awaited if slot in draft.newest)
    leaving = draft.newest.items() if draft.count(MemberPhase.LEAVING) else ()
    for slot, uid in itertools.chain(gone, leaving):  # thousands may be replaced: the first one will do
        one = draft.members[uid]
        if one.member.owner == newcomer.owner and (slot in draft.awaited or one.phase is MemberPhase.LEAVING):
            return slot
    return None


def fail(draft: RoundBuilder, *, reason: str, detail: str, again: FaultReported | None = None) -> None:
    """End the round as failed: all holds are released, and nothing more is begun."""
    if draft.phase.is_final:
        return
    draft.reason, draft.detail = reason, detail
    if again is not None:
        draft.remember(again)
    draft.enter(Phase.FAILED)
    draft.ended = draft.elapsed
    for uid, one in draft.members.items():
        if one.phase not in (MemberPhase.WAITING, MemberPhase.RUNNING, MemberPhase.COMPLETED, MemberPhase.GONE):
            draft.abort(uid)
