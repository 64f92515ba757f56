"""What an agent leaves to the next one: it outlives the agent, and is written only when it changes."""

import asyncio
import sqlite3
from pathlib import Path
from unittest import mock

import pytest

from kubemend.agent.app import agent
from kubemend.agent.app.persisted_state import (
    BEATING,
    EXITS_HANDLED,
    PROGRAMS,
    BootIdError,
    SourceState,
    StateCheck,
    StoredIds,
    StoredNumbers,
    boot_id,
    watched_since,
)
from kubemend.agent.clients.journal.store import JournalError, Store
from kubemend.agent.model.workloads import ContainerId
from kubemend.common.components import ComponentState, ComponentStatus


async def test_saved_text_is_loaded_by_next_agent(store: Store) -> None:
    memories = SourceState(store)
    memories.keep("nics", "two")
    assert await SourceState(store).load("nics") is None
    await memories.write()
    assert await SourceState(store).load("nics") == "two"


async def test_only_changed_texts_are_written(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []
    save = store.save

    async def counted(key: str, value: str) -> None:
        written.append(value)
        await save(key, value)

    monkeypatch.setattr(store, "save", counted)
    memories = SourceState(store)
    for text in ("one", "one", "two"):
        memories.keep("nics", text)
        await memories.write()
        await memories.write()
    assert written == ["one", "two"]


async def test_failed_write_is_retried(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    save, full = store.save, True

    async def sometimes(key: str, value: str) -> None:
        if full:
            raise JournalError("disk full")
        await save(key, value)

    monkeypatch.setattr(store, "save", sometimes)
    memories = SourceState(store)
    memories.keep("nics", "one")
    await memories.write()
    full = False
    await memories.write()
    assert await memories.load("nics") == "one"


async def test_saved_ids_are_loaded_under_their_key(store: Store) -> None:
    assert await StoredIds(store, BEATING).load() == frozenset()
    beating = frozenset(map(ContainerId, ("a", "b")))
    await StoredIds(store, BEATING).save(beating)
    assert await StoredIds(store, BEATING).load() == beating
    assert await StoredIds(store, EXITS_HANDLED).load() == frozenset()


@pytest.mark.parametrize("text", ["", "{", "7"])
async def test_unreadable_ids_load_as_none(store: Store, text: str) -> None:
    await store.save(BEATING, text)
    assert await StoredIds(store, BEATING).load() == frozenset()


async def test_saved_numbers_are_loaded_by_the_next_agent(store: Store) -> None:
    assert await StoredNumbers(store, PROGRAMS).load() == {}
    numbers = {ContainerId("b"): 1, ContainerId("a"): 2}
    await StoredNumbers(store, PROGRAMS).save(numbers)
    assert await StoredNumbers(store, PROGRAMS).load() == numbers


@pytest.mark.parametrize("text", ["", "{", "7", "[]", '{"a": "x"}', '{"a": null}'])
async def test_unreadable_numbers_load_as_none(store: Store, text: str) -> None:
    await store.save(PROGRAMS, text)
    assert await StoredNumbers(store, PROGRAMS).load() == {}


async def test_failing_disk_is_logged(store: Store) -> None:
    store._connection.execute("DROP TABLE documents")
    await StoredNumbers(store, PROGRAMS).save({ContainerId("a"): 1})
    assert await StoredNumbers(store, PROGRAMS).load() == {}
    await StoredIds(store, BEATING).save(frozenset({ContainerId("a")}))
    assert await StoredIds(store, BEATING).load() == frozenset()


@pytest.mark.parametrize("text", ["", "{", "[]", "7", '{"boot_id": "b"}', '{"boot_id": "b", "since": "x"}'])
async def test_unreadable_time_of_the_first_agent_counts_as_now(store: Store, text: str) -> None:
    await store.save("first-start", text)
    now = await watched_since(store, boot_id="b")
    assert now > 0
    assert await watched_since(store, boot_id="b") == now


async def test_state_file_that_cannot_be_written_is_reported_until_it_can(store: Store) -> None:
    reported = asyncio.Queue[ComponentStatus]()
    check = StateCheck(store, report=reported.put_nowait, period=0.01)
    running = asyncio.create_task(check.run())
    async with asyncio.timeout(60):
        assert (await reported.get()).state is ComponentState.READY
        store._connection.execute("PRAGMA query_only = ON")  # as on a file system that is read-only
        while (status := await reported.get()).state is ComponentState.READY:
            pass
        assert status.state is ComponentState.DEGRADED
        assert str(store._path) in status.message
        assert "free disk space" in status.hint
        store._connection.execute("PRAGMA query_only = OFF")
        while (await reported.get()).state is not ComponentState.READY:
            pass
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_disk_that_hangs_is_reported_and_the_next_write_waits_for_it(store: Store) -> None:
    with sqlite3.connect(store._path, isolation_level=None) as other:
        other.execute("BEGIN IMMEDIATE")  # every write waits for the end of this one
        status = await StateCheck(store, report=lambda _: None, deadline=0.05).check()
        assert status.state is ComponentState.DEGRADED
        assert "not ended within 0.05 s" in status.message
        other.execute("ROLLBACK")
        assert (await StateCheck(store, report=lambda _: None, deadline=60.0).check()).state is ComponentState.READY


def test_boot_id_is_read_from_the_nodes_proc(tmp_path: Path) -> None:
    file = tmp_path / "sys" / "kernel" / "random" / "boot_id"
    file.parent.mkdir(parents=True)
    file.write_text("34eb48e2-270a-4075-b5a4-94aac223f2dd\n")
    assert boot_id(tmp_path) == "34eb48e2-270a-4075-b5a4-94aac223f2dd"


def test_wrong_path_of_proc_is_refused_in_one_line_with_a_hint(tmp_path: Path) -> None:
    with pytest.raises(BootIdError, match=r"boot_id: No such file or directory; pass the host's /proc with --proc$"):
        boot_id(tmp_path)


async def test_hub_is_left_although_the_disk_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent, "_STEP", 0.05)
    left = asyncio.Event()
    runtime = mock.Mock(drained=mock.AsyncMock(), leave=mock.AsyncMock(side_effect=lambda **_: left.set()))
    sources = mock.Mock(remember=asyncio.Event().wait)
    async with asyncio.timeout(60):
        await agent._wind_down(runtime, reporter=mock.Mock(flush=mock.AsyncMock()), sources=sources, grace=0.05)
    assert left.is_set()
