"""Convert pods, as the API server has them, to members. Pure."""

import enum
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final

from kubemend.common import conditions, exit_codes, gangs, targets
from kubemend.common.kube import timestamps
from kubemend.controller.gangs import job_accounting
from kubemend.controller.model.members import Member, NodeName, Owner, PodPhase, PodRef, PodUid

PREFIX: Final = "kubemend.io/"
RESTART: Final = PREFIX + "restart"
IN_PLACE: Final = "InPlace"
MAX_RESTARTS: Final = PREFIX + "max-restarts"
GRACE_PERIOD: Final = PREFIX + "grace-period"
ANNOTATIONS: Final = (
    RESTART,
    MAX_RESTARTS,
    exit_codes.FATAL,
    gangs.HOLD,
    GRACE_PERIOD,
    gangs.OWNER_RECREATES,
    gangs.JOBSET_ATTEMPT,
)
"""The annotations of a pod that the controller reads."""

MOST_OF_A_MEMBER: Final = 64 * 1024
"""Bytes kept of one member; about a thousand are usual."""
MOST_OF_A_NAMESPACE: Final = 64 * 2**20
MOST_OF_A_WATCH: Final = 80 * 2**20
"""Bytes kept of the members that one of the four watches has, some 42,000 ordinary ones.

The controller's limit is 1.5 GiB: 320 MiB for members, 96 for JobSets, 96 for their Jobs, 64 for Restarts, 64 for pods
to place, 528 for connections of agents, and 45 for the code leave 323 MiB.
"""
_LONGEST_ANNOTATION: Final = 1001
"""Characters kept: one more than are accepted, so that an annotation that is refused for its length still is."""
_TOO_MUCH: Final = (
    f"(not kept: the pod has more than {MOST_OF_A_MEMBER >> 10} KiB of such annotations, or those of its namespace "
    f"{MOST_OF_A_NAMESPACE >> 20} MiB, or most of {MOST_OF_A_WATCH >> 20} MiB for all; shorten them)"
)

_NODE = "Node"
"""The kind that owns a mirror pod. The file on its node creates it again after any deletion through the API."""


_NAME_AT_RANDOM: Final = frozenset(
    {("", "ReplicationController"), ("apps", "ReplicaSet"), ("batch", "Job"), ("ray.io", "RayCluster")}
)
"""Kinds whose pods have no identity: a replacement has another name. (Pods of Indexed Jobs have their index.)"""
_RECREATES: Final = _NAME_AT_RANDOM | {
    ("apps", "DaemonSet"),
    ("apps", "StatefulSet"),
    *(("kubeflow.org", f"{framework}Job") for framework in ("JAX", "MPI", "Paddle", "PyTorch", "TF", "XGBoost")),
}
"""Kinds whose controllers create a new pod for one that was deleted. Of another kind that is unknown: a workflow's step
fails, for example, and no other pod takes its place."""
_LONGEST_KIND: Final = 100
_LONGEST_CODE: Final = 64
"""Characters kept of a fault's code: one more than a taint's value can have."""


class Bar(enum.Enum):
    """Why kubemend must not delete a pod. Stable: they appear in Restart objects and docs/operations.md."""

    NOT_OPTED_IN = "NotOptedIn"
    NO_CONTROLLER = "NotRecreated"
    UNKNOWN_OWNER = "OwnerMayNotRecreate"
    SINGLE_POD = "SinglePod"


def member(pod: Mapping[str, Any]) -> Member | None:
    """Return the member for a pod object; None if it is in no gang."""
    gang = gang_of(pod)
    return _member(pod, gang) if gang is not None else None


def single(pod: Mapping[str, Any]) -> Member | None:
    """Return the only member of a single pod's round; None if the pod is in a gang.

    It has no owner: a request to restart one pod in place never deletes the pod.
    """
    if gang_of(pod) is not None:
        return None
    meta = pod["metadata"]
    alone = _member(pod, gangs.GangKey(meta["namespace"], gangs.POD, meta["name"]))
    return replace(alone, owner=None, gang_uid=alone.pod.uid)


