"""The heartbeat state across restarts of the agent."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from kubemend.agent.app.heartbeat_state import HeartbeatState
from kubemend.agent.clients.journal.store import Store
from kubemend.agent.model.workloads import ContainerId


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    store = await Store.open(tmp_path / "state.db")
    yield store
    await store.close()


async def test_saved_state_is_loaded(store: Store) -> None:
    assert await HeartbeatState(store).load() == frozenset()
    beating = frozenset(map(ContainerId, ("a", "b")))
    await HeartbeatState(store).save(beating)
    assert await HeartbeatState(store).load() == beating


@pytest.mark.parametrize("text", ["", "{", "7"])
async def test_unreadable_state_loads_as_empty(store: Store, text: str) -> None:
    await store.save("beating", text)
    assert await HeartbeatState(store).load() == frozenset()


async def test_failing_disk_does_not_end_the_watch(tmp_path: Path) -> None:
    store = await Store.open(tmp_path / "other.db")
    store._connection.execute("DROP TABLE documents")
    await HeartbeatState(store).save(frozenset({ContainerId("a")}))
    assert await HeartbeatState(store).load() == frozenset()
    await store.close()
