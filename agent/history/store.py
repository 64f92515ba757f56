"""The agent's memory on disk: one SQLite file in the state directory.

An intent is on the disk (``synchronous=FULL``) before ``begin`` returns, so the first act never comes before it.
SQLite blocks, so it runs in a thread of its own; the disk is local and each call is one small transaction.
"""

import asyncio
import contextlib
import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Self, TypeVar

from agent.history import codec
from agent.model.workloads import ContainerRef
from agent.restart import intents

_SCHEMA_VERSION = 1
_SCHEMA = """
CREATE TABLE IF NOT EXISTS intents (
    id TEXT PRIMARY KEY, body TEXT NOT NULL, opened_at REAL NOT NULL, closed_at REAL, outcome TEXT
);
CREATE INDEX IF NOT EXISTS open_intents ON intents (opened_at) WHERE closed_at IS NULL;
CREATE TABLE IF NOT EXISTS restarts (pod_uid TEXT NOT NULL, container TEXT NOT NULL, at REAL NOT NULL);
CREATE INDEX IF NOT EXISTS restarts_by_container ON restarts (pod_uid, container, at);
CREATE TABLE IF NOT EXISTS documents (key TEXT PRIMARY KEY, body TEXT NOT NULL);
"""
_KEEP_SECONDS = 7 * 24 * 3600.0

_T = TypeVar("_T")


class HistoryError(Exception):
    """The state file cannot be used; the text says where and what to do. Nothing is restarted without it."""


class Store:
    """Journal, budget history and documents (cursor, verdicts) in one file. Close it when done."""

    def __init__(self, *, connection: sqlite3.Connection, thread: ThreadPoolExecutor, path: Path) -> None:
        self._connection = connection
        self._thread = thread
        self._path = path

    @classmethod
    async def open(cls, path: Path) -> Self:
        """Open or create the file. Raises HistoryError."""
        thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="history")
        try:
            connection = await asyncio.get_running_loop().run_in_executor(thread, _connect, path)
        except (sqlite3.Error, OSError) as error:
            thread.shutdown(wait=False)
            raise HistoryError(
                f"cannot use the state file {path}: {error}; make its directory writable for the agent (--state-dir)"
            ) from error
        return cls(connection=connection, thread=thread, path=path)

    async def close(self) -> None:
        """Close the file and its thread."""
        await asyncio.get_running_loop().run_in_executor(self._thread, self._connection.close)
        self._thread.shutdown(wait=True)

    async def begin(self, *begun: intents.AnyIntent) -> None:
        """Write the intents of one restart to disk and count them against the budgets. Returns once it is durable.

        Raises HistoryError (disk full, read-only): then nothing may be done.
        """

        def write(connection: sqlite3.Connection) -> None:
            for intent in begun:
                connection.execute(
                    "INSERT INTO intents (id, body, opened_at) VALUES (?, ?, ?)",
                    (intent.id, codec.intent_to_json(intent), intent.created_at),
                )
                names = sorted(intent.names) if isinstance(intent, intents.PodIntent) else [intent.target.name]
                connection.executemany(
                    "INSERT INTO restarts (pod_uid, container, at) VALUES (?, ?, ?)",
                    [(intent.target.pod.uid, name, intent.created_at) for name in names],
                )

        await self._do(write)

    async def finish(self, intent_id: str, *, outcome: str, now: float) -> None:
        """Close an intent. Losing this to a crash is harmless: a replay finds it done. Raises HistoryError."""

        def write(connection: sqlite3.Connection) -> None:
            connection.execute("UPDATE intents SET closed_at = ?, outcome = ? WHERE id = ?", (now, outcome, intent_id))
            connection.execute("DELETE FROM intents WHERE closed_at < ?", (now - _KEEP_SECONDS,))
            connection.execute("DELETE FROM restarts WHERE at < ?", (now - _KEEP_SECONDS,))

        await self._do(write)

    async def unfinished(self) -> tuple[intents.AnyIntent, ...]:
        """Return the intents that were begun and never closed, oldest first.

        Raises HistoryError, also when one of them is of another agent's making: nothing is begun on top of that.
        """
        rows = await self._do(
            lambda connection: connection.execute(
                "SELECT body FROM intents WHERE closed_at IS NULL ORDER BY opened_at"
            ).fetchall()
        )
        try:
            return tuple(codec.intent_from_json(body) for (body,) in rows)
        except (KeyError, ValueError) as error:
            raise HistoryError(
                f"cannot read an open intent in {self._path}: {error!r}; run the newer agent that wrote it once more"
            ) from error

    async def restarts_of(self, container: ContainerRef, *, since: float) -> tuple[float, ...]:
        """Return the Unix times of a container's restarts since then, oldest first. Raises HistoryError."""
        rows = await self._do(
            lambda connection: connection.execute(
                "SELECT at FROM restarts WHERE pod_uid = ? AND container = ? AND at >= ? ORDER BY at",
                (container.pod.uid, container.name, since),
            ).fetchall()
        )
        return tuple(at for (at,) in rows)

    async def load(self, key: str) -> str | None:
        """Return a document, or None. Raises HistoryError."""
        row = await self._do(
            lambda connection: connection.execute("SELECT body FROM documents WHERE key = ?", (key,)).fetchone()
        )
        return None if row is None else row[0]

    async def save(self, key: str, body: str) -> None:
        """Write a document. Raises HistoryError."""
        await self._do(
            lambda connection: connection.execute(
                "INSERT INTO documents (key, body) VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET body = excluded.body",
                (key, body),
            )
        )

    async def _do(self, work: Callable[[sqlite3.Connection], _T]) -> _T:
        def in_transaction() -> _T:
            with _transaction(self._connection):
                return work(self._connection)

        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, in_transaction)
        except sqlite3.Error as error:
            raise HistoryError(
                f"cannot write the state file {self._path}: {error}; free disk space or mend --state-dir"
            ) from error


def _connect(path: Path) -> sqlite3.Connection:
    path.parent.mkdir(parents=True, exist_ok=True)
    connection = sqlite3.connect(path, timeout=5.0, isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version not in (0, _SCHEMA_VERSION):
        connection.close()
        raise sqlite3.DatabaseError(f"it has format {version}, this agent reads {_SCHEMA_VERSION}")
    connection.executescript(_SCHEMA)
    connection.execute(f"PRAGMA user_version = {_SCHEMA_VERSION}")
    return connection


@contextlib.contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")
