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
from tests.unit.reporters.running import started

SECONDS = 60.0


class Env:
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
async def env(tenant: Tenant) -> AsyncIterator[Env]:
    async with tenant.client() as api:
        found = Env(tenant, api)
        async with started(found.writer):
            yield found


async def test_newest_of_quick_statuses_is_written(env: Env) -> None:
    assert await env.begin()
    before = env.server.counts["PATCH", env.status_path]
    for number in range(20):
        env.writer.set_status(env.key("a"), {"phase": "Stopping", "members": {"stopped": number}}, known=None)
    assert await env.writer.flush(timeout=SECONDS)
    assert (await env.read())["status"]["members"] == {"stopped": 19}
    assert env.server.counts["PATCH", env.status_path] == before + 1


async def test_busy_server_is_retried(env: Env) -> None:
    env.server.fail_next(10, method="POST", path="/restarts")
    assert await env.begin()
    env.server.fail_next(10, method="PATCH", path="/status")
    env.writer.set_status(env.key("a"), {"phase": "Done"}, known=None)
    assert await env.writer.flush(timeout=SECONDS)
    assert (await env.read())["status"]["phase"] == "Done"
    assert env.server.hits == 20
    assert env.reports[-1].state is ComponentState.READY


async def test_error_does_not_outlast_a_write_that_is_given_up(env: Env) -> None:
    env.server.fail_next(10_000, method="POST", path="/restarts")
    beginning = asyncio.create_task(env.begin())
    await env.reported(ComponentState.DEGRADED)
    env.writer._give_up = 0.0
    assert not await beginning
    assert env.reports[-1].state is ComponentState.IDLE


async def test_missing_definition_is_reported_with_hint_and_awaited(env: Env) -> None:
    missing = env.server.fail_next(10_000, status=404, path=f"/apis/{names.GROUP}/", message="404 page not found")
    assert not await env.begin(timeout=0.05)
    report = await env.reported(ComponentState.DEGRADED)
    assert report.hint == "Run kubectl apply -k daemonset/crds."
    env.server.rules.remove(missing)
    env.writer.set_status(env.key("a"), {"phase": "Done"}, known=None)
    assert await env.writer.flush(timeout=SECONDS)
    assert (await env.read())["status"]["phase"] == "Done"


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
async def test_refusal_that_concerns_one_namespace_degrades_nothing(env: Env, status: int, message: str) -> None:
    """People who may write a ResourceQuota, or delete their namespace, could otherwise make the controller unready."""
    refused = env.server.fail_next(10_000, status=status, path="/restarts", message=message)
    assert not await env.begin(timeout=0.05)
    env.server.rules.remove(refused)
    env.writer.set_status(env.key("a"), {"phase": "Done"}, known=None)
    assert await env.writer.flush(timeout=SECONDS)
    assert (await env.read())["status"]["phase"] == "Done"
    assert ComponentState.DEGRADED not in {each.state for each in env.reports}


async def test_lost_answer_to_create_makes_no_second_object(env: Env) -> None:
    new = env.new_round()
    await env.api.create(names.collection(env.namespace), new.body("a"))  # its answer was lost
    assert await env.begin(new=new)
    env.writer.set_status(env.key("a"), {"phase": "Done"}, known=None)
    assert await env.writer.flush(timeout=SECONDS)
    assert (await env.read())["status"]["phase"] == "Done"


async def test_status_that_is_never_accepted_is_dropped(env: Env) -> None:
    assert await env.begin()
    env.writer.set_status(env.key("a"), {"phase": "Great"}, known=None)
    assert await env.writer.flush(timeout=SECONDS)
    assert not env.writer.is_pending(env.key("a"))
    assert "status" not in await env.read()


async def test_outstanding_status_is_dropped_in_next_term(env: Env) -> None:
    env.server.fail_next(10_000, method="POST", path="/restarts")
    assert not await env.begin(timeout=0.05)
    new = env.new_round()
    first = StatusWriter(api=env.api, report=lambda _: None, backoff=lambda: aio.Backoff(first=0.01, limit=0.05))
    for _ in range(2):
        task = asyncio.create_task(first.run())
        await asyncio.sleep(0)  # it begins
        assert not await first.begin(env.key("b"), lambda: writing.create(env.api, "b", new), timeout=0.02)
        assert first.is_pending(env.key("b"))
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        assert not first.is_pending(env.key("b"))
        assert await first.flush(timeout=0.0)


