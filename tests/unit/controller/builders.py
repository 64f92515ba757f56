"""Members, nodes and faults for tests of the controller's pure core."""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from kubemend.common.coordination import FaultKind
from kubemend.common.gangs import GangKey
from kubemend.controller.model.faults import Fault
from kubemend.controller.model.members import Member, NodeName, NodeView, Owner, PodPhase, PodRef, PodUid

GANG = GangKey("team", "Job", "train")
OPTED_IN: Mapping[str, str] = MappingProxyType({"kubemend.io/restart": "InPlace"})
OWNER = Owner("batch", "Job", "train", "uid-job")
NOW = 1_700_000_000.0


def member(index: int, *, generation: int = 0, **changes: Any) -> Member:
    """Return one worker on its own node; ``generation`` counts the pods that its slot has had."""
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
    """Return a gang of this many workers."""
    return tuple(member(index) for index in range(size))


def nodes(size: int) -> dict[NodeName, NodeView]:
    """Return their nodes, all ready."""
    return {name: NodeView(name, ready=True) for name in (NodeName(f"node-{index}") for index in range(size))}


def fault(index: int = 0, **changes: Any) -> Fault:
    """Return a worker's exit with code 1, a moment ago."""
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
