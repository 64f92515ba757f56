"""Store the agent's state on disk: one SQLite file in the state directory.

An intent is on disk (``synchronous=FULL``) before ``begin`` returns, so the first action never precedes it. SQLite
blocks, so it runs in a thread of its own; the disk is local and each call is one small transaction.
"""

import asyncio
import sqlite3
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeVar

from kubemend.agent.clients.journal import codec
from kubemend.agent.clients.journal.transactions import Transactions
from kubemend.agent.model import rounds
from kubemend.agent.model.outcomes import Result
from kubemend.agent.model.workloads import ContainerRef, PodUid
from kubemend.agent.restart import intents
from kubemend.agent.restart.counts import Begun

FILE = "state.db"
"""The file's name in the state directory."""
SCHEMA_VERSION = 1
_SCHEMA = """
CREATE TABLE IF NOT EXISTS intents (
    id TEXT PRIMARY KEY, body TEXT NOT NULL, opened_at REAL NOT NULL, closed_at REAL, outcome TEXT
);
CREATE INDEX IF NOT EXISTS open_intents ON intents (opened_at) WHERE closed_at IS NULL;
CREATE INDEX IF NOT EXISTS closed_intents ON intents (closed_at) WHERE closed_at IS NOT NULL;
CREATE TABLE IF NOT EXISTS begun (
    pod_uid TEXT NOT NULL, containers TEXT NOT NULL, device TEXT, at REAL NOT NULL, fault_at REAL NOT NULL
);
CREATE INDEX IF NOT EXISTS begun_by_time ON begun (at);
CREATE TABLE IF NOT EXISTS replays (
    intent TEXT PRIMARY KEY, begun INTEGER NOT NULL DEFAULT 0, failed INTEGER NOT NULL DEFAULT 0, reason TEXT
);
CREATE TABLE IF NOT EXISTS documents (key TEXT PRIMARY KEY, body TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS rounds (
    round TEXT NOT NULL, pod_uid TEXT NOT NULL, body TEXT NOT NULL, PRIMARY KEY (round, pod_uid)
);
"""
_KEEP_SECONDS = 7 * 24 * 3600.0
_EPOCH = "epoch"
REMOVE = "remove the file, which loses the restart history and the verdicts"
_HINTS = dict.fromkeys((sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR), "free disk space or fix --state-dir")
_HINTS |= dict.fromkeys((sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB), REMOVE)
QUARANTINED = "Quarantined"
"""The outcome of an intent that is no longer replayed, because its replay fails."""
_MOST_FAILED = 2
"""Maximum number of failed replays of one intent."""
_MOST_BEGUN = 5
"""Maximum number of replays of one intent in a row during which the agent dies. Most such deaths have other causes."""
_NO_EPOCH_ABOVE = 2**63 - 1  # SQLite's largest integer
COUNT_SECONDS = 24 * 3600.0
"""How long restarts count at most: no budget has a longer window."""

_T = TypeVar("_T")


class JournalError(Exception):
    """The state file cannot be used; the text has the path and the hint. Nothing is restarted without it."""


@dataclass(frozen=True, slots=True)
class UnreadableIntent:
    """An open intent that cannot be parsed. ``target`` is None if not even that can be read."""

    id: str
    target: ContainerRef | None
    reason: str


@dataclass(frozen=True, slots=True)
class UnreadableRecord:
    """A record of a member in a round that cannot be parsed. ``key`` has the round and the pod."""

    key: tuple[str, PodUid]
    reason: str


