"""Build pods and Restart objects as the API server has them."""

from collections.abc import Mapping
from typing import Any

NAMESPACE = "team"
CREATED = "2026-01-31T08:00:00Z"
DONE: Mapping[str, Any] = {
    "phase": "Done",
    "attempt": 3,
    "trigger": {
        "kind": "Device",
        "member": "train-2",
        "node": "node-b",
        "code": "Xid79",
        "message": "GPU 3 has fallen off the bus",
        "time": "2026-01-31T08:00:00Z",
    },
    "decision": {"kind": "InPlace", "reason": "MemberFailed", "detail": "all members stay where they are"},
    "members": {"total": 3, "inPlace": 3, "recreated": 0, "stopped": 3, "running": 3, "failed": 0},
    "timings": {
        "stopMilliseconds": 200,
        "recreateMilliseconds": 0,
        "releaseMilliseconds": 100,
        "totalMilliseconds": 340,
    },
    "startTime": "2026-01-31T08:00:00Z",
    "completionTime": "2026-01-31T08:00:01Z",
    "slowest": [
        {
            "member": "train-0",
            "node": "node-a",
            "stoppedMilliseconds": 200,
            "runningMilliseconds": 300,
            "phases": {"create": 40, "start": 30, "stop": 110},
        },
        {
            "member": "train-2",
            "node": "node-b",
            "stoppedMilliseconds": 100,
            "runningMilliseconds": 250,
            "phases": {"create": 40, "start": 30, "stop": 30},
        },
        {"member": "train-1", "node": "node-a", "stoppedMilliseconds": 150, "runningMilliseconds": 220, "phases": {}},
    ],
    "failures": [],
    "conditions": [
        {
            "type": "HeldTogether",
            "status": "True",
            "lastTransitionTime": "2026-01-31T08:00:01Z",
            "reason": "AllHeld",
            "message": "",
        }
    ],
}


def restart(
    name: str = "train-3-1f2e",
    *,
    status: Mapping[str, Any] | None = DONE,
    attempt: int = 3,
    gang: str = "train",
    spec: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """A Restart of the JobSet ``train``; ``attempt`` 0 is a request of which no round has been made."""
    labels = {"kubemend.io/gang-kind": "JobSet", "kubemend.io/gang-name": gang}
    annotations = {"kubemend.io/attempt": str(attempt), "kubemend.io/epoch": "1", "kubemend.io/round": "{}"}
    return {
        "apiVersion": "restarts.kubemend.io/v1alpha1",
        "kind": "Restart",
        "metadata": {
            "name": name,
            "namespace": NAMESPACE,
            "uid": f"uid-{name}",
            "creationTimestamp": CREATED,
            "labels": labels if attempt else {},
            "annotations": annotations if attempt else {},
        },
        "spec": dict(spec or {"gang": {"kind": "JobSet", "name": gang}}),
        **({"status": dict(status)} if status is not None else {}),
    }


def pod(
    name: str,
    *,
    gang: str = "train",
    node: str = "node-a",
    phase: str = "Running",
    ready: bool = True,
    conditions: Mapping[str, tuple[str, str, str]] | None = None,
    annotations: Mapping[str, str] | None = None,
    opted_in: bool = True,
) -> dict[str, Any]:
    """A member of a JobSet; ``conditions`` are kubemend's, by type: status, reason, message."""
    ours = [
        {"type": f"kubemend.io/{kind}", "status": status, "reason": reason, "message": message}
        for kind, (status, reason, message) in (conditions or {}).items()
    ]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": NAMESPACE,
            "uid": f"uid-{name}",
            "creationTimestamp": CREATED,
            "labels": {"jobset.sigs.k8s.io/jobset-name": gang},
            "annotations": {**({"kubemend.io/restart": "InPlace"} if opted_in else {}), **(annotations or {})},
        },
        "spec": {"nodeName": node, "containers": [{"name": "trainer", "image": "trainer"}]},
        "status": {
            "phase": phase,
            "conditions": [{"type": "Ready", "status": "True" if ready else "False"}, *ours],
            "containerStatuses": [{"name": "trainer", "restartCount": 3}],
        },
    }


HEALTHY = {"DevicesHealthy": ("True", "Healthy", "8 devices healthy")}
FAULTY = {"DevicesHealthy": ("False", "Xid79", "GPU-5ac9: Xid 79; action RebootNode")}
UNKNOWN_DEVICES = {"DevicesHealthy": ("Unknown", "Hangs", "GPU-5ac9: NVML does not answer")}
