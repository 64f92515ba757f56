"""Writing Restart objects while the API server fails, refuses, or has the write already."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from kubemend.common import aio
from kubemend.common.components import ComponentState, ComponentStatus
from kubemend.common.kube import client, errors
from kubemend.controller.restarts import names, status_writer, writing
from kubemend.controller.restarts.objects import NewRound
from kubemend.controller.restarts.status_writer import StatusWriter
from tests.control_plane import Tenant
from tests.unit.controller.restarts import builders

SECONDS = 60.0


class Bench:
    """A running writer, its reports, and a client of the same server."""

    def __init__(self, tenant: Tenant, api: client.KubeClient) -> None:
        self.server = tenant.server
        self.namespace = tenant.namespace
        self.api = api
        self.reports: list[ComponentStatus] = []
        self._news = asyncio.Event()
        self.writer = StatusWriter(api=api, report=self._hear, backoff=lambda: aio.Backoff(first=0.01, limit=0.05))

    async def begin(self, name: str = "a", *, timeout: float = SECONDS, new: NewRound | None = None) -> bool:
        wanted = new or self.new_round()
        return await self.writer.begin(
            f"{self.namespace}/{name}", lambda: writing.create(self.api, name, wanted), timeout=timeout
        )

    def new_round(self) -> NewRound:
        """Return a round of a gang in the test's namespace."""
        new = builders.new_round()
        return builders.new_round(gang=type(new.gang)(self.namespace, new.gang.kind, new.gang.name))

    @property
    def status_path(self) -> str:
        return f"{names.path(self.namespace, 'a')}/status"

    def key(self, name: str) -> str:
        """Return the writer's name for an object."""
        return f"{self.namespace}/{name}"

    async def read(self, name: str = "a") -> dict[str, Any]:
        return await self.api.get(names.path(self.namespace, name))

    async def reported(self, state: ComponentState) -> ComponentStatus:
        async with asyncio.timeout(SECONDS):
            while not (found := [report for report in self.reports if report.state is state]):
                self._news.clear()
                await self._news.wait()
        return found[-1]

    def _hear(self, status: ComponentStatus) -> None:
        self.reports.append(status)
        self._news.set()


@pytest.fixture
async def bench(tenant: Tenant) -> AsyncIterator[Bench]:
    async with tenant.client() as api:
        found = Bench(tenant, api)
        task = asyncio.create_task(found.writer.run())
        yield found
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def test_newest_of_quick_statuses_is_written(bench: Bench) -> None:
    assert await bench.begin()
    before = bench.server.counts["PATCH", bench.status_path]
    for number in range(20):
        bench.writer.set_status(bench.key("a"), {"phase": "Stopping", "members": {"stopped": number}}, known=None)
    assert await bench.writer.flush(timeout=SECONDS)
    assert (await bench.read())["status"]["members"] == {"stopped": 19}
    assert bench.server.counts["PATCH", bench.status_path] == before + 1


async def test_busy_server_is_retried(bench: Bench) -> None:
    bench.server.fail_next(10, method="POST", path="/restarts")
    assert await bench.begin()
    bench.server.fail_next(10, method="PATCH", path="/status")
    bench.writer.set_status(bench.key("a"), {"phase": "Done"}, known=None)
    assert await bench.writer.flush(timeout=SECONDS)
    assert (await bench.read())["status"]["phase"] == "Done"
    assert bench.server.hits == 20
    assert bench.reports[-1].state is ComponentState.READY