class Store:
    """Journal, budget history and documents (cursor, verdicts) in one file. Close it when done."""

    def __init__(self, *, connection: sqlite3.Connection, thread: ThreadPoolExecutor, path: Path) -> None:
        self._connection = connection
        self._thread = thread
        self._transactions = Transactions(connection, thread=thread)
        self._path = path

    @classmethod
    async def open(cls, path: Path) -> Self:
        """Open or create the file. Raises JournalError."""
        thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="journal")
        try:
            connection = await asyncio.get_running_loop().run_in_executor(thread, _connect, path)
        except (JournalError, sqlite3.Error, OSError) as error:
            thread.shutdown(wait=False)
            if isinstance(error, JournalError):
                raise
            raise _error("use", path, error, hint="make its directory writable for the agent (--state-dir)") from error
        return cls(connection=connection, thread=thread, path=path)

    async def close(self) -> None:
        """Close the file and its thread."""
        await asyncio.get_running_loop().run_in_executor(self._thread, self._connection.close)
        self._thread.shutdown(wait=True)

    async def begin(
        self,
        *begun: intents.AnyIntent,
        counted: Begun | None = None,
        instead_of: Sequence[Begun] = (),
        record: rounds.Record | None = None,
        takes_over: Collection[str] = (),
    ) -> None:
        """Write the intents of one restart to disk and count them against the budgets. Returns once it is durable.

        ``counted`` None: the count is derived from the intents, for no device. Restarts in ``instead_of`` no longer
        count. ``record`` is set if the restart is a member's part in a round. ``takes_over`` are the intents that it
        closes, because their strategy has stepped down. Raises JournalError (disk full, read-only): then nothing may be
        done.
        """
        count = counted if counted is not None else _counted(begun)

        def write(connection: sqlite3.Connection) -> None:
            connection.executemany(
                "INSERT INTO intents (id, body, opened_at) VALUES (?, ?, ?)",
                [(intent.id, codec.intent_to_json(intent), intent.created_at) for intent in begun],
            )
            connection.execute(
                "INSERT INTO begun (pod_uid, containers, device, at, fault_at) VALUES (?, ?, ?, ?, ?)", _row(count)
            )
            _uncount(connection, instead_of)
            if record is not None:
                _put_record(connection, record)
            for intent_id in takes_over:
                _close(connection, intent_id, outcome=Result.STEPPED_DOWN.value, now=count.at)

        await self._do(write)

    async def finish(self, intent_id: str, *, outcome: str, now: float) -> None:
        """Close an intent. Losing this to a crash is harmless: a replay finds it done. Raises JournalError."""

        def write(connection: sqlite3.Connection) -> None:
            _close(connection, intent_id, outcome=outcome, now=now)
            connection.execute("DELETE FROM intents WHERE closed_at < ?", (now - _KEEP_SECONDS,))
            connection.execute("DELETE FROM replays WHERE intent NOT IN (SELECT id FROM intents)")
            # Times that far in the future were recorded before the clock was set back.
            connection.execute("DELETE FROM begun WHERE at < ? OR at > ?", (now - COUNT_SECONDS, now + COUNT_SECONDS))

        await self._do(write)

    async def uncount(self, *cancelled: Begun) -> None:
        """Count restarts no longer that have changed nothing. Raises JournalError."""
        await self._do(lambda connection: _uncount(connection, cancelled))

    async def replay_begins(self, intent_id: str) -> bool:
        """Record on disk that an intent is about to be replayed; return False if it was begun too often.

        Raises JournalError.
        """

        def write(connection: sqlite3.Connection) -> bool:
            connection.execute("INSERT OR IGNORE INTO replays (intent) VALUES (?)", (intent_id,))
            connection.execute("UPDATE replays SET begun = begun + 1 WHERE intent = ?", (intent_id,))
            return _replays(connection, intent_id)[0] <= _MOST_BEGUN

        return await self._do(write)

    async def replay_ended(self, intent_id: str, *, failed: bool) -> bool:
        """Record that this agent has survived the replay; return whether the replay has failed too often.

        Raises JournalError.
        """

        def write(connection: sqlite3.Connection) -> bool:
            connection.execute(
                "UPDATE replays SET begun = 0, failed = failed + ? WHERE intent = ?", (int(failed), intent_id)
            )
            return _replays(connection, intent_id)[1] >= _MOST_FAILED

        return await self._do(write)

    async def quarantine(self, intent_id: str, *, reason: str, now: float) -> None:
        """Close an intent that cannot be replayed. It is kept for a week, with ``reason``. Raises JournalError."""

        def write(connection: sqlite3.Connection) -> None:
            connection.execute("INSERT OR IGNORE INTO replays (intent) VALUES (?)", (intent_id,))
            connection.execute("UPDATE replays SET reason = ? WHERE intent = ?", (reason, intent_id))
            connection.execute(
                "UPDATE intents SET closed_at = ?, outcome = ? WHERE id = ?", (now, QUARANTINED, intent_id)
            )

        await self._do(write)

    async def quarantined(self) -> frozenset[str]:
        """Return the ids of the intents that are kept and not replayed. Raises JournalError."""
        rows = await self._do(
            lambda connection: connection.execute("SELECT id FROM intents WHERE outcome = ?", (QUARANTINED,)).fetchall()
        )
        return frozenset(intent_id for (intent_id,) in rows)

    async def unfinished(self) -> tuple[intents.AnyIntent, ...]:
        """Return the intents that were begun and never closed, oldest first. Raises JournalError.

        Those that cannot be parsed are left out: see ``unreadable``.
        """
        parsed = [_intent(*row) for row in await self._open()]
        return tuple(each for each in parsed if not isinstance(each, UnreadableIntent))

    async def unreadable(self) -> tuple[UnreadableIntent, ...]:
        """Return the open intents that cannot be parsed. Raises JournalError."""
        parsed = [_intent(*row) for row in await self._open()]
        return tuple(each for each in parsed if isinstance(each, UnreadableIntent))

    async def _open(self) -> Sequence[tuple[str, bytes]]:
        return await self._do(
            lambda connection: connection.execute(
                "SELECT id, CAST(body AS BLOB) FROM intents WHERE closed_at IS NULL ORDER BY opened_at"
            ).fetchall()
        )

    async def begun_since(self, moment: float) -> tuple[Begun, ...]:
        """Return the restarts that were begun since a Unix time, oldest first. Raises JournalError.

        Those of which the pod or the time cannot be read are left out: see ``unreadable_counts``.
        """
        parsed = [codec.begun_from_row(*row)[0] for row in await self._counted_since(moment)]
        return tuple(each for each in parsed if each is not None)

    async def unreadable_counts(self, moment: float) -> tuple[str, ...]:
        """Return what of the restarts that were begun since a Unix time cannot be read. Raises JournalError."""
        return tuple(reason for row in await self._counted_since(moment) if (reason := codec.begun_from_row(*row)[1]))

    async def _counted_since(self, moment: float) -> Sequence[tuple[object, ...]]:
        return await self._do(
            lambda connection: connection.execute(
                "SELECT CAST(pod_uid AS BLOB), CAST(containers AS BLOB), at, fault_at, CAST(device AS BLOB) FROM begun"
                " WHERE at >= ? ORDER BY at",
                (moment,),
            ).fetchall()
        )

    async def note(self, *records: rounds.Record, gone: Collection[tuple[str, PodUid]] = ()) -> None:
        """Store the state of members in rounds, replacing previous records.

        Records in ``gone`` (by round and pod) are deleted. Raises JournalError.
        """

        def write(connection: sqlite3.Connection) -> None:
            connection.executemany("DELETE FROM rounds WHERE round = ? AND pod_uid = ?", gone)
            for record in records:
                _put_record(connection, record)

        await self._do(write)

    async def records(self) -> tuple[rounds.Record, ...]:
        """Return the records of members in rounds. Raises JournalError.

        Those that cannot be parsed are left out: see ``unreadable_records``.
        """
        parsed = [_record(*row) for row in await self._records()]
        return tuple(each for each in parsed if not isinstance(each, UnreadableRecord))

    async def unreadable_records(self) -> tuple[UnreadableRecord, ...]:
        """Return the records that cannot be parsed. Raises JournalError."""
        parsed = [_record(*row) for row in await self._records()]
        return tuple(each for each in parsed if isinstance(each, UnreadableRecord))

    async def _records(self) -> Sequence[tuple[str, str, bytes]]:
        return await self._do(
            lambda connection: connection.execute("SELECT round, pod_uid, CAST(body AS BLOB) FROM rounds").fetchall()
        )

    async def obeyed_epoch(self) -> int:
        """Return the highest epoch of a leader that was obeyed on this node, 0 at first, or if it cannot be read.

        Raises JournalError.
        """
        return int(await self._document(_EPOCH, of_type="INTEGER") or 0)

    async def obey(self, epoch: int, *, highest: int | None = None) -> None:
        """Record that a leader of this epoch is obeyed. The epoch never decreases, unless it exceeds ``highest``.

        Raises JournalError.
        """
        await self._do(
            lambda connection: connection.execute(
                "INSERT INTO documents (key, body) VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET body = excluded.body "
                "WHERE CAST(excluded.body AS INTEGER) > CAST(documents.body AS INTEGER) "
                "OR CAST(documents.body AS INTEGER) > ?",
                (_EPOCH, str(epoch), highest if highest is not None else _NO_EPOCH_ABOVE),
            )
        )

    async def load(self, key: str) -> str | None:
        """Return a document, or None. Raises JournalError. Bytes that are no text are replaced."""
        stored: bytes | None = await self._document(key, of_type="BLOB")
        return None if stored is None else stored.decode(errors="replace")

    async def _document(self, key: str, *, of_type: str) -> Any:
        query = f"SELECT CAST(body AS {of_type}) FROM documents WHERE key = ?"  # noqa: S608 - both types are given here
        row = await self._do(lambda connection: connection.execute(query, (key,)).fetchone())
        return None if row is None else row[0]

    async def save(self, key: str, body: str) -> None:
        """Write a document. Raises JournalError."""
        await self._do(
            lambda connection: connection.execute(
                "INSERT INTO documents (key, body) VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET body = excluded.body",
                (key, body),
            )
        )

    async def _do(self, work: Callable[[sqlite3.Connection], _T]) -> _T:
        try:
            return await self._transactions.run(work)
        except sqlite3.Error as error:
            raise _error("write", self._path, error, hint=_HINTS[sqlite3.SQLITE_FULL]) from error


