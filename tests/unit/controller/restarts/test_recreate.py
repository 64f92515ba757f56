"""Pods that have to go, when the API server does not have it, and when nobody wants it any more."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from common import aio
from common.kube import client, paths
from controller.model.members import PodRef, PodUid
from controller.model.rounds import Recreate
from controller.restarts import recreate
from controller.restarts.recreate import Outcome, Recreator
from hack.devnode.api import standin
from tests import eventually
from tests.unit.reporters.running import connected

PODS = paths.collection("pods", namespace="default")


class Bench:
    """A recreator that runs, the server, and a pod."""

    def __init__(self, server: standin.StandIn, api: client.KubeClient, *, stale: float, keep: float) -> None:
        self.faults = server.handler.faults
        self.api = api
        self.outcomes: asyncio.Queue[Outcome] = asyncio.Queue()
        self.recreator = Recreator(
            api=api,
            on_outcome=lambda _pod, outcome, _why: self.outcomes.put_nowait(outcome),
            backoff=lambda: aio.Backoff(first=0.01, limit=0.05),
            stale=stale,
            keep=keep,
        )
        self.wanted = Recreate(PodRef("default", "a", PodUid("?")), reason="NodeLost", message="n is not ready")

    async def create(self) -> None:
        made = await self.api.create(
            PODS, {"metadata": {"name": "a"}, "spec": {"nodeName": "n", "containers": [{"name": "c", "image": "i"}]}}
        )
        pod = PodRef("default", "a", PodUid(made["metadata"]["uid"]))
        self.wanted = Recreate(pod, reason="NodeLost", message="n is not ready")

    async def next(self) -> Outcome:
        async with asyncio.timeout(60):
            return await self.outcomes.get()


@contextlib.asynccontextmanager
async def running(tmp_path: Path, *, stale: float = 60.0, keep: float = 60.0) -> AsyncIterator[Bench]:
    async with connected(tmp_path) as (server, api):
        bench = Bench(server, api, stale=stale, keep=keep)
        await bench.create()
        task = asyncio.create_task(bench.recreator.run())
        yield bench
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def test_what_nobody_asks_for_any_more_is_not_deleted_once_the_server_would_have_it(tmp_path: Path) -> None:
    async with running(tmp_path, stale=0.2) as bench:
        bench.faults.fail_next(10_000, status=500, method="DELETE")
        bench.recreator.recreate(bench.wanted)
        await eventually.true(lambda: not bench.recreator.is_wanted(bench.wanted.pod.uid))
        bench.faults.rules.clear()
        assert (await bench.api.get(f"{PODS}/a"))["metadata"].get("deletionTimestamp") is None
        assert bench.outcomes.empty()
        bench.recreator.recreate(bench.wanted)
        assert await bench.next() is Outcome.DELETED


async def test_what_was_refused_is_tried_again_after_a_while_if_it_is_asked_for(tmp_path: Path) -> None:
    async with running(tmp_path, keep=0.05) as bench:
        bench.faults.fail_next(1, status=403, method="PATCH")
        bench.recreator.recreate(bench.wanted)
        assert await bench.next() is Outcome.REFUSED
        async with asyncio.timeout(60):
            while bench.outcomes.empty():
                bench.recreator.recreate(bench.wanted)
                await asyncio.sleep(0.01)
        assert await bench.next() is Outcome.DELETED


async def test_what_was_carried_out_is_forgotten(tmp_path: Path) -> None:
    async with running(tmp_path, keep=0.05) as bench:
        bench.recreator.recreate(bench.wanted)
        assert await bench.next() is Outcome.DELETED
        await eventually.true(lambda: not bench.recreator.is_wanted(bench.wanted.pod.uid))


async def test_a_pod_at_which_a_defect_shows_leaves_the_others_and_can_be_asked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path) as bench:
        with monkeypatch.context() as patched:
            patched.setattr(recreate, "_marks", broken)
            bench.recreator.recreate(bench.wanted)
            await eventually.true(lambda: not bench.recreator.is_wanted(bench.wanted.pod.uid))
        bench.recreator.recreate(bench.wanted)
        assert await bench.next() is Outcome.DELETED


def broken(*_: object, **__: object) -> None:
    raise IndexError
