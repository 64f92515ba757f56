"""Build the PersistentVolumeClaims of ``volumeClaimPolicies``, and compare existing claims with them. Pure.

Source: ``pkg/controllers/volume_claim_policy.go``. Like upstream (``createPVCsIfNecessary``), kubemend uses any claim
with the name, but it reports the difference.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from kubemend.controller.jobset import conditions
from kubemend.controller.jobset.children import naming
from kubemend.controller.jobset.plan import ClaimSpec, EventType, ObservedState
from kubemend.controller.jobset.spec import quantities
from kubemend.controller.jobset.spec.model import JobSet, Json, Retention
from kubemend.controller.jobset.status_builder import StatusBuilder


def claims(jobset: JobSet) -> tuple[dict[str, Any], ...]:
    """Return the claims' bodies, in the policies' order.

    Those that are deleted with the JobSet have it as their owner.
    """
    return tuple(
        _claim(jobset, template, owned=policy.when_deleted is Retention.DELETE)
        for policy in jobset.spec.claim_policies
        for template in policy.templates
    )


def volumes(jobset: JobSet, pod_spec: Json) -> list[dict[str, Any]]:
    """Return volumes for the claims that a container or init container of this pod spec mounts, in their order."""
    mounted = set(_mounted(pod_spec))
    names = [each["metadata"]["name"] for policy in jobset.spec.claim_policies for each in policy.templates]
    return [
        {"name": name, "persistentVolumeClaim": {"claimName": naming.claim_name(jobset.name, name)}}
        for name in names
        if name in mounted
    ]


def _claim(jobset: JobSet, template: Json, *, owned: bool) -> dict[str, Any]:
    meta = template["metadata"]
    written: dict[str, Any] = {
        "name": naming.claim_name(jobset.name, meta["name"]),
        "namespace": jobset.namespace,
        "labels": {**(meta.get("labels") or {}), naming.JOBSET_NAME: jobset.name},
    }
    if annotations := meta.get("annotations"):
        written["annotations"] = dict(annotations)
    if owned:
        written["ownerReferences"] = [naming.controller_reference(jobset)]
    spec = template.get("spec") or {}  # the API server reports missing fields
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": written, "spec": spec}


def _mounted(pod_spec: Json) -> Iterator[str]:
    for kind in ("containers", "initContainers"):
        for container in pod_spec.get(kind) or ():
            for mount in container.get("volumeMounts") or ():
                yield str(mount.get("name"))


OTHER_SPEC: Final = "ClaimHasAnotherSpec"
_MATCH: Final = "VolumeClaimsMatch"
_MATCH_MESSAGE: Final = "all claims match the JobSet's templates"
_LONGEST_NAME: Final = 253
_MOST_REPORTED: Final = 5


def read(spec: object) -> ClaimSpec:
    """Return the compared fields of a PersistentVolumeClaim's spec."""
    given = _dict(spec)
    modes = given.get("accessModes")
    requests = _dict(_dict(given.get("resources")).get("requests"))
    source = _dict(given.get("dataSourceRef") or given.get("dataSource"))
    return ClaimSpec(
        access=frozenset(str(each)[:_LONGEST_NAME] for each in (modes[:16] if isinstance(modes, list) else ())),
        storage_class=_text(given.get("storageClassName")),
        mode=_text(given.get("volumeMode")) or "Filesystem",
        volume=_text(given.get("volumeName")) or None,
        storage=quantities.parse(requests.get("storage")) if "storage" in requests else None,
        selector=_digest(given.get("selector")),
        source=_digest([source.get("kind"), source.get("name")]) if source else None,
    )


def differences(wanted: ClaimSpec, there: ClaimSpec) -> tuple[str, ...]:
    """Return the fields in which an existing claim differs from the requested one.

    A field that is not requested may have any value, because the API server and the binding fill it in. The storage may
    have grown.
    """
    differing = {
        "accessModes": wanted.access != there.access,
        "storageClassName": wanted.storage_class is not None and wanted.storage_class != there.storage_class,
        "volumeMode": wanted.mode != there.mode,
        "volumeName": wanted.volume is not None and wanted.volume != there.volume,
        "resources.requests.storage": (
            wanted.storage is not None and there.storage is not None and there.storage < wanted.storage
        ),
        "selector": wanted.selector is not None and wanted.selector != there.selector,
        "dataSource": wanted.source is not None and wanted.source != there.source,
    }
    return tuple(field for field, differs in differing.items() if differs)


def names(jobset: JobSet) -> dict[str, Any]:
    """Return the requested claims of a JobSet: specs by name."""
    templates = (each for policy in jobset.spec.claim_policies for each in policy.templates)
    return {
        naming.claim_name(jobset.name, str((each.get("metadata") or {}).get("name"))): each.get("spec")
        for each in templates
    }


def set_condition(observed: ObservedState, *, draft: StatusBuilder) -> None:
    """Set the condition about claims that differ from the request. One that always matched gets no condition."""
    differing = tuple(_differing(observed.jobset, observed.claim_specs))
    if differing:
        more = f" (and {len(differing) - _MOST_REPORTED} more)" if len(differing) > _MOST_REPORTED else ""
        message = (
            f"the existing claims are used: {'; '.join(differing[:_MOST_REPORTED])}{more}. Delete them while no pod "
            "uses them, or change the templates to match them"
        )
        draft.set_condition(conditions.CLAIMS, is_so=False, reason=OTHER_SPEC, message=message, event=EventType.WARNING)
    elif draft.status.condition(conditions.CLAIMS) is not None:
        draft.set_condition(conditions.CLAIMS, is_so=True, reason=_MATCH, message=_MATCH_MESSAGE)


def _differing(jobset: JobSet, there: Mapping[str, ClaimSpec]) -> list[str]:
    differing = []
    for name, wanted in names(jobset).items():
        found = there.get(name)
        if found is not None and (fields := differences(read(wanted), found)):
            differing.append(f"claim {name} differs in {', '.join(fields)}")
    return differing


def _dict(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _text(value: object) -> str | None:
    return value[:_LONGEST_NAME] if isinstance(value, str) else None


def _digest(value: object) -> str | None:
    if value is None:
        return None
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]
