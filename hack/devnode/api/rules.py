"""What the API server does to an object on its way into the store. Pure: now and the uid are given.

Sources: ``rest.BeforeCreate/BeforeUpdate`` and the strategies in ``pkg/registry`` of Kubernetes 1.36. Of validation
only the schemas of custom resources and the changes of Jobs are done, and no admission.
"""

import secrets
from typing import Any, Final

from common.kube import timestamps
from hack.devnode.api import defaults, errors, jobs, pods, schemas
from hack.devnode.api.registry import CRDS, Resource

Object = dict[str, Any]

_CONDITIONAL_ONLY: Final = frozenset({"leases", "customresourcedefinitions"})
_NO_GENERATION: Final = frozenset({
    "nodes", "namespaces", "events", "leases", "configmaps", "secrets", "serviceaccounts", "services",
    "persistentvolumeclaims",
})  # fmt: skip
_ALPHABET: Final = "bcdfghjklmnpqrstvwxz2456789"


def for_create(resource: Resource, obj: Object, *, namespace: str, uid: str, now: float) -> Object:
    """Return the object as it enters the store. Raises ApiError for a missing name or a wrong namespace."""
    given = obj.get("metadata") or {}
    _check_kind(resource, obj)
    if given.get("resourceVersion"):
        raise errors.bad_request("resourceVersion should not be set on objects to be created")
    if given.get("namespace", namespace) != namespace and resource.namespaced:
        raise errors.bad_request("the namespace of the object does not match the namespace sent on the request")
    metadata = {
        **{key: value for key, value in given.items() if key not in ("deletionTimestamp", "selfLink")},
        "name": _name(resource, given),
        "uid": uid,
        "creationTimestamp": timestamps.rfc3339(now),
    }
    if resource.namespaced:
        metadata["namespace"] = namespace
    if has_generation(resource):
        metadata["generation"] = 1
    created = {**obj, "apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata}
    if resource.has_status and resource.plural != "nodes":
        created.pop("status", None)
    if (resource.group, resource.plural) == CRDS:
        created["status"] = _established(obj, now)
    return _checked(resource, created) if resource.custom else defaults.filled(resource.plural, created)


def for_update(resource: Resource, *, old: Object, new: Object, subresource: str) -> Object:
    """Return the object that replaces ``old``, or ``old`` itself when nothing changes.

    Raises ApiError 409 when a resource version or UID in ``new`` does not hold, and 501 for changes to a pod's spec.
    """
    _check_kind(resource, new)
    _check_preconditions(resource, old, new)
    kept, given = old["metadata"], new.get("metadata") or {}
    fixed = ("name", "namespace", "uid", "creationTimestamp", "generation", "resourceVersion", "deletionTimestamp",
             "deletionGracePeriodSeconds")  # fmt: skip
    metadata = {**given, **{key: kept[key] for key in fixed if key in kept}}
    if subresource == "status":
        metadata = kept if resource.custom else {**metadata, "ownerReferences": kept.get("ownerReferences")}
        metadata = {key: value for key, value in metadata.items() if value is not None}
        result = {**old, "metadata": metadata, "status": new.get("status") or {}}
    else:
        result = {**new, "apiVersion": old["apiVersion"], "kind": old["kind"], "metadata": metadata}
        if resource.has_status:
            result = _with_status(result, old.get("status"))
        if result.get("spec") != old.get("spec"):
            _check_change(resource, old, result)
            if has_generation(resource):
                metadata["generation"] = int(kept.get("generation", 1)) + 1
    if resource.custom:
        result = _checked(resource, result)
    return old if result == old else result


def has_generation(resource: Resource) -> bool:
    """Whether the resource counts changes of its spec in ``metadata.generation``."""
    return resource.custom or resource.plural not in _NO_GENERATION


def _checked(resource: Resource, obj: Object) -> Object:
    """Return a custom resource as its schema has it: the unknown dropped, defaults filled in. Raises ApiError 422."""
    known: Object = schemas.defaulted(resource.schema, schemas.pruned(resource.schema, obj))
    if wrong := [*schemas.faults(resource.schema, known)]:
        why = wrong[0] if len(wrong) == 1 else f"[{', '.join(wrong)}]"
        raise errors.invalid(f"{resource.kind}.{resource.group}", obj["metadata"]["name"], why)
    return known


def _check_change(resource: Resource, old: Object, new: Object) -> None:
    if resource.plural == "pods":
        pods.check_change(old, new)
    if resource.plural == "jobs":
        jobs.check_change(old, new)


def _check_kind(resource: Resource, obj: Object) -> None:
    kind = obj.get("kind", resource.kind)
    version = obj.get("apiVersion", resource.api_version)
    if (kind, version) != (resource.kind, resource.api_version):
        raise errors.bad_request(f"{kind} in version {version!r} cannot be handled as a {resource.kind}")


def _check_preconditions(resource: Resource, old: Object, new: Object) -> None:
    given, kept = new.get("metadata") or {}, old["metadata"]
    if given.get("name", kept["name"]) != kept["name"]:
        raise errors.bad_request("the name of the object does not match the name on the URL")
    uid = given.get("uid")
    if uid and uid != kept["uid"]:
        why = f"Precondition failed: UID in precondition: {uid}, UID in object meta: {kept['uid']}"
        raise errors.conflict(resource.qualified, kept["name"], why)
    version = given.get("resourceVersion")
    if version and version != kept["resourceVersion"]:
        why = "the object has been modified; please apply your changes to the latest version and try again"
        raise errors.conflict(resource.qualified, kept["name"], why)
    if not version and (resource.custom or resource.plural in _CONDITIONAL_ONLY):
        why = "metadata.resourceVersion: Invalid value: 0: must be specified for an update"
        raise errors.invalid(f"{resource.kind}.{resource.group}", kept["name"], why)


def _name(resource: Resource, metadata: Object) -> str:
    if name := metadata.get("name"):
        return str(name)
    if prefix := metadata.get("generateName"):
        return str(prefix) + "".join(secrets.choice(_ALPHABET) for _ in range(5))
    raise errors.invalid(resource.kind, "", "metadata.name: Required value: name or generateName is required")


def _with_status(obj: Object, status: Any) -> Object:
    rest = {key: value for key, value in obj.items() if key != "status"}
    return rest if status is None else {**rest, "status": status}


def _established(crd: Object, now: float) -> Object:
    condition = {"status": "True", "lastTransitionTime": timestamps.rfc3339(now)}
    return {
        "acceptedNames": crd["spec"]["names"],
        "storedVersions": [version["name"] for version in crd["spec"]["versions"] if version.get("storage")],
        "conditions": [
            {"type": "NamesAccepted", "reason": "NoConflicts", "message": "no conflicts found", **condition},
            {"type": "Established", "reason": "InitialNamesAccepted", "message": "", **condition},
        ],
    }
