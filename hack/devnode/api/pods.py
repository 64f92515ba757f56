"""Which changes of a pod's spec the API server takes: those that let a gated pod be scheduled, and a binding. Pure.

Sources: ``ValidatePodUpdate`` in pkg/apis/core/validation and ``setPodNodeAndMetadata`` in
pkg/registry/core/pod/storage of Kubernetes 1.36. Whether others are allowed is not guessed.
"""

from typing import Any

from common.kube import timestamps
from hack.devnode.api import errors

Object = dict[str, Any]


def check_change(old: Object, new: Object) -> None:
    """Raise ApiError 422 for a change of gates or node selector that is refused, 501 for a change of anything else."""
    before, after = dict(old["spec"]), dict(new["spec"])
    gates, left = (spec.pop("schedulingGates", None) or [] for spec in (before, after))
    selector, wanted = (spec.pop("nodeSelector", None) or {} for spec in (before, after))
    if before != after:
        raise errors.cannot("other changes to a pod's spec", "which of its fields may change is validation")
    if any(gate not in gates for gate in left):
        _refuse(new, "schedulingGates: Forbidden: only deletion is allowed, but found new scheduling gate")
    if selector != wanted and not gates:
        _refuse(new, "nodeSelector: Forbidden: pod updates may not change fields other than")
    if any(wanted.get(key) != value for key, value in selector.items()):
        _refuse(new, "nodeSelector: Invalid value: only additions are allowed")


def bound(pod: Object, binding: Object, *, now: float) -> Object:
    """Return the pod as it is on its node. Raises ApiError 409 for one that is gated, deleted or on a node already."""
    name, spec, metadata = pod["metadata"]["name"], pod["spec"], pod["metadata"]
    given = (binding.get("metadata") or {}).get("uid")
    if given and given != metadata["uid"]:
        why = f"Precondition failed: UID in precondition: {given}, UID in object meta: {metadata['uid']}"
        raise errors.conflict("pods", name, why)
    if "deletionTimestamp" in metadata:
        raise errors.conflict("pods/binding", name, f"pod {name} is being deleted, cannot be assigned to a host")
    if spec.get("nodeName"):
        raise errors.conflict("pods/binding", name, f'pod {name} is already assigned to node "{spec["nodeName"]}"')
    if spec.get("schedulingGates"):
        raise errors.conflict("pods/binding", name, f"pod {name} has non-empty .spec.schedulingGates")
    scheduled = {
        "type": "PodScheduled",
        "status": "True",
        "lastProbeTime": None,
        "lastTransitionTime": timestamps.rfc3339(now),
    }
    status = pod.get("status") or {}
    others = [each for each in status.get("conditions") or () if each["type"] != "PodScheduled"]
    return {
        **pod,
        "spec": {**spec, "nodeName": binding["target"]["name"]},
        "status": {**status, "conditions": [*others, scheduled]},
    }


def _refuse(pod: Object, why: str) -> None:
    raise errors.invalid("Pod", pod["metadata"]["name"], f"spec.{why}")
