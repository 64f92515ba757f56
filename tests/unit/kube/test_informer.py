"""Informer, against a real API server: the changes that listeners receive, with any fault of the watch."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from structlog.testing import capture_logs

from kubemend.common import aio
from kubemend.common.components import ComponentState, ComponentStatus
from kubemend.common.kube import client, informer, paths, shares, watch_protocol
from kubemend.common.kube.transport import Json
from tests.control_plane import Tenant

PODS = paths.PODS
"""The view of informers of fake servers."""


def color(pod: Json) -> str | None:
    """A pod's name and color; pods without one are not kept. ``?`` cannot be parsed."""
    found = (pod["metadata"].get("labels") or {}).get("color")
    if found == "unheard-of":
        raise ValueError(found)
    return f"{pod['metadata']['name']}: {found}" if found else None


class Env:
    """A running informer, its changes, and a client of the same server."""

    def __init__(self, tenant: Tenant, api: client.KubeClient) -> None:
        self.server = tenant.server
        self.pods = tenant.of("pods")
        self.api = api
        self.reports: list[ComponentStatus] = []
        self.reported: list[tuple[str, str]] = []
        self._news = asyncio.Event()
        self.mirror = informer.Informer(
            api=api,
            path=self.pods,
            reduce=color,
            report=self._report,
            page=2,
            backoff=aio.Backoff(first=0.01, limit=0.05),
        )
        self.mirror.subscribe(self._change)

    async def create(self, name: str, color: str | None = "red") -> None:
        labels = {"color": color} if color else {}
        spec = {"nodeName": "n", "containers": [{"name": "c", "image": "i"}]}
        await self.api.create(self.pods, {"metadata": {"name": name, "labels": labels}, "spec": spec})

    async def paint(self, name: str, color: str | None) -> None:
        await self.api.patch(f"{self.pods}/{name}", {"metadata": {"labels": {"color": color}}})

    async def delete(self, name: str) -> None:
        await self.api.delete(f"{self.pods}/{name}", options={"gracePeriodSeconds": 0})

    async def until(self, predicate: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not predicate():
                self._news.clear()
                await self._news.wait()

    def _report(self, status: ComponentStatus) -> None:
        self.reports.append(status)
        self._news.set()

    def _change(self, change: informer.Change[str]) -> None:
        self.reported.append((change.kind.value, change.value))
        self._news.set()


@contextlib.asynccontextmanager
async def running(env: Env) -> AsyncIterator[None]:
    task = asyncio.create_task(env.mirror.run())
    try:
        await env.until(lambda: env.mirror.synced)
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


@pytest.fixture
async def env(tenant: Tenant) -> AsyncIterator[Env]:
    async with tenant.client() as api:
        yield Env(tenant, api)


async def test_existing_objects_are_reported_by_page_and_then_changes(env: Env) -> None:
    for name in "abcde":
        await env.create(name)
    async with running(env):
        assert env.reported == [("appeared", f"{name}: red") for name in "abcde"]
        assert sorted(env.mirror.items().values()) == [f"{name}: red" for name in "abcde"]
        await env.paint("a", "blue")
        await env.delete("b")
        await env.until(lambda: ("gone", "b: red") in env.reported)
        assert env.reported[5:] == [("changed", "a: blue"), ("gone", "b: red")]


async def test_irrelevant_change_is_not_reported(env: Env) -> None:
    async with running(env):
        await env.create("a", color=None)
        await env.create("b")
        await env.api.patch(f"{env.pods}/b", {"metadata": {"annotations": {"x": "1"}}})
        await env.paint("b", "blue")
        await env.until(lambda: ("changed", "b: blue") in env.reported)
        assert env.reported == [("appeared", "b: red"), ("changed", "b: blue")]


async def test_object_that_no_longer_belongs_is_gone(env: Env) -> None:
    async with running(env):
        await env.create("a")
        await env.paint("a", None)
        await env.until(lambda: len(env.reported) == 2)
        assert env.reported == [("appeared", "a: red"), ("gone", "a: red")]


async def test_invalid_object_keeps_its_last_value(env: Env) -> None:
    await env.create("a")
    async with running(env):
        await env.paint("a", "unheard-of")
        await env.create("b")
        await env.until(lambda: ("appeared", "b: red") in env.reported)
        await env.server.forget_history()
        env.server.cut_watches()  # so that it lists again
        await env.create("c")
        await env.until(lambda: ("appeared", "c: red") in env.reported)
        assert sorted(env.mirror.items().values()) == ["a: red", "b: red", "c: red"]
        assert not [each for each in env.reported if each[0] == "gone"]


@pytest.mark.parametrize("history", ["remembered", "forgotten"])
async def test_after_an_outage_only_differences_are_reported(env: Env, history: str) -> None:
    for name in "abc":
        await env.create(name)
    async with running(env):
        env.reported.clear()
        await env.server.stop()
        await env.until(lambda: env.reports[-1].state is ComponentState.DEGRADED)
        assert len(env.mirror.items()) == 3
        assert env.mirror.synced
        await env.server.start()
        await env.delete("a")
        await env.paint("b", "blue")
        if history == "forgotten":
            await env.server.forget_history()
        await env.until(lambda: env.reports[-1].state is ComponentState.READY and len(env.reported) >= 2)
        assert sorted(env.reported) == [("changed", "b: blue"), ("gone", "a: red")]


async def test_truncated_list_reports_no_deletions(env: Env) -> None:
    for name in "abcde":
        await env.create(name)
    async with running(env):
        env.reported.clear()
        env.server.fail_next(2, status=410, path="continue=")
        await env.server.forget_history()
        env.server.cut_watches()  # so that it lists again
        await env.create("f")
        await env.until(lambda: ("appeared", "f: red") in env.reported)
        assert env.reported == [("appeared", "f: red")]


async def test_it_can_run_again_and_is_not_synced_in_between(env: Env) -> None:
    await env.create("a")
    async with running(env):
        pass
    assert not env.mirror.synced
    await env.delete("a")
    await env.create("b")
    async with running(env):
        assert env.reported == [("appeared", "a: red"), ("gone", "a: red"), ("appeared", "b: red")]


async def test_unsubscribed_listener_receives_nothing(env: Env) -> None:
    heard: list[informer.Change[str]] = []
    unsubscribe = env.mirror.subscribe(heard.append)
    await env.create("a")
    async with running(env):
        unsubscribe()
        await env.create("b")
        await env.until(lambda: len(env.reported) == 2)
    assert [change.value for change in heard] == ["a: red"]


class EndsAtOnce:
    """A server that lists these, and ends each watch at once."""

    def __init__(self, *items: Any) -> None:
        self.watches = 0
        self._items = items

    async def pages(self, _: str, *, project: client.Project, **__: object) -> AsyncIterator[client.Listing]:
        yield client.Listing([*map(project, self._items)], "1")

    async def watch(self, _: str, **__: object) -> AsyncIterator[object]:
        self.watches += 1
        if self.watches < 0:
            yield object()


class Counted(aio.Backoff):
    """Count its waits, which take no time; after some it blocks."""

    def __init__(self, *, at_most: int) -> None:
        super().__init__()
        self.waits = 0
        self.enough = asyncio.Event()
        self._at_most = at_most

    async def wait(self) -> None:
        self.waits += 1
        if self.waits >= self._at_most:
            self.enough.set()
            await asyncio.Event().wait()


async def run_for_a_while(server: EndsAtOnce, backoff: Counted) -> informer.Informer[str]:
    api: Any = server
    quiet = informer.Informer(api=api, path=PODS, reduce=color, report=lambda _: None, backoff=backoff)
    task = asyncio.create_task(quiet.run())
    async with asyncio.timeout(60):
        await backoff.enough.wait()
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    return quiet


async def test_server_that_ends_watches_at_once_is_not_overloaded() -> None:
    server, backoff = EndsAtOnce(), Counted(at_most=5)
    await run_for_a_while(server, backoff)
    assert server.watches == backoff.waits


@pytest.mark.parametrize("odd", [{}, {"metadata": None}, {"metadata": {"name": "x"}}], ids=repr)
async def test_object_without_uid_hides_nothing_else(odd: Json) -> None:
    known = {"metadata": {"name": "a", "uid": "1", "labels": {"color": "red"}}}
    found = await run_for_a_while(EndsAtOnce(odd, known), Counted(at_most=1))
    assert found.items() == {"1": "a: red"}


async def test_internal_error_keeps_the_object_and_continues(env: Env, monkeypatch: pytest.MonkeyPatch) -> None:
    reduce = env.mirror._reduce

    def reduced(pod: Json) -> str | None:
        if "broken" in (pod["metadata"].get("labels") or {}).values():
            raise IndexError
        return reduce(pod)

    monkeypatch.setattr(env.mirror, "_reduce", reduced)
    await env.create("a")
    await env.create("x", color="broken")
    async with running(env):
        await env.paint("a", "broken")
        await env.create("b")
        await env.until(lambda: ("appeared", "b: red") in env.reported)
        assert sorted(env.mirror.items().values()) == ["a: red", "b: red"]


async def test_failing_listener_still_receives_later_changes(env: Env) -> None:
    heard = []

    def fails(change: informer.Change[str]) -> None:
        heard.append(change.value)
        if change.value == "a: red":
            raise IndexError

    env.mirror.subscribe(fails)
    env.mirror._listeners.reverse()
    async with running(env):
        await env.create("a")
        await env.create("b")
        await env.until(lambda: ("appeared", "b: red") in env.reported)
    assert ("appeared", "a: red") in env.reported
    assert heard == ["a: red", "b: red"]


def heavy(name: str, *, bytes_: int = 900, namespace: str = "a") -> Json:
    return {"metadata": {"name": name, "uid": name, "namespace": namespace}, "spec": "x" * bytes_}


class Written:
    """A server whose collection a test sets, listed again after each watch."""

    def __init__(self, *items: Json) -> None:
        self.items = list(items)
        self.events: asyncio.Queue[watch_protocol.WatchEvent | None] = asyncio.Queue()
        self.lists = 0

    async def pages(self, _: str, *, project: client.Project, **__: object) -> AsyncIterator[client.Listing]:
        self.lists += 1
        yield client.Listing([*map(project, self.items)], "1")

    async def watch(self, _: str, *, project: client.Project, **__: object) -> AsyncIterator[watch_protocol.WatchEvent]:
        while (event := await self.events.get()) is not None:
            yield watch_protocol.WatchEvent(event.type, project(event.object), "2")


class Bounded:
    """An informer that keeps 1000 bytes of an object, 3000 of a namespace and 4000 of all; of the rest ``bare``."""

    def __init__(self, server: Written) -> None:
        self.server = server
        self.reported: list[int] = []
        self._news = asyncio.Event()
        api: Any = server
        self.mirror: informer.Informer[str] = informer.Informer(
            api=api,
            path=PODS,
            reduce=lambda obj: str(obj["spec"]),
            report=lambda _: None,
            backoff=aio.Backoff(first=0.01, limit=0.01),
            bounds=shares.Bounds(bare=lambda _: "bare", one=1000, namespace=3000, total=4000, on_bare_count=self._tell),
        )

    def _tell(self, count: int) -> None:
        self.reported.append(count)
        self._news.set()

    async def until(self, predicate: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not predicate():
                self._news.clear()
                await self._news.wait()

    def whole(self) -> set[str]:
        return {uid for uid, value in self.mirror.items().items() if value != "bare"}

    def send(self, kind: watch_protocol.EventType, obj: Json) -> None:
        self.server.events.put_nowait(watch_protocol.WatchEvent(kind, obj))


@pytest.fixture
async def bounded() -> AsyncIterator[Bounded]:
    items = [heavy(str(number)) for number in range(5)]
    found = Bounded(Written(heavy("huge", bytes_=5000), *items, heavy("other", namespace="b")))
    task = asyncio.create_task(found.mirror.run())
    try:
        await found.until(lambda: found.mirror.synced)
        yield found
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def test_kept_size_per_object_and_namespace_is_bounded(bounded: Bounded) -> None:
    assert bounded.whole() == {"0", "1", "2", "other"}
    assert bounded.mirror.items().keys() == {"0", "1", "2", "3", "4", "huge", "other"}
    assert bounded.reported[-1] == 3
    bounded.send(watch_protocol.EventType.MODIFIED, heavy("other", bytes_=5000, namespace="b"))
    await bounded.until(lambda: bounded.reported[-1] == 4)
    assert bounded.whole() == {"0", "1", "2"}


async def test_largest_namespace_gives_up_its_newest_objects_when_listed(bounded: Bounded) -> None:
    more = [heavy("other", namespace="b"), heavy("another", namespace="b"), heavy("third", namespace="c")]
    bounded.server.items = [*(heavy(str(number)) for number in range(3)), *more]
    with capture_logs() as logs:
        bounded.send(watch_protocol.EventType.DELETED, heavy("0"))
        bounded.server.events.put_nowait(None)
        await bounded.until(lambda: "third" in bounded.mirror.items())
    assert bounded.whole() == {"0", "other", "another", "third"}
    assert bounded.reported[-1] == 2
    assert not [line for line in logs if line["event"] == "informer.too_large" and line["namespace"] != "a"]


async def test_largest_namespace_gives_up_its_newest_object_in_a_watch(bounded: Bounded) -> None:
    changes: list[informer.Change[str]] = []
    bounded.mirror.subscribe(changes.append)
    bounded.send(watch_protocol.EventType.ADDED, heavy("third", namespace="c"))
    await bounded.until(lambda: "third" in bounded.mirror.items())
    assert bounded.whole() == {"0", "1", "other", "third"}
    assert [(each.kind.value, each.uid) for each in changes] == [("appeared", "third"), ("changed", "2")]


async def test_object_whose_kept_part_has_not_changed_is_not_weighed_again(
    bounded: Bounded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Most changes of pods are of parts that are not kept, and come by the thousand after a round."""
    weighed: list[str] = []
    weigh = shares.weight

    def weight(value: str, *, enough: float) -> int:
        weighed.append(value)
        return weigh(value, enough=enough)

    monkeypatch.setattr(shares, "weight", weight)
    before = bounded.whole()
    assert "other" in before
    for _ in range(3):
        bounded.send(watch_protocol.EventType.MODIFIED, heavy("other", namespace="b"))
    bounded.reported.clear()
    await bounded.until(lambda: len(bounded.reported) == 3)
    assert (weighed, bounded.whole()) == ([], before)
    bounded.send(watch_protocol.EventType.MODIFIED, heavy("other", namespace="b", bytes_=901))
    await bounded.until(lambda: bool(weighed))


async def test_excess_is_logged_once_per_namespace() -> None:
    found = Bounded(Written(*(heavy(str(number), bytes_=2000) for number in range(3)), heavy("b", namespace="b")))
    with capture_logs() as logs:
        task = asyncio.create_task(found.mirror.run())
        await found.until(lambda: found.mirror.synced)
        task.cancel()
    assert [line["namespace"] for line in logs if line["event"] == "informer.too_large"] == ["a"]


async def test_bare_object_is_kept_whole_once_there_is_room(bounded: Bounded) -> None:
    bounded.server.items = [heavy("1"), heavy("3")]
    for gone in ("0", "2"):
        bounded.send(watch_protocol.EventType.DELETED, heavy(gone))
    bounded.server.events.put_nowait(None)  # the watch ends normally
    await bounded.until(lambda: bounded.reported[-1] == 0)
    assert bounded.whole() == {"1", "3"}
    assert bounded.server.lists == 2