def _error(verb: str, path: Path, error: Exception, *, hint: str) -> JournalError:
    hint = _HINTS.get(getattr(error, "sqlite_errorcode", 0) & 0xFF, hint)
    return JournalError(f"cannot {verb} the state file {path}: {error}; {hint}")


def _intent(intent_id: str, body: bytes) -> intents.AnyIntent | UnreadableIntent:
    try:
        return codec.intent_from_json(body)
    except codec.UNREADABLE as error:
        return UnreadableIntent(
            intent_id, codec.target_from_json(body), f"its entry cannot be read: {codec.shortened(error)}"
        )


def _record(round_name: str, pod: str, body: bytes) -> rounds.Record | UnreadableRecord:
    try:
        return codec.record_from_json(body)
    except codec.UNREADABLE as error:
        return UnreadableRecord((round_name, PodUid(pod)), codec.shortened(error))


def _close(connection: sqlite3.Connection, intent_id: str, *, outcome: str, now: float) -> None:
    connection.execute("UPDATE intents SET closed_at = ?, outcome = ? WHERE id = ?", (now, outcome, intent_id))
    connection.execute("DELETE FROM replays WHERE intent = ?", (intent_id,))


def _uncount(connection: sqlite3.Connection, restarts: Sequence[Begun]) -> None:
    connection.executemany(
        "DELETE FROM begun WHERE rowid = (SELECT rowid FROM begun WHERE pod_uid = ? AND containers = ?"
        " AND device IS ? AND at = ? AND fault_at IS ? LIMIT 1)",
        [_row(each) for each in restarts],
    )


