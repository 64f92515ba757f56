"""The agent's journal is read from outside, while the agent has it open, and after that."""

import sqlite3
import time
from pathlib import Path

from bench.journal import Journal
from kubemend.agent.clients.journal.store import Store
from kubemend.agent.model.workloads import ContainerId
from tests.unit.restart import builders


async def test_missing_journal_is_empty(tmp_path: Path) -> None:
    journal = Journal.of(tmp_path)
    journal.age_restarts()
    assert journal.entries() == ()
    sqlite3.connect(journal.path).close()  # a starting agent has got this far
    assert journal.entries() == ()


async def test_intents_are_read_while_the_agent_writes(tmp_path: Path) -> None:
    journal = Journal.of(tmp_path)
    store = await Store.open(journal.path)
    first, second = builders.intent(id="r1", created_at=1.0), builders.intent(id="r2", created_at=2.0)
    await store.begin(first)
    await store.begin(second)
    await store.finish("r1", outcome="Swapped", now=3.0)
    assert [(entry.intent, entry.outcome) for entry in journal.entries()] == [(first, "Swapped"), (second, None)]
    assert [entry.intent for entry in journal.open_entries()] == [second]
    assert [entry.intent for entry in journal.entries(since=1.5)] == [second]
    await store.begin(builders.intent(id="r3", old=ContainerId("other"), created_at=4.0))
    assert len(journal.open_entries()) == 2
    await store.close()


async def test_aged_restarts_no_longer_count(tmp_path: Path) -> None:
    now = time.time()
    journal = Journal.of(tmp_path)
    store = await Store.open(journal.path)
    await store.begin(builders.intent(created_at=now))
    await store.close()
    journal.age_restarts()
    store = await Store.open(journal.path)
    assert await store.begun_since(now - 60.0) == ()
    (begun,) = await store.begun_since(now - 7200.0)
    assert begun.at == begun.fault_at == now - 3600.0
    assert journal.open_entries()[0].intent.created_at == now, "the intent itself is as it was"
    await store.close()
