"""Read the quarantined intents of a state file, from another process than the agent. Changes nothing."""

import contextlib
import sqlite3
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import quote

from kubemend.agent.clients.journal import codec
from kubemend.agent.clients.journal.store import QUARANTINED, SCHEMA_VERSION

_SECONDS: Final = 2.0  # for a lock held by the agent; readers of a WAL journal need none
_QUERY: Final = """
SELECT intents.id, CAST(body AS BLOB), reason FROM intents LEFT JOIN replays ON intent = intents.id WHERE outcome = ?
ORDER BY closed_at DESC LIMIT ?
"""


class OtherFormatError(Exception):
    """No agent of this release starts with the state file; the text has the formats."""


@dataclass(frozen=True, slots=True)
class Quarantined:
    """A restart that is not resumed. ``target`` is empty if it cannot be read."""

    restart: str
    target: str
    reason: str


def read(path: Path, *, most: int) -> tuple[Quarantined, ...]:
    """Return the quarantined intents of a state file, the newest first, at most ``most``.

    Raises sqlite3.Error if the file is not a state file, FileNotFoundError if it does not exist, OtherFormatError.
    """
    if not path.exists():
        raise FileNotFoundError(path)
    with contextlib.closing(sqlite3.connect(_read_only(path), uri=True, timeout=_SECONDS)) as connection:
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version not in (0, SCHEMA_VERSION):
            raise OtherFormatError(f"it has format {version}, this agent reads format {SCHEMA_VERSION}")
        tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if not {"intents", "replays"} <= tables:
            return ()  # written by an agent that quarantined nothing
        rows = connection.execute(_QUERY, (QUARANTINED, most)).fetchall()
    return tuple(
        Quarantined(restart, str(codec.target_from_json(body) or ""), reason or "") for restart, body, reason in rows
    )


def _read_only(path: Path) -> str:
    """Return a URI with which SQLite creates no other file: without a WAL file, the database is opened as immutable."""
    in_use = path.with_name(f"{path.name}-wal").exists()
    return f"file:{quote(str(path.absolute()))}?{'mode=ro' if in_use else 'immutable=1'}"
