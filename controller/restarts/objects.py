"""Convert between Restart objects and values. Pure."""

import json
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final

from kubemend.common import gangs
from kubemend.common.gangs import GangKey
from kubemend.common.kube import timestamps
from kubemend.controller.model.members import Owner
from kubemend.controller.model.rounds import RoundRef
from kubemend.controller.restarts import names, round_annotations

Json = dict[str, Any]

FINAL: Final = frozenset({"Done", "Degraded", "Failed", "Refused"})
"""Final phases."""
COMPLETE: Final = "Complete"
"""Condition: True from the end on, for ``kubectl wait``."""

_PERCENT: Final = re.compile(r"(?P<number>\d{1,3})%")
_NOT_IN_A_NAME: Final = re.compile(r"[^a-z0-9]+")
_LONGEST_PREFIX: Final = 200  # of a name, which may have 253 characters
_LONGEST_MESSAGE: Final = 1024
_LONGEST_LABEL: Final = 63  # LabelValueMaxLength of apimachinery
_VERSIONS: Final[Mapping[str, str]] = {"batch": "v1", "jobset.x-k8s.io": "v1alpha2", "apps": "v1"}


@dataclass(frozen=True, slots=True)
class Target:
    """``spec.targetRef``."""

    api_version: str
    kind: str
    name: str