async def test_missing_definition_is_reported_with_hint_and_awaited(bench: Bench) -> None:
    missing = bench.server.fail_next(10_000, status=404, path=f"/apis/{names.GROUP}/", message="404 page not found")
    assert not await bench.begin(timeout=0.05)
    report = await bench.reported(ComponentState.DEGRADED)
    assert report.hint == "Run kubectl apply -k daemonset/crds."
    bench.server.rules.remove(missing)
    bench.writer.set_status(bench.key("a"), {"phase": "Done"}, known=None)
    assert await bench.writer.flush(timeout=SECONDS)
    assert (await bench.read())["status"]["phase"] == "Done"


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (403, 'restarts.restarts.kubemend.io "a" is forbidden: exceeded quota: none, requested: count/restarts=1'),
        (403, 'restarts.restarts.kubemend.io "a" is forbidden: unable to create new content in namespace x because '
              "it is being terminated"),
        (404, 'namespaces "x" not found'),
        (409, 'Operation cannot be fulfilled on resourcequotas "few": the object has been modified'),
    ],
)  # fmt: skip
async def test_refusal_that_concerns_one_namespace_degrades_nothing(bench: Bench, status: int, message: str) -> None:
    """People who may write a ResourceQuota, or delete their namespace, could otherwise make the controller unready."""
    refused = bench.server.fail_next(10_000, status=status, path="/restarts", message=message)
    assert not await bench.begin(timeout=0.05)
    bench.server.rules.remove(refused)
    bench.writer.set_status(bench.key("a"), {"phase": "Done"}, known=None)
    assert await bench.writer.flush(timeout=SECONDS)
    assert (await bench.read())["status"]["phase"] == "Done"
    assert ComponentState.DEGRADED not in {each.state for each in bench.reports}


async def test_lost_answer_to_create_makes_no_second_object(bench: Bench) -> None:
    new = bench.new_round()
    await bench.api.create(names.collection(bench.namespace), new.body("a"))  # its answer was lost
    assert await bench.begin(new=new)
    bench.writer.set_status(bench.key("a"), {"phase": "Done"}, known=None)
    assert await bench.writer.flush(timeout=SECONDS)
    assert (await bench.read())["status"]["phase"] == "Done"


async def test_status_that_is_never_accepted_is_dropped(bench: Bench) -> None:
    assert await bench.begin()
    bench.writer.set_status(bench.key("a"), {"phase": "Great"}, known=None)
    assert await bench.writer.flush(timeout=SECONDS)
    assert not bench.writer.is_pending(bench.key("a"))
    assert "status" not in await bench.read()


async def test_outstanding_status_is_dropped_in_next_term(bench: Bench) -> None:
    bench.server.fail_next(10_000, method="POST", path="/restarts")
    assert not await bench.begin(timeout=0.05)
    new = bench.new_round()
    first = StatusWriter(api=bench.api, report=lambda _: None, backoff=lambda: aio.Backoff(first=0.01, limit=0.05))
    for _ in range(2):
        task = asyncio.create_task(first.run())
        await asyncio.sleep(0)  # it begins
        assert not await first.begin(bench.key("b"), lambda: writing.create(bench.api, "b", new), timeout=0.02)
        assert first.is_pending(bench.key("b"))
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        assert not first.is_pending(bench.key("b"))
        assert await first.flush(timeout=0.0)


async def test_internal_error_at_object_leaves_the_others(bench: Bench) -> None:
    async def broken() -> writing.Written:
        raise IndexError

    assert not await bench.writer.begin(bench.key("bad"), broken, timeout=0.1)
    assert await bench.begin("good")
    assert not bench.writer.is_pending(bench.key("bad"))
    assert await bench.writer.flush(timeout=SECONDS)


async def test_end_of_round_is_written_after_its_term(bench: Bench) -> None:
    """The Lease cannot be renewed either; the next leader does not know that round."""
    bench.server.fail_next(10_000, method="POST", path="/restarts")
    new = bench.new_round()
    writer = StatusWriter(api=bench.api, report=lambda _: None, backoff=lambda: aio.Backoff(first=0.01, limit=0.05))
    term = asyncio.create_task(writer.run())
    assert not await writer.begin(bench.key("b"), lambda: writing.create(bench.api, "b", new), timeout=0.02)
    writer.set_status(bench.key("b"), {"phase": "Done"}, known=None)
    term.cancel()
    await asyncio.gather(term, return_exceptions=True)
    assert not writer.is_pending(bench.key("b")), "the next term has nothing to do with it"
    bench.server.rules.clear()
    finishing = asyncio.create_task(writer.finish())
    try:
        async with asyncio.timeout(SECONDS):
            while not await _is_done(bench, "b"):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    finally:
        finishing.cancel()
        await asyncio.gather(finishing, return_exceptions=True)


