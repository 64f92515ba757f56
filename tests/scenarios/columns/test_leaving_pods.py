"""A pod that is evicted in mid-restart goes, and nothing of it is left or restarted."""

import asyncio
from typing import Final

import pytest

from kubemend.agent.clients.cri.client import CriClient
from kubemend.agent.model.workloads import ContainerState, PodUid
from kubemend.agent.restart.intents import Strategy
from kubemend.common.kube import errors, paths
from tests import eventually
from tests.scenarios.columns.board import DATA, STRATEGIES, Board, Json, Seen

pytestmark = pytest.mark.devnode

DEAF: Final = f"trap 'echo term >> {DATA}/term' TERM; echo up >> {DATA}/up; while :; do sleep 0.05; done"
GRACE: Final = 600.0


async def evict(board: Board, name: str) -> None:
    """Have the API server evict it, as ``kubectl drain`` does."""
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": "default"}}
    await board.api.create(f"{paths.pod('default', name)}/eviction", body)


async def until_gone(board: Board, name: str) -> None:
    """Wait until the API server has removed it."""

    async def is_gone() -> bool:
        try:
            await board.api.get(paths.pod("default", name))
        except errors.NotFoundError:
            return True
        return False

    await eventually.true(is_gone)


async def alive(cri: CriClient, uid: PodUid) -> list[ContainerState]:
    """Return the states of its containers that run or may."""
    views = await cri.list_containers(pod_uid=uid)
    return [each.state for each in views if each.state is not ContainerState.EXITED]


async def ends_slowly(board: Board, seen: Seen, restart: asyncio.Task[list[Json]]) -> None:
    """Wait until a restart has sent SIGTERM to the program, which ignores it."""
    term = board.volume(seen) / "term"
    await eventually.true(lambda: term.exists() or restart.done())
    assert not restart.done(), await restart


async def test_pod_evicted_in_mid_restart_goes_and_nothing_restarts(board: Board) -> None:
    async with asyncio.TaskGroup() as pods:
        for strategy in STRATEGIES:
            pods.create_task(goes(board, strategy))


async def goes(board: Board, strategy: Strategy) -> None:
    """Evict a pod while its restart waits for a program that ignores SIGTERM."""
    name = f"evicted-{strategy.value}"
    await board.api.create(paths.collection("pods", namespace="default"), board.manifest(name, DEAF, None, {}))
    seen = await board.until(name, lambda each: each.is_ready, what="Ready")
    ups = board.volume(seen) / "up"
    await eventually.true(ups.exists)  # before that it would not receive SIGTERM
    restart = asyncio.create_task(board.asked(name, strategy, grace=GRACE))
    await ends_slowly(board, seen, restart)
    assert len(ups.read_text().splitlines()) == 1
    await evict(board, name)
    await until_gone(board, name)
    reported = await restart
    assert not reported[-1].get("ok"), reported
    assert await alive(board.cri, seen.uid) == []
    async with board.pod(f"after-{name}") as other:
        await board.restarted(f"after-{name}", strategy, other)
    assert await alive(board.cri, seen.uid) == []