def gang_of(pod: Mapping[str, Any]) -> gangs.GangKey | None:
    """Return the gang of a pod object; None if it is in none."""
    return gangs.key(pod["metadata"]["namespace"], pod["metadata"].get("labels") or {})


def _member(pod: Mapping[str, Any], gang: gangs.GangKey) -> Member:
    meta, spec, status = pod["metadata"], pod.get("spec") or {}, pod.get("status") or {}
    labels = meta.get("labels") or {}
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
        left_out=job_accounting.is_left_out(pod),
        device_failure=_device_failure(status) if meta.get("deletionTimestamp") else "",
    )


def bare(member: Member) -> Member:
    """Return the reduced form of a member that is too large: its identity, and that its gang cannot be restarted."""
    return replace(member, annotations=MappingProxyType({RESTART: _TOO_MUCH}), owner=None)


def uid_of(gang: Collection[Member]) -> str:
    """Return the UID of the object that a gang is named after; empty if its members do not agree on one.

    If a JobSet or Job has just taken the name of another, the newest member decides: members of the other may still be
    ending.
    """
    if any(each.gang.kind in ("Gang", gangs.LWS) for each in gang):
        uids = {each.gang_uid for each in gang}
        return next(iter(uids)) if len(uids) == 1 else ""
    return max(gang, key=lambda each: (each.created_at, each.pod.uid)).gang_uid if gang else ""


def opted_in(member: Member, *, namespaces: frozenset[str] = frozenset()) -> bool:
    """Return whether it may be restarted: by its own annotation, or because its namespace is one of these."""
    return member.annotations.get(RESTART) == IN_PLACE or member.pod.namespace in namespaces


def bar(member: Member, *, namespaces: frozenset[str] = frozenset()) -> Bar | None:
    """Return why its pod must not be deleted for recreation; None if it may be."""
    if not opted_in(member, namespaces=namespaces):
        return Bar.NOT_OPTED_IN
    if member.gang.kind == gangs.POD:
        return Bar.SINGLE_POD
    if member.owner is None or member.owner.kind == _NODE:
        return Bar.NO_CONTROLLER
    is_known = (member.owner.api_group, member.owner.kind) in _RECREATES
    if not is_known and member.annotations.get(gangs.OWNER_RECREATES) != "true":
        return Bar.UNKNOWN_OWNER
    return None


def kept(member: Member, bar: Bar) -> str:
    """Describe for people why its pod is not deleted."""
    owner = member.owner
    if bar is not Bar.UNKNOWN_OWNER or owner is None:
        return f"its pod is not deleted: {bar.value}"
    kind = f"{owner.kind}.{owner.api_group}".rstrip(".")[:_LONGEST_KIND]
    hint = f'if {owner.name} creates a new one, annotate the pod template with {gangs.OWNER_RECREATES}: "true"'
    return f"its pod is not deleted: {bar.value} (kind {kind}; {hint})"


def interchangeable(member: Member) -> bool:
    """Return whether any new pod of the same owner replaces it, because its owner names pods at random."""
    owner = member.owner
    return owner is not None and (owner.api_group, owner.kind) in _NAME_AT_RANDOM and member.slot == member.pod.name


def by_slot(members: Iterable[Member]) -> Mapping[str, Member]:
    """Return the member that counts for each slot, in the slots' order.

    A slot can have several pods: a Job keeps its failed ones, and may replace a pod that is still ending. The pod that
    can still run counts, and the newest of several.
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


def _device_failure(status: Mapping[str, Any]) -> str:
    """Return the code with which a pod was marked for a device's failure; "" if it was not (``pod_replacer``)."""
    for each in status.get("conditions") or ():
        if each.get("type") == conditions.DEVICE_FAILURE and each.get("status") == "True":
            return str(each.get("reason") or "")[:_LONGEST_CODE]
    return ""


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
        {name: text[:_LONGEST_ANNOTATION] for name, text in annotations.items() if name in ANNOTATIONS}
    )


def _created_at(text: str | None) -> float:
    return float(timestamps.unix(text)) if text else 0.0
