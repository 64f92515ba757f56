"""Members out of pods, as the API server has them. Pure."""

import enum
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final

from common import gangs, targets
from common.kube import timestamps
from controller.model.members import Member, NodeName, Owner, PodPhase, PodRef, PodUid

PREFIX: Final = "kubemend.io/"
RESTART: Final = PREFIX + "restart"
IN_PLACE: Final = "InPlace"

MOST_OF_A_MEMBER: Final = 64 * 1024
"""Bytes that are kept of one member; about a thousand are usual."""
MOST_OF_A_NAMESPACE: Final = 64 * 2**20
_LONGEST_ANNOTATION: Final = 1001
"""Characters that are kept: one more than are accepted, so that what is refused for its length is refused still."""
_TOO_MUCH: Final = (
    f"(not kept: the pod has more than {MOST_OF_A_MEMBER >> 10} KiB of such annotations, or those of its namespace "
    f"{MOST_OF_A_NAMESPACE >> 20} MiB; shorten them)"
)

_NODE = "Node"
"""The kind that owns a mirror pod: its file on the node brings it back, whatever is deleted here."""


class Bar(enum.Enum):
    """Why a pod must not be deleted by us. Stable: they appear in Restart objects and docs/operations.md."""

    NOT_OPTED_IN = "NotOptedIn"
    NOBODY_RECREATES_IT = "NobodyRecreatesIt"


def member(pod: Mapping[str, Any]) -> Member | None:
    """Return the member that a pod object is; None when it is in no gang."""
    meta, spec, status = pod["metadata"], pod.get("spec") or {}, pod.get("status") or {}
    labels = meta.get("labels") or {}
    gang = gangs.key(meta["namespace"], labels)
    if gang is None:
        return None
    owner = _owner(meta.get("ownerReferences") or ())
    return Member(
        pod=PodRef(meta["namespace"], meta["name"], PodUid(meta["uid"])),
        gang=gang,
        slot=gangs.slot(meta["name"], labels),
        node=NodeName(spec.get("nodeName") or ""),
        phase=_phase(status.get("phase")),
        deleting=bool(meta.get("deletionTimestamp")),
        restart_policy=spec.get("restartPolicy") or "Always",
        owner=owner,
        annotations=_ours(meta.get("annotations") or {}),
        created_at=_created_at(meta.get("creationTimestamp")),
        targets=_targets(spec, meta.get("annotations") or {}),
        gang_uid=_gang_uid(gang, labels, owner),
    )


def bare(member: Member) -> Member:
    """Return what is kept of a member of which there is too much: who it is, and that its gang cannot be restarted."""
    return replace(member, annotations=MappingProxyType({RESTART: _TOO_MUCH}), owner=None)


def uid_of(gang: Collection[Member]) -> str:
    """Return the UID of what a gang is named after; empty where its members do not agree on one.

    Of a JobSet or Job that has just taken another's name the newest member tells; the former's may still end.
    """
    if any(each.gang.kind == "Gang" for each in gang):
        uids = {each.gang_uid for each in gang}
        return next(iter(uids)) if len(uids) == 1 else ""
    return max(gang, key=lambda each: (each.created_at, each.pod.uid)).gang_uid if gang else ""


def opted_in(member: Member, *, namespaces: frozenset[str] = frozenset()) -> bool:
    """Return whether it may be restarted: by its own annotation, or because its namespace is one of these."""
    return member.annotations.get(RESTART) == IN_PLACE or member.pod.namespace in namespaces


def bar(member: Member, *, namespaces: frozenset[str] = frozenset()) -> Bar | None:
    """Return why its pod must not be deleted to have it recreated; None when it may be."""
    if not opted_in(member, namespaces=namespaces):
        return Bar.NOT_OPTED_IN
    if member.owner is None or member.owner.kind == _NODE:
        return Bar.NOBODY_RECREATES_IT
    return None


def by_slot(members: Iterable[Member]) -> Mapping[str, Member]:
    """Return the one that counts for each slot, in the slots' order.

    A slot can have several pods: a Job keeps its failed ones, and may replace a pod that still ends. The one counts
    that can still run, and of several the newest.
    """
    found: dict[str, Member] = {}
    for each in members:
        if each.slot not in found or _rank(each) > _rank(found[each.slot]):
            found[each.slot] = each
    return MappingProxyType(dict(sorted(found.items())))


def _rank(member: Member) -> tuple[bool, bool, float, PodUid]:
    return not member.is_over, not member.deleting, member.created_at, member.pod.uid


def _targets(spec: Mapping[str, Any], annotations: Mapping[str, str]) -> frozenset[str]:
    mains = (
        targets.Candidate(each["name"], is_main=True, holds_devices=targets.holds_devices(each))
        for each in spec.get("containers") or ()
    )
    return targets.of(mains, named=targets.named(annotations.get(targets.CONTAINERS, "")))


def _gang_uid(gang: gangs.GangKey, labels: Mapping[str, str], owner: Owner | None) -> str:
    if gang.kind == "JobSet":
        return labels.get(gangs.JOBSET_UID) or ""
    return owner.uid if owner is not None else ""


def _phase(text: str | None) -> PodPhase:
    try:
        return PodPhase(text)
    except ValueError:
        return PodPhase.UNKNOWN


def _owner(references: Iterable[Mapping[str, Any]]) -> Owner | None:
    for each in references:
        if each.get("controller"):
            group, slash, _ = each["apiVersion"].partition("/")
            return Owner(group if slash else "", each["kind"], each["name"], each["uid"])
    return None


def _ours(annotations: Mapping[str, str]) -> Mapping[str, str]:
    return MappingProxyType(
        {name: text[:_LONGEST_ANNOTATION] for name, text in annotations.items() if name.startswith(PREFIX)}
    )


def _created_at(text: str | None) -> float:
    return float(timestamps.unix(text)) if text else 0.0
