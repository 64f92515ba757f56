"""A pod of several containers for the tests of whole-pod restarts, and its containers at every stage."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from kubemend.agent.model.workloads import ContainerId, ContainerRef, ContainerRole, ContainerState, ContainerSummary
from kubemend.agent.restart import intents
from kubemend.agent.restart.intents import Planned, Strategy
from tests.unit.restart import builders

INIT, SIDECAR, MAIN = ContainerRole.INIT, ContainerRole.SIDECAR, ContainerRole.MAIN
RUNNING, CREATED, EXITED = ContainerState.RUNNING, ContainerState.CREATED, ContainerState.EXITED
OURS = "r1"


def view(name: str, container: str, **changes: Any) -> ContainerSummary:
    """A container of the pod."""
    return replace(builders.view(container, **changes), ref=ContainerRef(builders.POD, name))


def old(name: str, state: ContainerState = RUNNING) -> ContainerSummary:
    """Return the old containers."""
    return view(name, f"old-{name}", state=state)


def new(name: str, state: ContainerState, *, ours: bool = True, attempt: int = 1) -> ContainerSummary:
    """A successor, kubemend's or kubelet's."""
    who = "ours" if ours else "kubelets"
    return view(name, f"{who}-{name}", state=state, attempt=attempt, restart_id=OURS if ours else None)


def planned(name: str, role: ContainerRole, **changes: Any) -> Planned:
    """One container of the plan; its old one is attempt 0."""
    return Planned(name=name, role=role, old=(ContainerId(f"old-{name}"),), old_attempt=0, **changes)


PLAN = (planned("prepare", INIT), planned("shipper", SIDECAR), planned("trainer", MAIN), planned("logger", MAIN))


def intent(**changes: Any) -> intents.PodIntent:
    """A rerun of that pod."""
    defaults: dict[str, Any] = {
        "id": OURS,
        "target": builders.TARGET,
        "sandbox_id": builders.SANDBOX,
        "strategy": Strategy.RERUN,
        "plan": PLAN,
        "reason": "Xid31",
        "created_at": 0.0,  # the model's clock begins there
    }
    return intents.PodIntent(**defaults | changes)


RESERVED = ".reserved-"


def reserved(name: str, *, attempt: int, restart_id: str = OURS) -> ContainerSummary:
    """A reservation of an attempt of a name."""
    label, identity = f"{name}{RESERVED}{attempt}", f"{restart_id}-holds-{name}-{attempt}"
    return view(label, identity, attempt=attempt, state=CREATED, restart_id=restart_id)


def name_of(label: str) -> str:
    """Return the runtime's name for the container that kubelet knows by this label."""
    return label.partition(RESERVED)[0]


def all_reserved() -> list[ContainerSummary]:
    """Everything that a rerun of that pod reserves."""
    turns = [reserved(item.name, attempt=1) for item in PLAN[1:]]
    return turns + [reserved(item.name, attempt=2) for item in PLAN]


def as_it_was(plan: Sequence[Planned]) -> list[ContainerSummary]:
    """The pod before its restart."""
    return [old(item.name, EXITED if item.role is INIT else RUNNING) for item in plan]
