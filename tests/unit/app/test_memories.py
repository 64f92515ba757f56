"""What sources want to know again outlives the agent, and costs a write only when it changes."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from agent.app.memories import Memories
from agent.history.store import HistoryError, Store


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    opened = await Store.open(tmp_path / "state.db")
    yield opened
    await opened.close()


async def test_what_was_kept_is_known_to_the_next_agent(store: Store) -> None:
    memories = Memories(store)
    memories.keep("nics", "two")
    assert await Memories(store).load("nics") is None
    await memories.write()
    assert await Memories(store).load("nics") == "two"


async def test_only_what_has_changed_is_written(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []
    save = store.save

    async def counted(key: str, value: str) -> None:
        written.append(value)
        await save(key, value)

    monkeypatch.setattr(store, "save", counted)
    memories = Memories(store)
    for text in ("one", "one", "two"):
        memories.keep("nics", text)
        await memories.write()
        await memories.write()
    assert written == ["one", "two"]


async def test_a_disk_that_refuses_is_tried_again(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    save, full = store.save, True

    async def sometimes(key: str, value: str) -> None:
        if full:
            raise HistoryError("disk full")
        await save(key, value)

    monkeypatch.setattr(store, "save", sometimes)
    memories = Memories(store)
    memories.keep("nics", "one")
    await memories.write()
    full = False
    await memories.write()
    assert await memories.load("nics") == "one"
