"""What is written about rounds when the API server fails, refuses, or has heard it before."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from common import aio
from common.kube import client, errors
from common.parts import PartState, PartStatus
from controller.restarts import names, writing
from controller.restarts.convergence import Writer
from controller.restarts.objects import NewRound
from hack.devnode.api import standin
from tests.contract.api import restarts
from tests.unit.controller.restarts import builders

SECONDS = 60.0


class Bench:
    """A writer that runs, what it reported, and a client of the same server."""

    def __init__(self, server: standin.StandIn, api: client.KubeClient) -> None:
        self.server = server
        self.api = api
        self.reports: list[PartStatus] = []
        self._news = asyncio.Event()
        self.writer = Writer(api=api, report=self._hear, backoff=lambda: aio.Backoff(first=0.01, limit=0.05))

    async def begin(self, name: str = "a", *, timeout: float = SECONDS, new: NewRound | None = None) -> bool:
        wanted = new or builders.new_round(gang=_in_default(builders.new_round()))
        return await self.writer.begin(
            f"default/{name}", lambda: writing.create(self.api, name, wanted), timeout=timeout
        )

    async def read(self, name: str = "a") -> dict[str, Any]:
        return await self.api.get(names.path("default", name))

    async def reported(self, state: PartState) -> PartStatus:
        async with asyncio.timeout(SECONDS):
            while not (found := [report for report in self.reports if report.state is state]):
                self._news.clear()
                await self._news.wait()
        return found[-1]

    def _hear(self, status: PartStatus) -> None:
        self.reports.append(status)
        self._news.set()


def _in_default(new: NewRound) -> Any:
    return type(new.gang)("default", new.gang.kind, new.gang.name)


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with (
        standin.StandIn(kubeconfig=tmp_path / "kubeconfig") as server,
        client.connect(kubeconfig=server.kubeconfig, deadlines=client.Deadlines(call=2.0)) as api,
    ):
        found = Bench(server, api)
        task = asyncio.create_task(found.writer.run())
        yield found
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


@pytest.fixture
async def installed(bench: Bench) -> None:
    await bench.api.create(restarts.DEFINITIONS, yaml.safe_load(restarts.DEFINITION.read_text()))


@pytest.mark.usefixtures("installed")
async def test_of_what_is_said_in_quick_succession_the_newest_is_written(bench: Bench) -> None:
    assert await bench.begin()
    before = bench.server.handler.store.version
    for number in range(20):
        bench.writer.set_status("default/a", {"phase": "Stopping", "members": {"stopped": number}}, known=None)
    assert await bench.writer.flush(timeout=SECONDS)
    assert (await bench.read())["status"]["members"] == {"stopped": 19}
    assert bench.server.handler.store.version == before + 1


@pytest.mark.usefixtures("installed")
async def test_busy_server_is_asked_again(bench: Bench) -> None:
    bench.server.handler.faults.fail_next(10, method="POST", path="/restarts")
    assert await bench.begin()
    bench.server.handler.faults.fail_next(10, method="PATCH", path="/status")
    bench.writer.set_status("default/a", {"phase": "Done"}, known=None)
    assert await bench.writer.flush(timeout=SECONDS)
    assert (await bench.read())["status"]["phase"] == "Done"
    assert bench.server.handler.faults.hits == 20
    assert bench.reports[-1].state is PartState.READY


async def test_missing_definition_is_told_with_its_mend_and_awaited(bench: Bench) -> None:
    assert not await bench.begin(timeout=0.05)
    report = await bench.reported(PartState.DEGRADED)
    assert report.mend == "kubectl apply -k daemonset/crds"
    await bench.api.create(restarts.DEFINITIONS, yaml.safe_load(restarts.DEFINITION.read_text()))
    bench.writer.set_status("default/a", {"phase": "Done"}, known=None)
    assert await bench.writer.flush(timeout=SECONDS)
    assert (await bench.read())["status"]["phase"] == "Done"


@pytest.mark.usefixtures("installed")
async def test_lost_answer_to_a_creation_is_no_second_object(bench: Bench) -> None:
    new = builders.new_round(gang=_in_default(builders.new_round()))
    await bench.api.create(names.collection("default"), new.body("a"))  # its answer was lost
    assert await bench.begin(new=new)
    bench.writer.set_status("default/a", {"phase": "Done"}, known=None)
    assert await bench.writer.flush(timeout=SECONDS)
    assert (await bench.read())["status"]["phase"] == "Done"


@pytest.mark.usefixtures("installed")
async def test_status_that_is_never_taken_is_dropped(bench: Bench) -> None:
    assert await bench.begin()
    bench.writer.set_status("default/a", {"phase": "Great"}, known=None)
    assert await bench.writer.flush(timeout=SECONDS)
    assert not bench.writer.is_unsaid("default/a")
    assert "status" not in await bench.read()


@pytest.mark.usefixtures("installed")
async def test_what_is_unsaid_when_leading_ends_is_not_said_in_the_next_term(bench: Bench) -> None:
    bench.server.handler.faults.fail_next(10_000, method="POST", path="/restarts")
    assert not await bench.begin(timeout=0.05)
    new = builders.new_round(gang=_in_default(builders.new_round()))
    first = Writer(api=bench.api, report=lambda _: None, backoff=lambda: aio.Backoff(first=0.01, limit=0.05))
    for _ in range(2):
        task = asyncio.create_task(first.run())
        await asyncio.sleep(0)  # it begins
        assert not await first.begin("default/b", lambda: writing.create(bench.api, "b", new), timeout=0.02)
        assert first.is_unsaid("default/b")
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        assert not first.is_unsaid("default/b")
        assert await first.flush(timeout=0.0)


@pytest.mark.usefixtures("installed")
async def test_an_object_at_which_a_defect_shows_leaves_the_others(bench: Bench) -> None:
    async def broken() -> writing.Written:
        raise IndexError

    assert not await bench.writer.begin("default/bad", broken, timeout=0.1)
    assert await bench.begin("good")
    assert not bench.writer.is_unsaid("default/bad")
    assert await bench.writer.flush(timeout=SECONDS)


@pytest.mark.usefixtures("installed")
async def test_how_a_round_has_ended_while_the_server_was_away_is_written_though_the_term_is_over(bench: Bench) -> None:
    """The Lease cannot be renewed either; who leads next knows nothing of that round."""
    bench.server.handler.faults.fail_next(10_000, method="POST", path="/restarts")
    new = builders.new_round(gang=_in_default(builders.new_round()))
    writer = Writer(api=bench.api, report=lambda _: None, backoff=lambda: aio.Backoff(first=0.01, limit=0.05))
    term = asyncio.create_task(writer.run())
    assert not await writer.begin("default/b", lambda: writing.create(bench.api, "b", new), timeout=0.02)
    writer.set_status("default/b", {"phase": "Done"}, known=None)
    term.cancel()
    await asyncio.gather(term, return_exceptions=True)
    assert not writer.is_unsaid("default/b"), "the next term has nothing to do with it"
    bench.server.handler.faults.rules.clear()
    finishing = asyncio.create_task(writer.finish())
    try:
        async with asyncio.timeout(SECONDS):
            while not await _is_done(bench, "b"):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    finally:
        finishing.cancel()
        await asyncio.gather(finishing, return_exceptions=True)


@pytest.mark.usefixtures("installed")
async def test_the_end_of_a_round_that_another_leader_has_taken_over_is_left_to_him(bench: Bench) -> None:
    new = builders.new_round(gang=_in_default(builders.new_round()))
    writer = Writer(api=bench.api, report=lambda _: None, backoff=lambda: aio.Backoff(first=0.01, limit=0.05))
    term = asyncio.create_task(writer.run())
    assert await writer.begin("default/b", lambda: writing.create(bench.api, "b", new), timeout=SECONDS)
    known = writer.known("default/b")
    assert known is not None
    await writing.resume(bench.api, known, epoch=int(known.epoch) + 1)
    writer.set_status("default/b", {"phase": "Failed"}, known=None)
    term.cancel()
    await asyncio.gather(term, return_exceptions=True)
    finishing = asyncio.create_task(writer.finish())
    taken = await bench.read("b")
    async with asyncio.timeout(SECONDS):
        while writer._left.qsize() or _ends(asyncio.all_tasks()):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    finishing.cancel()
    await asyncio.gather(finishing, return_exceptions=True)
    assert await bench.read("b") == taken


def _ends(tasks: set[asyncio.Task[Any]]) -> list[asyncio.Task[Any]]:
    return [task for task in tasks if task.get_name().startswith("end of restart")]


async def _is_done(bench: Bench, name: str) -> bool:
    try:
        return bool((await bench.read(name)).get("status", {}).get("phase") == "Done")
    except errors.NotFoundError:
        return False
