"""Writes that wait for the disk together: each is durable when it returns, and fails separately."""

import asyncio
import sqlite3
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from kubemend.agent.clients.journal.transactions import Transactions
from tests import eventually


class Counting:
    """A connection that counts its commits, and can delay the next work."""

    def __init__(self, path: Path) -> None:
        self.connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self.connection.execute("CREATE TABLE notes (text TEXT NOT NULL UNIQUE)")
        self.commits = 0

    @property
    def in_transaction(self) -> bool:
        return self.connection.in_transaction

    def execute(self, statement: str, *arguments: Any) -> sqlite3.Cursor:
        self.commits += statement == "COMMIT"
        return self.connection.execute(statement, *arguments)


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Counting]:
    counting = Counting(tmp_path / "notes.db")
    yield counting
    counting.connection.close()


@pytest.fixture
def transactions(database: Counting) -> Iterator[Transactions]:
    with ThreadPoolExecutor(max_workers=1) as thread:
        yield Transactions(database, thread=thread)  # type: ignore[arg-type]


def note(text: str) -> Any:
    return lambda connection: connection.execute("INSERT INTO notes VALUES (?)", (text,))


def notes(connection: sqlite3.Connection) -> list[str]:
    return [text for (text,) in connection.execute("SELECT text FROM notes ORDER BY rowid")]


async def test_waiting_work_is_committed_together(transactions: Transactions, database: Counting) -> None:
    is_at_it, may_go_on = threading.Event(), threading.Event()

    def slow(_: sqlite3.Connection) -> None:
        is_at_it.set()
        may_go_on.wait(60.0)

    first = asyncio.create_task(transactions.run(slow))
    await eventually.true(is_at_it.is_set)
    others = [asyncio.create_task(transactions.run(note(f"{number}"))) for number in range(20)]
    await asyncio.sleep(0)  # each has begun
    may_go_on.set()
    await asyncio.gather(first, *others)
    assert await transactions.run(notes) == [f"{number}" for number in range(20)]
    assert database.commits == 3, "the first, all that waited for it, and the query about them"


async def test_failed_work_rolls_back_only_itself(transactions: Transactions) -> None:
    def half(connection: sqlite3.Connection) -> None:
        connection.execute("INSERT INTO notes VALUES ('half')")
        connection.execute("INSERT INTO notes VALUES (NULL)")

    results = await asyncio.gather(
        transactions.run(note("before")),
        transactions.run(half),
        transactions.run(note("after")),
        return_exceptions=True,
    )
    assert isinstance(results[1], sqlite3.IntegrityError)
    assert await transactions.run(notes) == ["before", "after"]


async def test_disk_failure_fails_all(transactions: Transactions, database: Counting) -> None:
    database.connection.execute("PRAGMA query_only = ON")
    results = await asyncio.gather(transactions.run(note("one")), transactions.run(note("two")), return_exceptions=True)
    assert all(isinstance(result, sqlite3.OperationalError) for result in results)


async def test_abandoned_work_is_still_done(transactions: Transactions) -> None:
    task = asyncio.create_task(transactions.run(note("late")))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert await transactions.run(notes) == ["late"]


async def test_failed_commit_does_not_block_later_work(transactions: Transactions, database: Counting) -> None:
    database.connection.executescript(
        "PRAGMA foreign_keys = ON;CREATE TABLE about (text TEXT REFERENCES notes (text) DEFERRABLE INITIALLY DEFERRED);"
    )
    with pytest.raises(sqlite3.IntegrityError):  # detected at the commit, which leaves the transaction open
        await transactions.run(lambda connection: connection.execute("INSERT INTO about VALUES ('nothing')"))
    await transactions.run(note("next"))
    assert notes(database.connection) == ["next"]
