"""The quarantined intents of a state file, for whoever looks at it from beside the agent. It changes nothing."""

import contextlib
import sqlite3
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import quote

from agent.history import codec
from agent.history.store import QUARANTINED

_SECONDS: Final = 2.0  # for a lock of the agent's; readers of a journal with WAL need none
_QUERY: Final = """
SELECT intents.id, body, why FROM intents LEFT JOIN replays ON intent = intents.id WHERE outcome = ?
ORDER BY closed_at DESC LIMIT ?
"""


@dataclass(frozen=True, slots=True)
class Quarantined:
    """A restart that is not taken up again. ``target`` is empty when another agent's version has written it."""

    restart: str
    target: str
    why: str


def read(path: Path, *, most: int) -> tuple[Quarantined, ...]:
    """Return what is quarantined in a state file, the newest first and no more than ``most``.

    Raises sqlite3.Error for what is no state file, FileNotFoundError where there is none.
    """
    if not path.exists():
        raise FileNotFoundError(path)
    with contextlib.closing(sqlite3.connect(_read_only(path), uri=True, timeout=_SECONDS)) as connection:
        tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if not {"intents", "replays"} <= tables:
            return ()  # of an agent that quarantined nothing
        rows = connection.execute(_QUERY, (QUARANTINED, most)).fetchall()
    return tuple(Quarantined(restart, _target(body), why or "") for restart, body, why in rows)


def _read_only(path: Path) -> str:
    """Return the URI under which SQLite leaves nothing beside a file: without an agent's log, it is as it is."""
    in_use = path.with_name(f"{path.name}-wal").exists()
    return f"file:{quote(str(path.absolute()))}?{'mode=ro' if in_use else 'immutable=1'}"


def _target(body: str) -> str:
    try:
        return str(codec.intent_from_json(body).target)
    except (KeyError, ValueError, TypeError):
        return ""
