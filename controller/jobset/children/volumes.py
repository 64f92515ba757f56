"""Build the PersistentVolumeClaims of ``volumeClaimPolicies``, and the volumes that mount them. Pure.

Source: ``pkg/controllers/volume_claim_policy.go``.
"""

from collections.abc import Iterator
from typing import Any

from kubemend.controller.jobset.children import naming
from kubemend.controller.jobset.spec.model import JobSet, Json, Retention


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
