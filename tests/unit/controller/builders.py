"""Members, nodes and faults for tests of the controller's pure core."""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from common.gangs import GangKey
from controller.model.faults import Fault, FaultKind
from controller.model.members import Member, NodeName, NodeView, Owner, PodPhase, PodRef, PodUid

GANG = GangKey("team", "Job", "train")
OPTED_IN: Mapping[str, str] = MappingProxyType({"kubemend.io/restart": "InPlace"})
OWNER = Owner("batch", "Job", "train", "uid-job")
NOW = 1_700_000_000.0


def member(index: int, *, generation: int = 0, **changes: Any) -> Member:
    """One worker on a node of its own; ``generation`` counts the pods that its slot has had."""
    name = f"train-{index}-{generation}"
    one = Member(
        pod=PodRef("team", name, PodUid(f"uid-{index}-{generation}")),
        gang=GANG,
        slot=f"train/{index}",
        node=NodeName(f"node-{index}"),
        phase=PodPhase.RUNNING,
        restart_policy="OnFailure",
        owner=OWNER,
        annotations=OPTED_IN,
        created_at=NOW - 100.0 if generation == 0 else NOW + generation,
    )
    return replace(one, **changes)


def gang(size: int) -> tuple[Member, ...]:
    """A gang of so many workers."""
    return tuple(member(index) for index in range(size))


def nodes(size: int) -> dict[NodeName, NodeView]:
    """Their nodes, all ready."""
    return {name: NodeView(name, ready=True) for name in (NodeName(f"node-{index}") for index in range(size))}


def fault(index: int = 0, **changes: Any) -> Fault:
    """A worker's exit with 1, a moment ago."""
    one = Fault(
        id="fault-1",
        pod=member(index).pod,
        gang=GANG,
        kind=FaultKind.EXIT,
        code="Exit1",
        message="exited with 1",
        at=NOW - 0.1,
        container="trainer",
        exit_code=1,
    )
    return replace(one, **changes)
