"""Which node a pod goes to. Pure: what the scheduler would refuse is refused, and what is left is spread."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Json = Mapping[str, Any]

_GANG = "jobset.sigs.k8s.io/jobset-name"
_HARD = ("NoSchedule", "NoExecute")


def is_waiting(pod: Json) -> bool:
    """Whether a pod is to be scheduled."""
    spec, metadata = pod["spec"], pod["metadata"]
    over = (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")
    return not (spec.get("nodeName") or spec.get("schedulingGates") or "deletionTimestamp" in metadata or over)


def choose(pod: Json, *, nodes: Iterable[Json], placed: Sequence[Json]) -> str | None:
    """Return a node's name, or None where none fits. ``placed`` are the pods that are on nodes.

    Of those that fit it is the one with the fewest pods of the same JobSet, then the fewest pods, then by name.
    """
    fitting = []
    for node in nodes:
        name = node["metadata"]["name"]
        mine = [each for each in placed if each["spec"].get("nodeName") == name and not _is_over(each)]
        if _fits(pod, node, mine):
            gang = [each for each in mine if _gang(each) == _gang(pod)]
            fitting.append((len(gang), len(mine), name))
    return min(fitting)[2] if fitting else None


def _fits(pod: Json, node: Json, held: Sequence[Json]) -> bool:
    spec, labels = node.get("spec") or {}, node["metadata"].get("labels") or {}
    if spec.get("unschedulable") or not _is_ready(node):
        return False
    if any(labels.get(key) != value for key, value in (pod["spec"].get("nodeSelector") or {}).items()):
        return False
    tolerations = pod["spec"].get("tolerations") or ()
    taints = [each for each in spec.get("taints") or () if each["effect"] in _HARD]
    if not all(any(_tolerates(one, taint) for one in tolerations) for taint in taints):
        return False
    room = (node.get("status") or {}).get("allocatable") or {}
    wanted = devices(pod)
    return len(held) < int(room.get("pods", 110)) and all(
        count + sum(devices(each).get(name, 0) for each in held) <= int(room.get(name, 0))
        for name, count in wanted.items()
    )


def devices(pod: Json) -> Mapping[str, int]:
    """Return how many devices of each kind (``nvidia.com/gpu``) a pod asks for."""
    found: dict[str, int] = {}
    for container in pod["spec"].get("containers") or ():
        for name, count in ((container.get("resources") or {}).get("limits") or {}).items():
            if "/" in name:
                found[name] = found.get(name, 0) + int(count)
    return found


def _tolerates(toleration: Json, taint: Json) -> bool:
    if toleration.get("effect") not in (None, "", taint["effect"]):
        return False
    if toleration.get("operator") == "Exists":
        return toleration.get("key") in (None, "", taint["key"])
    return (toleration.get("key"), toleration.get("value") or "") == (taint["key"], taint.get("value") or "")


def _is_ready(node: Json) -> bool:
    conditions = (node.get("status") or {}).get("conditions") or ()
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def _is_over(pod: Json) -> bool:
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")


def _gang(pod: Json) -> tuple[str, str]:
    metadata = pod["metadata"]
    return metadata["namespace"], (metadata.get("labels") or {}).get(_GANG, "")
