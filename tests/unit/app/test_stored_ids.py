"""Sets of containers across restarts of the agent."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from kubemend.agent.app.stored_ids import BEATING, EXITS_HANDLED, StoredIds
from kubemend.agent.clients.journal.store import Store
from kubemend.agent.model.workloads import ContainerId


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    store = await Store.open(tmp_path / "state.db")
    yield store
    await store.close()


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


async def test_failing_disk_is_logged(tmp_path: Path) -> None:
    store = await Store.open(tmp_path / "other.db")
    store._connection.execute("DROP TABLE documents")
    await StoredIds(store, BEATING).save(frozenset({ContainerId("a")}))
    assert await StoredIds(store, BEATING).load() == frozenset()
    await store.close()