@dataclass(frozen=True, slots=True)
class RestartSpec:
    """The options of a request; None and empty values leave them to the pods or to the controller.

    Times are in seconds.
    """

    gang: GangKey | None = None
    target: Target | None = None
    containers: tuple[str, ...] = ()
    strategy: str = ""
    grace_seconds: int | None = None
    max_unavailable: int | None = None
    max_unavailable_percent: int | None = None
    reason: str = ""
    timeout_seconds: int | None = None
    ttl_seconds: int | None = None

    def unavailable(self, members: int) -> int | None:
        """Return how many of this many members may be unavailable at a time; None: all.

        A percentage gives at least one.
        """
        if self.max_unavailable_percent is not None:
            return max(1, members * self.max_unavailable_percent // 100)
        return None if self.max_unavailable is None else min(self.max_unavailable, max(1, members))


@dataclass(frozen=True, slots=True)
class Restart:
    """One Restart object. ``created_at`` is Unix time by the API server's clock.

    ``attempt`` 0 and ``epoch`` 0: it is not a round (yet). ``status`` of an unfinished round combines its first status
    and all later writes. ``owner_uid`` is the UID of the JobSet that owns it, or empty. ``gang_uid`` is the UID of the
    object that its gang is named after (``controller.model.members.Member``), or empty.
    """

    namespace: str
    name: str
    uid: str
    version: str
    generation: int
    created_at: float
    spec: RestartSpec
    gang: GangKey | None
    attempt: int = 0
    epoch: int = 0
    status: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    deleting: bool = False
    owner_uid: str = ""
    gang_uid: str = ""

    @property
    def id(self) -> str:
        """Return the id of its round (``RoundRef.id``)."""
        return f"{self.namespace}/{self.name}"

    @property
    def ref(self) -> RoundRef | None:
        """Return its round; None for a request without one."""
        if self.gang is None or not self.attempt:
            return None
        return RoundRef(self.namespace, self.name, self.gang, self.attempt)

    @property
    def phase(self) -> str:
        """Return ``status.phase``; "" if there is none."""
        return str(self.status.get("phase") or "")

    @property
    def is_round(self) -> bool:
        """Return whether it has a round."""
        return self.ref is not None

    @property
    def is_finished(self) -> bool:
        """Return whether it has ended, successfully or not."""
        return self.phase in FINAL

    @property
    def is_request(self) -> bool:
        """Return whether it is a request that waits."""
        return not self.is_round and not self.is_finished and not self.deleting

    @property
    def begun_at(self) -> float:
        """Return the Unix time at which its round began: a request may have waited for long before that."""
        time = self.status.get("startTime")
        return timestamps.unix(time) if time else self.created_at

    @property
    def finished_at(self) -> float:
        """Return the Unix time of its end."""
        time = self.status.get("completionTime")
        return timestamps.unix(time) if time else self.created_at


@dataclass(frozen=True, slots=True)
class NewRound:
    """A round that begins. ``status`` is its first status, in the resource's form.

    ``spec`` is for the object of a round without a request. ``owner`` is the gang's: the object is deleted with it.
    ``gang_uid`` is the UID of the object that the gang is named after.
    """

    gang: GangKey
    attempt: int
    epoch: int
    status: Mapping[str, Any]
    spec: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    owner: Owner | None = None
    gang_uid: str = ""

    def labels(self) -> Json:
        """Return the labels of its object. A pod's name may be too long for a label; its ``targetRef`` has it, too."""
        named = {names.GANG_NAME: self.gang.name} if len(self.gang.name) <= _LONGEST_LABEL else {}
        return {names.GANG_KIND: self.gang.kind, **named}

    def annotations(self) -> Json:
        """Return the annotations of its object."""
        return {
            names.ATTEMPT: str(self.attempt),
            names.CAUSE: self.status["trigger"]["code"],
            names.DECISION: self.status["decision"]["kind"],
            names.EPOCH: str(self.epoch),
            **({names.GANG_UID: self.gang_uid} if self.gang_uid else {}),
            names.ROUND: json.dumps(dict(self.status), separators=(",", ":"), sort_keys=True),
        }

    def body(self, name: str) -> Json:
        """Return its object."""
        metadata: Json = {"name": name, "labels": self.labels(), "annotations": self.annotations()}
        if (owners := _owners(self.owner)) is not None:
            metadata["ownerReferences"] = owners
        gang = {"kind": self.gang.kind, "name": self.gang.name}
        return {
            "apiVersion": names.API_VERSION,
            "kind": names.KIND,
            "metadata": metadata,
            "spec": {"gang": gang, **self.spec},
        }


def name_for(gang: GangKey, attempt: int) -> str:
    """Return a new name for a round's object: readable, in order, and never used before."""
    readable = _NOT_IN_A_NAME.sub("-", gang.name.lower()).strip("-")[:_LONGEST_PREFIX].strip("-")
    return f"{readable}-{attempt}-{secrets.token_hex(2)}"


def parse(obj: Mapping[str, Any]) -> Restart:
    """Return the value of a Restart object. Raises errors that ``common.kube.informer`` treats as an invalid object."""
    metadata, reported = obj["metadata"], obj.get("status") or {}
    namespace = metadata["namespace"]
    annotations = metadata.get("annotations") or {}
    spec = _spec(obj.get("spec") or {}, namespace)
    has_round = names.ROUND in annotations
    return Restart(
        namespace=namespace,
        name=metadata["name"],
        uid=metadata["uid"],
        version=str(metadata.get("resourceVersion", "")),
        generation=int(metadata.get("generation", 1)),
        created_at=timestamps.unix(metadata["creationTimestamp"]),
        spec=spec,
        gang=_gang((metadata.get("labels") or {}) if has_round else {}, spec, namespace),
        attempt=round_annotations.attempt(annotations[names.ATTEMPT]) if has_round else 0,
        epoch=round_annotations.epoch(annotations[names.EPOCH]) if has_round else 0,
        status=_status(reported, round_annotations.status(annotations[names.ROUND]) if has_round else {}),
        deleting="deletionTimestamp" in metadata,
        owner_uid=_owner_uid(metadata),
        gang_uid=annotations.get(names.GANG_UID, "") if has_round else "",
    )


MOST_OF_A_RESTART: Final = 2**20
"""Bytes in memory. Those of a round of thousands of members take some hundred KiB, usual ones some KiB."""
MOST_OF_A_NAMESPACE: Final = 64 * 2**20
MOST_OF_ALL: Final = 64 * 2**20
"""Bytes of the Restarts of all namespaces."""
_KEPT_IN_ANY_CASE: Final = ("phase", "startTime", "completionTime")
_LONGEST_KEPT: Final = 64


def bare(restart: Restart) -> Restart:
    """Return the reduced form of a Restart that is too large: its round is failed, not resumed, by a new leader."""
    texts = {name: str(restart.status.get(name) or "") for name in _KEPT_IN_ANY_CASE}
    short = {name: text for name, text in texts.items() if 0 < len(text) <= _LONGEST_KEPT}
    return replace(restart, status=MappingProxyType(short), gang_uid=restart.gang_uid[:_LONGEST_KEPT])


def completed(status: Mapping[str, Any], *, generation: int, now: float) -> Json:
    """Return a status to write: with the observed generation, and a condition for ``kubectl wait``."""
    written: Json = {**status, "observedGeneration": generation}
    phase = status.get("phase")
    if phase in FINAL:
        condition = {
            "type": COMPLETE,
            "status": "True",
            "observedGeneration": generation,
            "lastTransitionTime": status.get("completionTime") or timestamps.rfc3339(now),
            "reason": phase,
            "message": str((status.get("decision") or {}).get("detail") or "")[:_LONGEST_MESSAGE],
        }
        others = [each for each in status.get("conditions") or () if each["type"] != COMPLETE]
        written["conditions"] = [*others, condition]
    return written


def _status(reported: Mapping[str, Any], first: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the status of an object. An unfinished one keeps the first status, which a new leader needs.

    Raises ValueError for invalid times: the server accepts some, such as 99 hours off UTC.
    """
    for time in (
        reported.get("startTime"),
        reported.get("completionTime"),
        (reported.get("trigger") or {}).get("time"),
    ):
        if time is not None:
            timestamps.unix(time)
    return MappingProxyType(dict(reported) if reported.get("phase") in FINAL else {**first, **reported})


def _spec(spec: Mapping[str, Any], namespace: str) -> RestartSpec:
    """Read a spec. The server has validated it against the schema, so that is not done again."""
    limit = spec.get("maxUnavailable")
    percent = _PERCENT.fullmatch(limit) if isinstance(limit, str) else None
    gang, target = spec.get("gang"), spec.get("targetRef")
    return RestartSpec(
        gang=GangKey(namespace, gang["kind"], gang["name"]) if gang else None,
        target=Target(target["apiVersion"], target["kind"], target["name"]) if target else None,
        containers=tuple(spec.get("containers") or ()),
        strategy=spec.get("strategy") or "",
        grace_seconds=spec.get("gracePeriodSeconds"),
        max_unavailable=limit if isinstance(limit, int) else None,
        max_unavailable_percent=int(percent["number"]) if percent else None,
        reason=spec.get("reason") or "",
        timeout_seconds=spec.get("timeoutSeconds"),
        ttl_seconds=spec.get("ttlSecondsAfterFinished"),
    )


def _gang(labels: Mapping[str, str], spec: RestartSpec, namespace: str) -> GangKey | None:
    """Return the gang that an object is about (a pod, if it requests one); None if it names none.

    ``labels`` are those of a round. Those of a request may be anything, so its spec decides.
    """
    if labels.get(names.GANG_KIND) and labels.get(names.GANG_NAME):
        return GangKey(namespace, labels[names.GANG_KIND], labels[names.GANG_NAME])
    if spec.target is not None and spec.target.kind in ("Job", "JobSet", gangs.POD):
        return GangKey(namespace, spec.target.kind, spec.target.name)
    return spec.gang


def _owner_uid(metadata: Mapping[str, Any]) -> str:
    owners = metadata.get("ownerReferences") or ()
    return next((str(each["uid"]) for each in owners if each["kind"] == "JobSet"), "")


def _owners(owner: Owner | None) -> list[Json] | None:
    """Return the owner references that delete the object with its gang; None for an owner of an unknown version."""
    if owner is None or owner.api_group not in _VERSIONS:
        return None
    api_version = f"{owner.api_group}/{_VERSIONS[owner.api_group]}"
    return [{"apiVersion": api_version, "kind": owner.kind, "name": owner.name, "uid": owner.uid}]
