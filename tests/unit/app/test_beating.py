"""Who beats, over restarts of the agent."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from agent.app.beating import StoredBeating
from agent.history.store import Store
from agent.model.workloads import ContainerId


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    store = await Store.open(tmp_path / "state.db")
    yield store
    await store.close()


async def test_what_was_saved_is_there_again(store: Store) -> None:
    assert await StoredBeating(store).load() == frozenset()
    beating = frozenset(map(ContainerId, ("a", "b")))
    await StoredBeating(store).save(beating)
    assert await StoredBeating(store).load() == beating


@pytest.mark.parametrize("text", ["", "{", "7"])
async def test_what_cannot_be_read_counts_as_nobody(store: Store, text: str) -> None:
    await store.save("beating", text)
    assert await StoredBeating(store).load() == frozenset()


async def test_a_disk_that_refuses_does_not_end_the_watch(tmp_path: Path) -> None:
    store = await Store.open(tmp_path / "other.db")
    store._connection.execute("DROP TABLE documents")
    await StoredBeating(store).save(frozenset({ContainerId("a")}))
    assert await StoredBeating(store).load() == frozenset()
    await store.close()
