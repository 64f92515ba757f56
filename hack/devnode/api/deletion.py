"""Deletion as the API server does it: preconditions, grace, finalizers. Pure; who lifts a finalizer is another matter.

Sources: ``rest.BeforeDelete`` and ``registry.Store.Delete`` of Kubernetes 1.36. No garbage collector runs here (nor
beside a real API server alone): dependents stay, and what is deleted in the foreground waits for its finalizer to be
lifted.
"""

from collections.abc import Mapping
from typing import Any, Final

from common.kube import timestamps
from hack.devnode.api import errors
from hack.devnode.api.registry import Resource

Object = dict[str, Any]

FOREGROUND: Final = "foregroundDeletion"
_FINALIZERS: Final[Mapping[str, str]] = {"Foreground": FOREGROUND, "Orphan": "orphan"}
"""What a propagation policy leaves on the object for the garbage collector."""
_ORPHANING: Final = frozenset({"jobs"})
"""Resources whose deletion orphans the dependents where nobody says otherwise (registry/batch/job/strategy.go)."""
_FINISHED: Final = ("Succeeded", "Failed")


def check(resource: Resource, obj: Object, options: Object) -> None:
    """Raise ApiError 409 when a precondition does not hold, 422 for an unknown policy, 501 for namespaces."""
    policy = _policy(options)
    if policy not in ("", "Background", *_FINALIZERS):
        why = f'propagationPolicy: Invalid value: "{policy}": must be one of Foreground, Background, Orphan or nil'
        raise errors.invalid("DeleteOptions.meta.k8s.io", "", why)
    if resource.plural == "namespaces":
        raise errors.cannot("deletion of namespaces", "no namespace controller runs here")
    for field, wanted in (options.get("preconditions") or {}).items():
        found = obj["metadata"].get(field)
        if wanted is not None and wanted != found:
            why = f"Precondition failed: {field} in precondition: {wanted}, {field} in object meta: {found}"
            raise errors.conflict(resource.qualified, obj["metadata"]["name"], why)


def grace_of(resource: Resource, obj: Object, options: Object) -> int:
    """Return the seconds of grace that a deletion gives (``podStrategy.CheckGracefulDelete``); 0 removes at once."""
    if resource.plural != "pods":
        return 0
    spec, asked = obj.get("spec") or {}, options.get("gracePeriodSeconds")
    if not spec.get("nodeName") or (obj.get("status") or {}).get("phase") in _FINISHED:
        return 0
    period = int(spec.get("terminationGracePeriodSeconds", 0) if asked is None else asked)
    return 1 if period < 0 else period


def announced(resource: Resource, obj: Object, options: Object, *, now: float) -> Object:
    """Return the object with its deletion announced; a later one can shorten the grace, and change the policy."""
    metadata, grace = dict(obj["metadata"]), grace_of(resource, obj, options)
    if finalizers := _finalizers(resource, metadata.pop("finalizers", []), _policy(options)):
        metadata["finalizers"] = finalizers
    is_first = "deletionTimestamp" not in metadata
    if is_first and "generation" in metadata:
        metadata["generation"] += 1  # what is deleted behaves otherwise, so it counts as a change of what is wanted
    if is_first or int(metadata.get("deletionGracePeriodSeconds", 0)) > grace:
        metadata |= {"deletionTimestamp": timestamps.rfc3339(now + grace), "deletionGracePeriodSeconds": grace}
    return obj if metadata == obj["metadata"] else {**obj, "metadata": metadata}


def is_over(obj: Object) -> bool:
    """Whether an object whose deletion was announced with no grace left has nothing more to wait for."""
    metadata = obj["metadata"]
    return (
        "deletionTimestamp" in metadata
        and not metadata.get("finalizers")
        and metadata.get("deletionGracePeriodSeconds", 0) == 0
    )


def _policy(options: Object) -> str:
    return str(options.get("propagationPolicy") or ("Orphan" if options.get("orphanDependents") else ""))


def _finalizers(resource: Resource, known: list[str], policy: str) -> list[str]:
    """Return the finalizers with that of the policy; without one, that of an earlier deletion stays."""
    if not policy and not {*known} & {*_FINALIZERS.values()} and resource.plural in _ORPHANING:
        policy = "Orphan"
    if not policy:
        return known
    others = [each for each in known if each not in _FINALIZERS.values()]
    return [*others, _FINALIZERS[policy]] if policy in _FINALIZERS else others
