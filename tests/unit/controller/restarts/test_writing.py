"""Requests that are made rounds of, and rounds that get objects, while somebody else has a say about it."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from common import aio
from common.kube import client, errors
from common.parts import PartStatus
from controller.restarts import names, objects, writing
from controller.restarts.convergence import Writer
from controller.restarts.objects import Restart
from hack.devnode.api import standin
from tests.contract.api import restarts
from tests.unit.reporters.running import connected, started

NEW = restarts.new_round("default")


class Bench:
    """A server with the resource, a request, and a client."""

    def __init__(self, server: standin.StandIn, api: client.KubeClient, request: Restart) -> None:
        self.faults = server.handler.faults
        self.api = api
        self.request = request
        self.path = names.path("default", "a")

    def conflicts(self, count: int) -> None:
        """Refuse so many of the next patches, by whatever reason that is not a newer version."""
        self.faults.fail_next(count, status=409, method="PATCH", path="/restarts/a")

    async def take(self) -> writing.Written:
        return await writing.take(self.api, self.request, NEW)

    async def annotate(self, **annotations: str | None) -> None:
        body = {"metadata": {"annotations": annotations}}
        await self.api.patch(self.path, body, content_type=client.Patch.MERGE)


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with connected(tmp_path) as (server, api):
        await restarts.install(api)
        made = await api.create(names.collection("default"), restarts.restart("a"))
        yield Bench(server, api, objects.parse(made))


async def test_a_request_that_somebody_labels_meanwhile_is_taken_at_once(bench: Bench) -> None:
    await bench.annotate(mine="1")
    assert (await bench.take()).epoch == str(NEW.epoch)
    assert bench.faults.hits == 0


async def test_a_request_that_is_refused_again_and_again_is_left_for_later(bench: Bench) -> None:
    bench.conflicts(10_000)
    async with asyncio.timeout(30):
        with pytest.raises(errors.ConflictError):
            await bench.take()
    assert bench.faults.hits == 3


async def test_what_was_left_for_later_is_taken_then(bench: Bench) -> None:
    reports: list[PartStatus] = []
    waits = aio.Backoff(first=0.01, limit=0.05)
    writer = Writer(api=bench.api, report=reports.append, backoff=lambda: waits)
    bench.conflicts(8)
    async with started(writer):
        assert await writer.begin("default/a", bench.take, timeout=60.0)
    assert bench.faults.hits == 8
    assert [each for each in reports if each.message] != []
    assert writing.written(await bench.api.get(bench.path)).epoch == str(NEW.epoch)


async def test_a_lost_answer_is_found_out_though_the_request_is_refused_then(bench: Bench) -> None:
    taken = await bench.take()
    bench.conflicts(1)
    assert await bench.take() == taken


@pytest.mark.parametrize("epoch", [None, "7"])
async def test_a_round_of_another_leader_or_of_none_is_not_ours(bench: Bench, epoch: str | None) -> None:
    await bench.take()
    await bench.annotate(**{names.EPOCH: epoch})
    with pytest.raises(writing.SupersededError, match="default/a is a round already"):
        await bench.take()


async def test_a_request_that_was_asked_anew_is_another_one(bench: Bench) -> None:
    bench.request = replace(bench.request, uid="another")
    bench.conflicts(1)
    with pytest.raises(writing.SupersededError, match="gone, or another object"):
        await bench.take()


async def test_a_round_that_a_quota_was_too_busy_for_is_no_missing_definition(bench: Bench) -> None:
    bench.faults.fail_next(1, status=409, method="POST", path="/restarts")
    with pytest.raises(errors.ConflictError):
        await writing.create(bench.api, "b", NEW)
    assert (await writing.create(bench.api, "b", NEW)).name == "b"
