"""The last resort releases the other containers although it cannot release one of them."""

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import cast

import pytest

from kubemend.agent.actuator.hold import cgroups
from kubemend.agent.actuator.hold.freezer import Freezer
from kubemend.agent.app import last_resort
from kubemend.agent.clients.cri.client import CriClient
from kubemend.agent.clients.cri.errors import CallFailed
from kubemend.agent.model.workloads import (
    ContainerId,
    ContainerRef,
    ContainerState,
    ContainerSummary,
    PodRef,
    PodUid,
    SandboxId,
)

STUCK, ITS_SUCCESSOR = ContainerId("stuck"), ContainerId("its-successor")
OLD, SUCCESSOR, HELD = ContainerId("old"), ContainerId("successor"), ContainerId("held")


@dataclass
class Runtime:
    """A runtime that cannot remove the containers in ``fails``."""

    views: dict[ContainerId, ContainerSummary]
    fails: ContainerId

    async def list_containers(self) -> tuple[ContainerSummary, ...]:
        return tuple(self.views.values())

    async def remove_container(self, container_id: ContainerId) -> None:
        if container_id == self.fails:
            raise CallFailed(f"cannot remove {container_id}")
        del self.views[container_id]


@dataclass
class FrozenContainers:
    """Stand in for the freezer."""

    frozen: set[ContainerId] = field(default_factory=set)

    def left_frozen(self, _: Collection[str] = ()) -> frozenset[ContainerId]:
        return frozenset(self.frozen)

    def thaw(self, container_id: ContainerId) -> None:
        self.frozen.remove(container_id)


def view(container_id: ContainerId, *, pod: str, attempt: int, created: bool = False) -> ContainerSummary:
    return ContainerSummary(
        id=container_id,
        ref=ContainerRef(PodRef("default", pod, PodUid(pod)), "main"),
        sandbox_id=SandboxId(pod),
        attempt=attempt,
        state=ContainerState.CREATED if created else ContainerState.RUNNING,
        created_at=attempt,
        restart_id="restart" if created else None,
    )


async def test_successor_that_cannot_be_removed_leaves_no_other_container_frozen() -> None:
    views = [
        view(STUCK, pod="stuck", attempt=0),
        view(ITS_SUCCESSOR, pod="stuck", attempt=1, created=True),
        view(OLD, pod="other", attempt=0),
        view(SUCCESSOR, pod="other", attempt=1, created=True),
        view(HELD, pod="held", attempt=0),
    ]
    runtime = Runtime({each.id: each for each in views}, fails=ITS_SUCCESSOR)
    freezer = FrozenContainers({STUCK, OLD, HELD})
    for _ in range(2):
        left = await last_resort._release(
            cast("CriClient", runtime), cast("Freezer", freezer), states=(cgroups.HELD, cgroups.REPLACED)
        )
        assert left
    assert freezer.frozen == {STUCK}


async def test_agent_ends_frozen_containers_of_swaps_that_no_open_intent_owns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their intents are quarantined, or the state file is lost. A swap in progress is left alone."""
    monkeypatch.setattr(last_resort, "RETRY_SECONDS", 0.0)
    views = [
        view(OLD, pod="lost", attempt=0),
        view(SUCCESSOR, pod="lost", attempt=1, created=True),
        view(HELD, pod="busy", attempt=0),
        view(ITS_SUCCESSOR, pod="busy", attempt=1, created=True),
    ]
    runtime, freezer = Runtime({each.id: each for each in views}, fails=STUCK), FrozenContainers({OLD, HELD})
    asked = []

    async def opened() -> frozenset[PodUid]:
        asked.append(frozenset(freezer.frozen))
        return frozenset({PodUid("busy")})

    await last_resort.end_unowned_swaps(cast("CriClient", runtime), cast("Freezer", freezer), opened=opened)
    assert freezer.frozen == {HELD}
    assert runtime.views.keys() == {OLD, HELD, ITS_SUCCESSOR}
    assert asked[0] == {OLD, HELD}
    freezer.frozen.clear()
    asked.clear()
    await last_resort.end_unowned_swaps(cast("CriClient", runtime), cast("Freezer", freezer), opened=opened)
    assert asked == [], "nothing is read if nothing is frozen"