async def test_end_of_round_owned_by_another_leader_is_left(bench: Bench) -> None:
    new = bench.new_round()
    writer = StatusWriter(api=bench.api, report=lambda _: None, backoff=lambda: aio.Backoff(first=0.01, limit=0.05))
    term = asyncio.create_task(writer.run())
    assert await writer.begin(bench.key("b"), lambda: writing.create(bench.api, "b", new), timeout=SECONDS)
    known = writer.known(bench.key("b"))
    assert known is not None
    await writing.resume(bench.api, known, epoch=int(known.epoch) + 1)
    writer.set_status(bench.key("b"), {"phase": "Failed"}, known=None)
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


async def test_object_of_another_leader_is_not_waited_for(bench: Bench) -> None:
    async def taken() -> writing.Written:
        raise writing.SupersededError("another leader has it")

    async with asyncio.timeout(SECONDS):
        assert not await bench.writer.begin(bench.key("a"), taken, timeout=3600.0)
    assert await bench.writer.flush(timeout=SECONDS)


class Recording:
    """A writer whose writes succeed, and what it has written, in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.written: list[str] = []
        self.may_write = asyncio.Event()
        self.writer = StatusWriter(api=cast("client.KubeClient", None), report=lambda _: None)
        monkeypatch.setattr(writing, "write_status", self._write)

    def refuse(self, namespace: str, name: str) -> None:
        known = writing.Written(namespace, name, f"uid-{name}", 1, "")
        self.writer.set_status(f"{namespace}/{name}", {"phase": "Refused"}, known=known)

    async def begin(self, name: str) -> bool:
        return await self.writer.begin(f"team/{name}", lambda: self._record(name), timeout=SECONDS)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.writer.run())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _write(self, _: object, known: writing.Written, status: object, *, now: float) -> None:
        await self.may_write.wait()
        await asyncio.sleep(0)
        self.written.append(f"{known.namespace}/{known.name}")

    async def _record(self, name: str) -> writing.Written:
        self.written.append(f"team/{name}")
        return writing.Written("team", name, f"uid-{name}", 1, "1")


async def test_objects_of_one_namespace_wait_without_a_task_and_leave_writes_to_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recording = Recording(monkeypatch)
    many = [f"r{number}" for number in range(1000)]
    async with recording.running():
        for name in many:
            recording.refuse("team", name)
        recording.refuse("other", "r")
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert len(_writes(asyncio.all_tasks())) == status_writer.OF_A_NAMESPACE + 1
        beginning = asyncio.create_task(recording.begin("round"))
        recording.may_write.set()
        assert await beginning
        assert len(recording.written) < 200
        assert await recording.writer.flush(timeout=SECONDS)
    assert set(recording.written) == {"other/r", "team/round", *(f"team/{name}" for name in many)}
    assert recording.written.index("other/r") <= status_writer.OF_A_NAMESPACE + 8
    assert len(recording.written) == 1002


async def test_waiting_objects_of_a_term_do_not_wait_in_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    recording = Recording(monkeypatch)
    async with recording.running():
        for number in range(200):
            recording.refuse("team", f"r{number}")
        await asyncio.sleep(0)
    recording.may_write.set()
    async with recording.running():
        for number in range(100):
            recording.refuse("team", f"next-{number}")
        assert await recording.writer.flush(timeout=SECONDS)
    assert len(recording.written) == 100


def _writes(tasks: set[asyncio.Task[Any]]) -> list[asyncio.Task[Any]]:
    return [task for task in tasks if task.get_name().startswith("restart ")]


def _ends(tasks: set[asyncio.Task[Any]]) -> list[asyncio.Task[Any]]:
    return [task for task in tasks if task.get_name().startswith("end of restart")]


async def _is_done(bench: Bench, name: str) -> bool:
    try:
        return bool((await bench.read(name)).get("status", {}).get("phase") == "Done")
    except errors.NotFoundError:
        return False