def _replays(connection: sqlite3.Connection, intent_id: str) -> tuple[int, int]:
    row = connection.execute("SELECT begun, failed FROM replays WHERE intent = ?", (intent_id,)).fetchone()
    return (0, 0) if row is None else (row[0], row[1])


def _row(count: Begun) -> tuple[object, ...]:
    return count.pod, codec.names_to_json(count.containers), count.device, count.at, count.fault_at


def _put_record(connection: sqlite3.Connection, record: rounds.Record) -> None:
    connection.execute(
        "INSERT INTO rounds (round, pod_uid, body) VALUES (?, ?, ?) "
        "ON CONFLICT (round, pod_uid) DO UPDATE SET body = excluded.body",
        (*record.key, codec.record_to_json(record)),
    )


def _counted(begun: Sequence[intents.AnyIntent]) -> Begun:
    """Return how a restart counts by its intents alone: all are of one pod, and begun at one time."""
    first = begun[0]
    return Begun(
        pod=first.target.pod.uid,
        containers=frozenset[str]().union(*(intent.names for intent in begun)),
        at=first.created_at,
        fault_at=first.created_at,
    )


def _connect(path: Path) -> sqlite3.Connection:
    path.parent.mkdir(parents=True, exist_ok=True)
    connection = sqlite3.connect(path, timeout=5.0, isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version not in (0, SCHEMA_VERSION):
        connection.close()
        raise JournalError(
            f"cannot use the state file {path}: it has format {version}, this agent reads format {SCHEMA_VERSION}; "
            f"run the newer agent that wrote it, or {REMOVE}"
        )
    connection.executescript(f"{_SCHEMA}PRAGMA user_version = {SCHEMA_VERSION};")
    return connection