async def test_internal_error_at_object_leaves_the_others(env: Env) -> None:
    async def broken() -> writing.Written:
        raise IndexError

    assert not await env.writer.begin(env.key("bad"), broken, timeout=0.1)
    assert await env.begin("good")
    assert not env.writer.is_pending(env.key("bad"))
    assert await env.writer.flush(timeout=SECONDS)


async def test_end_of_round_is_written_after_its_term(env: Env) -> None:
    """The Lease cannot be renewed either; the next leader does not know that round."""
    env.server.fail_next(10_000, method="POST", path="/restarts")
    new = env.new_round()
    writer = StatusWriter(api=env.api, report=lambda _: None, backoff=lambda: aio.Backoff(first=0.01, limit=0.05))
    term = asyncio.create_task(writer.run())
    assert not await writer.begin(env.key("b"), lambda: writing.create(env.api, "b", new), timeout=0.02)
    writer.set_status(env.key("b"), {"phase": "Done"}, known=None)
    term.cancel()
    await asyncio.gather(term, return_exceptions=True)
    assert not writer.is_pending(env.key("b")), "the next term has nothing to do with it"
    env.server.rules.clear()
    finishing = asyncio.create_task(writer.finish())
    try:
        async with asyncio.timeout(SECONDS):
            while not await _is_done(env, "b"):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    finally:
        finishing.cancel()
        await asyncio.gather(finishing, return_exceptions=True)


async def test_end_of_round_owned_by_another_leader_is_left(env: Env) -> None:
    new = env.new_round()
    writer = StatusWriter(api=env.api, report=lambda _: None, backoff=lambda: aio.Backoff(first=0.01, limit=0.05))
    term = asyncio.create_task(writer.run())
    assert await writer.begin(env.key("b"), lambda: writing.create(env.api, "b", new), timeout=SECONDS)
    known = writer.known(env.key("b"))
    assert known is not None
    await writing.resume(env.api, known, epoch=int(known.epoch) + 1)
    writer.set_status(env.key("b"), {"phase": "Failed"}, known=None)
    term.cancel()
    await asyncio.gather(term, return_exceptions=True)
    finishing = asyncio.create_task(writer.finish())
    taken = await env.read("b")
    async with asyncio.timeout(SECONDS):
        while writer._left.qsize() or _ends(asyncio.all_tasks()):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    finishing.cancel()
    await asyncio.gather(finishing, return_exceptions=True)
    assert await env.read("b") == taken


@pytest.mark.parametrize("is_down", [False, True])
async def test_end_of_deleted_object_stays_apart_from_its_successor_of_that_name(
    monkeypatch: pytest.MonkeyPatch, is_down: bool
) -> None:
    may_answer, asked, written = asyncio.Event(), asyncio.Event(), []

    async def write_status(_: object, known: writing.Written, status: object, *, now: float) -> None:
        asked.set()
        await may_answer.wait()
        if is_down:
            may_answer.clear()
            raise errors.ApiUnavailableError("no answer")
        if known.uid != "new":
            raise writing.SupersededError("it was replaced")
        written.append(status)

    async def first() -> writing.Written:
        may_answer.set()
        return writing.Written("team", "a", "new", 1, "1")

    monkeypatch.setattr(writing, "write_status", write_status)
    backoff = aio.Backoff(first=0.01, limit=0.05)
    writer = StatusWriter(api=cast("client.KubeClient", None), report=lambda _: None, backoff=lambda: backoff)
    running = asyncio.create_task(writer.run())
    writer.set_status("team/a", {"phase": "Failed"}, known=writing.Written("team", "a", "old", 1, "1"))
    await asked.wait()
    assert await writer.begin("team/a", first, timeout=SECONDS)
    is_down = False
    may_answer.set()
    await asyncio.gather(*_writes(asyncio.all_tasks()))
    known = writer.known("team/a")
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert (written, known) == ([], writing.Written("team", "a", "new", 1, "1"))


async def test_object_of_another_leader_is_not_waited_for(env: Env) -> None:
    async def taken() -> writing.Written:
        raise writing.SupersededError("another leader has it")

    async with asyncio.timeout(SECONDS):
        assert not await env.writer.begin(env.key("a"), taken, timeout=3600.0)
    assert await env.writer.flush(timeout=SECONDS)


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


async def _is_done(env: Env, name: str) -> bool:
    try:
        return bool((await env.read(name)).get("status", {}).get("phase") == "Done")
    except errors.NotFoundError:
        return False
