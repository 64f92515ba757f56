"""Generate thousands of pods as JSON while they are sent: the server holds one at a time."""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from kubemend.agent.restart import options
from kubemend.common import gangs

NODE: Final = "bench"
NAMESPACES: Final = 5
_GANG_OF: Final = 8
_USUAL_VARIABLES: Final = 60
_VARIABLE: Final = 64  # bytes of one, about
_PADDING: Final = "x" * 40


@dataclass(frozen=True, slots=True)
class Crowd:
    """Define a number of pods with ``size`` bytes more than a normal one; ``filled`` adds them."""

    count: int
    size: int = 0
    filled: Callable[[dict[str, Any], int], None] = lambda *_: None

    def objects(self) -> Iterator[bytes]:
        """Yield them all as the API server lists them."""
        return (self.one(number) for number in range(self.count))

    def one(self, number: int, *, phase: str = "Running") -> bytes:
        """Return one of them."""
        pod = _usual(number, phase=phase)
        self.filled(pod, self.size)
        return json.dumps(pod, separators=(",", ":")).encode()


def environment(pod: dict[str, Any], size: int) -> None:
    """Fill a pod's environment with many short variables: in memory these take most."""
    variables = pod["spec"]["containers"][0]["env"]
    variables += [{"name": f"V{number}", "value": _PADDING} for number in range(size // _VARIABLE)]


def annotations_of_others(pod: dict[str, Any], size: int) -> None:
    """Fill its annotations with those of another program."""
    pod["metadata"]["annotations"]["example.com/notes"] = "x" * size


def our_annotations(pod: dict[str, Any], size: int) -> None:
    """Fill its annotations with those that kubemend reads."""
    names = options.USED - {options.RESTART}
    pod["metadata"]["annotations"] |= dict.fromkeys(names, "x" * (size // len(names)))


def _usual(number: int, *, phase: str) -> dict[str, Any]:
    """Return a pod with typical content: variables, volumes, probes, conditions, and managed fields."""
    name, gang = f"pod-{number}", f"gang-{number // _GANG_OF}"
    variables = [{"name": f"VARIABLE_{each}", "value": _PADDING} for each in range(_USUAL_VARIABLES)]
    fields: Mapping[str, Any] = {f"f:field-{each}": {"f:value": {}} for each in range(60)}
    conditions = ("Initialized", "Ready", "ContainersReady", "PodScheduled")
    return {
        "metadata": {
            "name": name,
            "namespace": f"team-{number % NAMESPACES}",
            "uid": f"00000000-0000-4000-8000-{number:012}",
            "resourceVersion": str(1000 + number),
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": {gangs.GANG: gang, "app": "trainer", "team": "research"},
            "annotations": {"kubemend.io/restart": "InPlace"},
            "ownerReferences": [
                {"apiVersion": "batch/v1", "kind": "Job", "name": gang, "uid": f"of-{gang}", "controller": True}
            ],
            "managedFields": [{"manager": "kubelet", "operation": "Update", "fieldsV1": fields}],
        },
        "spec": {
            "nodeName": NODE,
            "restartPolicy": "Always",
            "containers": [{"name": "trainer", "image": "registry.example.com/trainer:1", "env": variables}],
            "volumes": [{"name": f"volume-{each}", "configMap": {"name": "c"}} for each in range(8)],
        },
        "status": {
            "phase": phase,
            "podIP": "10.0.0.1",
            "conditions": [{"type": each, "status": "True"} for each in conditions],
            "containerStatuses": [
                {
                    "name": "trainer",
                    "containerID": f"containerd://{number:064x}",
                    "restartCount": 0,
                    "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}},
                    "started": True,
                }
            ],
        },
    }
