"""Read the agent's journal from outside: while the agent runs, and after it died."""

import contextlib
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kubemend.agent.clients.journal import codec
from kubemend.agent.restart import intents

_HOUR = 3600.0


@dataclass(frozen=True, slots=True)
class Entry:
    """Describe one intent. ``outcome`` is None while it is open."""

    intent: intents.AnyIntent
    outcome: str | None


@dataclass(frozen=True, slots=True)
class Journal:
    """Read the state file of an agent. A missing file counts as empty."""

    path: Path

    @classmethod
    def of(cls, state_dir: Path) -> "Journal":
        """Return the journal in an agent's state directory."""
        return cls(state_dir / "state.db")

    def entries(self, *, since: float = 0.0) -> tuple[Entry, ...]:
        """Return the intents that were opened since then (Unix time), oldest first."""
        if not self.path.exists():
            return ()
        with self._opened(mode="ro") as connection:
            if connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'intents'").fetchone() is None:
                return ()  # the first agent is about to create it
            rows = connection.execute(
                "SELECT body, outcome FROM intents WHERE opened_at >= ? ORDER BY opened_at", (since,)
            ).fetchall()
        return tuple(Entry(codec.intent_from_json(body), outcome) for body, outcome in rows)

    def open_entries(self) -> tuple[Entry, ...]:
        """Return the intents that are not closed."""
        return tuple(entry for entry in self.entries() if entry.outcome is None)

    def age_restarts(self) -> None:
        """Move all past restarts an hour back in time: benchmarks restart more often than any budget should allow.

        An agent reads them when it starts: call it while none runs.
        """
        if self.path.exists():
            with self._opened(mode="rw") as connection:
                connection.execute("UPDATE begun SET at = at - ?, fault_at = fault_at - ?", (_HOUR, _HOUR))

    @contextlib.contextmanager
    def _opened(self, *, mode: str) -> Iterator[sqlite3.Connection]:
        """Open it; the block is one transaction. Closing does not clean up after a crash."""
        uri = f"file:{self.path}?mode={mode}"
        with contextlib.closing(sqlite3.connect(uri, uri=True, timeout=5.0)) as connection, connection:
            yield connection
