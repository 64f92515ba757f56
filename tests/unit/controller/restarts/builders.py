"""Restart objects for tests."""

from typing import Any

from kubemend.common.gangs import GangKey
from kubemend.common.kube import timestamps
from kubemend.controller.restarts import names, objects
from kubemend.controller.restarts.objects import NewRound, Restart

GANG = GangKey("team", "Job", "train")
NOW = 1_700_000_000.0
STATUS = {
    "phase": "Stopping",
    "trigger": {"kind": "Device", "code": "Xid31"},
    "decision": {"kind": "InPlace", "detail": "all stay"},
    "members": {"total": 4},
}


def new_round(**changes: Any) -> NewRound:
    """Return a round that begins."""
    return NewRound(**{"gang": GANG, "attempt": 1, "epoch": 5, "status": STATUS, **changes})


def obj(name: str = "a", *, spec: dict[str, Any] | None = None, **metadata: Any) -> dict[str, Any]:
    """Return a Restart as the API server has it; by default a request for the gang."""
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "metadata": {
            "namespace": "team",
            "name": name,
            "uid": f"uid-of-{name}",
            "resourceVersion": "7",
            "generation": 1,
            "creationTimestamp": timestamps.rfc3339(NOW),
            **metadata,
        },
        "spec": spec if spec is not None else {"gang": {"kind": "Job", "name": "train"}},
    }


def of_round(new: NewRound, *, name: str = "a", status: dict[str, Any] | None = None) -> Restart:
    """Return a round's object, read back."""
    body = new.body(name)
    found = obj(name, **{key: value for key, value in body["metadata"].items() if key != "name"}, spec=body["spec"])
    return objects.parse({**found, **({"status": status} if status is not None else {})})
