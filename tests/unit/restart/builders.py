"""Values for restart tests, with defaults that a test overrides where it matters."""

from typing import Any

from kubemend.agent.model.workloads import (
    ContainerId,
    ContainerRef,
    ContainerRole,
    ContainerSpec,
    ContainerState,
    ContainerSummary,
    PodRef,
    PodUid,
    PodView,
    RestartPolicy,
    SandboxId,
)
from kubemend.agent.restart import intents

POD = PodRef(namespace="default", name="trainer-0", uid=PodUid("uid-1"))
TARGET = ContainerRef(pod=POD, name="trainer")
SANDBOX = SandboxId("sandbox-1")


def view(
    name: str, *, attempt: int = 0, state: ContainerState = ContainerState.RUNNING, **changes: Any
) -> ContainerSummary:
    """A container of the target's name."""
    defaults: dict[str, Any] = {"created_at": attempt + 1, "restart_id": None}
    return ContainerSummary(
        id=ContainerId(name), ref=TARGET, sandbox_id=SANDBOX, attempt=attempt, state=state, **defaults | changes
    )


def intent(**changes: Any) -> intents.Intent:
    """A swap of container ``old`` (attempt 0)."""
    defaults: dict[str, Any] = {
        "id": "r1",
        "target": TARGET,
        "sandbox_id": SANDBOX,
        "old": ContainerId("old"),
        "old_attempt": 0,
        "order": intents.SwapOrder.STOP_FIRST,
        "reason": "Xid31",
        "created_at": 1000.0,
    }
    return intents.Intent(**defaults | changes)


def pod(**changes: Any) -> PodView:
    """A running, opted-in pod with one main container."""
    defaults: dict[str, Any] = {
        "ref": POD,
        "phase": "Running",
        "restart_policy": RestartPolicy.ON_FAILURE,
        "containers": (ContainerSpec(name="trainer", role=ContainerRole.MAIN, running=True),),
        "annotations": {"kubemend.io/restart": "InPlace"},
    }
    return PodView(**defaults | changes)
