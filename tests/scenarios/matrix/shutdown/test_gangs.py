"""On a node that shuts down no member of a gang causes a round, and a round that is under way starts nothing there."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Final

import pytest

from hack.devnode.rounds import Rounds
from kubemend.agent.clients.cri.events import ContainerEvent, EventKind
from kubemend.agent.model.workloads import PodUid
from kubemend.common.coordination import StepPhase
from kubemend.common.gangs import GangKey
from kubemend.common.kube import errors, paths
from tests import eventually
from tests.devnode.systembus import SystemBus
from tests.scenarios.columns.board import MAIN, Board, Seen
from tests.scenarios.gang.product import Product
from tests.scenarios.matrix.shutdown import env
from tests.scenarios.matrix.shutdown.env import LONG, OWN_ERROR, SHORT

pytestmark = pytest.mark.devnode

SLOWLY: Final = {"kubemend.io/grace-period": "10m"}


@contextlib.asynccontextmanager
async def gang(board: Board, name: str, *, grace: int = LONG) -> AsyncIterator[Sequence[Seen]]:
    """Run two members, the second of which kubelet ends last, for the length of the block."""
    names = [f"{name}-{number}" for number in range(2)]
    try:
        for number, each in enumerate(names):
            await env.create(
                board, each, grace=grace, critical=number == 1, gang=name, annotations=SLOWLY if grace == SHORT else {}
            )
        seen = [await board.until(each, lambda pod: pod.is_ready, what="Ready") for each in names]
        for pod in seen:
            await eventually.true((board.volume(pod) / "up").exists)
        yield seen
    finally:
        for each in names:
            with contextlib.suppress(errors.NotFoundError):
                await board.api.delete(paths.pod("default", each), options={"gracePeriodSeconds": 0})


def rounds(board: Board, name: str) -> Rounds:
    """Return the gang's rounds."""
    return Rounds(board.api, GangKey("default", "Gang", name))


def starts(events: Sequence[ContainerEvent], seen: Seen) -> list[ContainerEvent]:
    """Return the starts of a pod's successors."""
    return [
        each
        for each in events
        if each.kind is EventKind.STARTED and each.container.attempt > 0 and each.container.ref.pod.uid == seen.uid
    ]


async def newest_start_is_recorded(board: Board, events: Sequence[ContainerEvent], seen: Seen) -> bool:
    """Return whether the start of the pod's newest container has been recorded: the agent may learn of it earlier."""
    views = await board.cri.list_containers(pod_uid=PodUid(seen.uid), name=MAIN)
    newest = max(views, key=lambda view: view.attempt)
    return newest.id in {each.container.id for each in starts(events, seen)}


async def over(board: Board, seen: Seen) -> None:
    """Wait until kubelet has ended the pod."""
    name = seen.pod["metadata"]["name"]
    await board.until(name, lambda pod: pod.status.get("phase") in ("Failed", "Succeeded"), what="over")


async def test_members_that_end_with_their_node_cause_no_round(board: Board, bus: SystemBus) -> None:
    async with gang(board, "ends") as (first, last), env.shutdown(board, bus):
        ups = board.volume(last) / "up"
        env.exits(board, last, OWN_ERROR)
        await eventually.true(lambda: len(ups.read_text().splitlines()) == 2)  # kubelet's: it is not ending yet
        for member in (first, last):
            await eventually.true((board.volume(member) / "term").exists)
            env.exits(board, member, 1)
            await over(board, member)
        await bus.until_kubelet_releases()
    async with gang(board, "lives") as (first, last):
        env.exits(board, first, OWN_ERROR)
        # The controller has heard of everything before by then.
        await rounds(board, "lives").until(bool, what="a round of the living")
        assert await rounds(board, "ends").all() == []
        env.exits(board, last, 0)


@pytest.mark.parametrize("kubelet_is_first", [False, True])
async def test_round_that_is_under_way_starts_nothing_on_a_node_that_shuts_down(
    kubelet_is_first: bool, board: Board, product: Product, bus: SystemBus
) -> None:
    async with gang(board, "round", grace=SHORT) as (first, last), env.recorded(board) as events:
        log = board.dev.layout.log_file("agent")
        seen = len(log.read_bytes())
        if kubelet_is_first:
            product.pause_agent(0)
        env.exits(board, last, OWN_ERROR)
        if kubelet_is_first:
            await eventually.true(lambda: len(starts(events, last)) == 1)
            product.resume_agent(0)
        await eventually.true((board.volume(first) / "term").exists)  # the round stops it, and it takes its time
        # Where kubelet is first, the round replaces kubelet's container: a start is not yet the end of the step.
        await env.until_logged(
            log, "round.step_result", since=seen, pod="default/round-1", phase=StepPhase.STOPPED.value, reason=""
        )
        await eventually.true(lambda: newest_start_is_recorded(board, events, last))
        async with env.shutdown(board, bus):
            begun = len(events)
            await asyncio.gather(over(board, first), over(board, last))
            await bus.until_kubelet_releases()
            for member in (first, last):
                assert env.started_by_kubemend(events[begun:], member.uid) == []
        ended = await rounds(board, "round").finished(1)
        assert ended["status"]["phase"] != "Succeeded", ended["status"]
