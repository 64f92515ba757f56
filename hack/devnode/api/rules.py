"""What the API server does to an object on its way into the store. Pure: now and the uid are given.

Sources: ``rest.BeforeCreate/BeforeUpdate`` and the strategies in ``pkg/registry`` of Kubernetes 1.36. Defaulting is
done for the pod fields that our programs read; of validation only the schemas of custom resources, and no admission.
"""

import datetime as dt
import secrets
from typing import Any, Final

from hack.devnode.api import errors, schemas
from hack.devnode.api.registry import CRDS, Resource

Object = dict[str, Any]

_CONDITIONAL_ONLY: Final = frozenset({"leases", "customresourcedefinitions"})
_NO_GENERATION: Final = frozenset(
    {"nodes", "namespaces", "events", "leases", "configmaps", "secrets", "serviceaccounts"}
)
_FINISHED: Final = ("Succeeded", "Failed")
_ALPHABET: Final = "bcdfghjklmnpqrstvwxz2456789"


def timestamp(now: float) -> str:
    """Return a time as metav1.Time writes it: UTC, whole seconds."""
    return dt.datetime.fromtimestamp(int(now), tz=dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


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
        "creationTimestamp": timestamp(now),
    }
    if resource.namespaced:
        metadata["namespace"] = namespace
    if has_generation(resource):
        metadata["generation"] = 1
    created = {**obj, "apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata}
    if resource.has_status and resource.plural != "nodes":
        created.pop("status", None)
    if resource.plural == "pods":
        created["spec"] = _pod_defaults(created.get("spec") or {})
        created["status"] = {"phase": "Pending"}
    if resource.plural == "namespaces":
        created |= {"spec": {"finalizers": ["kubernetes"]}, "status": {"phase": "Active"}}
    if (resource.group, resource.plural) == CRDS:
        created["status"] = _established(obj, now)
    return _checked(resource, created)


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
            if resource.plural == "pods":
                raise errors.cannot("changes to a pod's spec", "which of its fields may change is validation")
            if has_generation(resource):
                metadata["generation"] = int(kept.get("generation", 1)) + 1
    result = _checked(resource, result)
    return old if result == old else result


def grace_of(resource: Resource, obj: Object, options: Object) -> int:
    """Return the seconds of grace that a deletion gives (``podStrategy.CheckGracefulDelete``); 0 removes at once."""
    if resource.plural != "pods":
        return 0
    spec, asked = obj.get("spec") or {}, options.get("gracePeriodSeconds")
    if not spec.get("nodeName") or (obj.get("status") or {}).get("phase") in _FINISHED:
        return 0
    period = int(spec.get("terminationGracePeriodSeconds", 0) if asked is None else asked)
    return 1 if period < 0 else period


def check_delete(resource: Resource, obj: Object, options: Object) -> None:
    """Raise ApiError 409 when a precondition does not hold, 501 for what needs the garbage collector."""
    policy = options.get("propagationPolicy") or ("Orphan" if options.get("orphanDependents") else "Background")
    if policy != "Background":
        raise errors.cannot(f"propagation policy {policy}", "no garbage collector runs here")
    if resource.plural == "namespaces":
        raise errors.cannot("deletion of namespaces", "no namespace controller runs here")
    for field, wanted in (options.get("preconditions") or {}).items():
        found = obj["metadata"].get(field)
        if wanted is not None and wanted != found:
            why = f"Precondition failed: {field} in precondition: {wanted}, {field} in object meta: {found}"
            raise errors.conflict(resource.qualified, obj["metadata"]["name"], why)


def for_deletion(obj: Object, *, grace: int, now: float) -> Object:
    """Return the object with its deletion announced; a later deletion can only shorten the grace."""
    metadata = obj["metadata"]
    if "deletionTimestamp" in metadata and int(metadata.get("deletionGracePeriodSeconds", 0)) <= grace:
        return obj
    announced = {"deletionTimestamp": timestamp(now + grace), "deletionGracePeriodSeconds": grace}
    return {**obj, "metadata": {**metadata, **announced}}


def is_removable(obj: Object) -> bool:
    """Whether an object whose deletion was announced with no grace left has nothing more to wait for."""
    metadata = obj["metadata"]
    return (
        "deletionTimestamp" in metadata
        and not metadata.get("finalizers")
        and metadata.get("deletionGracePeriodSeconds", 0) == 0
    )


def has_generation(resource: Resource) -> bool:
    """Whether the resource counts changes of its spec in ``metadata.generation``."""
    return resource.custom or resource.plural not in _NO_GENERATION


def _checked(resource: Resource, obj: Object) -> Object:
    """Return a custom resource without what its schema does not know. Raises ApiError 422 for what is wrong in it."""
    if not resource.custom:
        return obj
    known = schemas.pruned(resource.schema, obj)
    if wrong := [*schemas.faults(resource.schema, known)]:
        why = wrong[0] if len(wrong) == 1 else f"[{', '.join(wrong)}]"
        raise errors.invalid(f"{resource.kind}.{resource.group}", obj["metadata"]["name"], why)
    return known


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


def _pod_defaults(spec: Object) -> Object:
    defaulted = {
        "restartPolicy": "Always",
        "dnsPolicy": "ClusterFirst",
        "schedulerName": "default-scheduler",
        "terminationGracePeriodSeconds": 30,
        "enableServiceLinks": True,
        "securityContext": {},
        **spec,
    }
    for kind in ("initContainers", "containers"):
        if kind in spec:
            defaulted[kind] = [_container_defaults(container) for container in spec[kind]]
    return defaulted


def _container_defaults(container: Object) -> Object:
    floating = ":" not in container.get("image", "").rpartition("/")[2] or container["image"].endswith(":latest")
    return {
        "resources": {},
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "File",
        "imagePullPolicy": "Always" if floating else "IfNotPresent",
        **container,
    }


def _established(crd: Object, now: float) -> Object:
    condition = {"status": "True", "lastTransitionTime": timestamp(now)}
    return {
        "acceptedNames": crd["spec"]["names"],
        "storedVersions": [version["name"] for version in crd["spec"]["versions"] if version.get("storage")],
        "conditions": [
            {"type": "NamesAccepted", "reason": "NoConflicts", "message": "no conflicts found", **condition},
            {"type": "Established", "reason": "InitialNamesAccepted", "message": "", **condition},
        ],
    }
