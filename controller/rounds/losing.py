"""Members that cannot go on where they are: who is recreated or waited for, and when the round cannot go on. Pure."""

from typing import Final

from controller.gangs import members
from controller.model.members import Member, PodUid
from controller.model.rounds import FaultTold
from controller.rounds.draft import Draft
from controller.rounds.states import Phase, Stand

SELF_RELEASED: Final = "SelfReleased"
ABORTED: Final = "Aborted"
DEVICE_NOT_USABLE: Final = "DeviceNotUsable"
POD_DELETING: Final = "PodDeleting"
COMPLETED: Final = "Completed"

MENDED_BY_RECREATION: Final = frozenset(
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
"""Refusals of an agent (agent.restart.admission.Reason) after which a new pod does what a restart cannot.

Of all others a deletion would be no mend (BadAnnotation), or would break what the refusal protects (JobBackoffLimit,
LeaderWorkerSetRecreatesGroup, StaticPod).
"""


def lose(draft: Draft, uid: PodUid, *, reason: str, detail: str = "", device: bool = False) -> None:
    """Have a pod recreated that cannot be restarted where it is; where that must not be, the round cannot go on.

    It can go on without one of which nothing old runs: that one has failed, the others are released in the end.
    """
    one = draft.members[uid]
    if one.member.deleting:
        draft.change(uid, stand=Stand.LEAVING, reason=reason, detail=detail)
        return
    bar = members.bar(one.member, namespaces=draft.state.namespaces)
    if bar is None and one.member.slot not in draft.replaced:
        draft.replaced.add(one.member.slot)
        draft.change(uid, stand=Stand.LEAVING, reason=reason, detail=detail, recreated=True, device=device)
        draft.recreate(uid)
        return
    why = (
        f"its pod is not deleted: {bar.value}"
        if bar is not None
        else "one of its slot was replaced in this round already"
    )
    give_up(draft, uid, reason=reason, detail=f"{detail}; {why}" if detail else why)


def give_up(draft: Draft, uid: PodUid, *, reason: str, detail: str) -> None:
    """Count a pod as failed; while something old of it may run, the others cannot be released, and the round fails."""
    one = draft.change(uid, stand=Stand.FAILED, reason=reason, detail=detail)
    if one.old_runs and not draft.state.rolling:
        fail(draft, reason=reason, detail=f"{one.member.slot}: {detail}" if detail else one.member.slot)


def leave(draft: Draft, member: Member) -> None:
    """Somebody else has a pod deleted: wait until it is gone."""
    draft.change(member.pod.uid, stand=Stand.LEAVING, member=member, reason=POD_DELETING)


def gone(draft: Draft, uid: PodUid) -> None:
    """Nothing of a pod runs, nor ever will. Its replacement is waited for, if one is to come.

    Not so after the release, but for a pod that was leaving before: what is deleted later is another story.
    """
    counts = draft.phase is Phase.STOPPING or draft.members[uid].stand is Stand.LEAVING
    one = draft.change(uid, stand=Stand.GONE, old_runs=False)
    slot = one.member.slot
    if counts and one.member.owner is not None and draft.newest.get(slot) == uid:
        draft.awaited[slot] = draft.now


def fail(draft: Draft, *, reason: str, detail: str, again: FaultTold | None = None) -> None:
    """End the round: what is held is let go, nothing more is begun."""
    if draft.phase.is_final:
        return
    draft.reason, draft.detail = reason, detail
    if again is not None:
        draft.remember(again)
    draft.enter(Phase.FAILED)
    draft.ended = draft.elapsed
    for uid, one in draft.members.items():
        if one.stand not in (Stand.WAITING, Stand.RUNNING, Stand.COMPLETED, Stand.GONE):
            draft.abort(uid)
