"""State files of earlier releases are read, and that of a later one is refused in one line."""

import contextlib
import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kubemend.agent.clients.journal import codec
from kubemend.agent.clients.journal import store as history
from kubemend.agent.clients.journal.store import JournalError, Store
from tests.contract.journal import recording

RECORDED = sorted(recording.DIRECTORY.glob("*.sql"))


def left(path: Path, recorded: Path) -> Path:
    """Write the state file of an agent of a release."""
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.executescript(recorded.read_text())
    return path


@pytest.mark.parametrize("recorded", RECORDED, ids=lambda path: path.stem)
async def test_state_of_an_earlier_release_is_kept(tmp_path: Path, recorded: Path) -> None:
    store = await Store.open(left(tmp_path / "state.db", recorded))
    assert await store.unfinished() == (recording.SWAP, recording.RERUN)
    assert (await store.begun_since(0.0))[0] == recording.BEGUN
    assert await store.records() == (recording.RECORD,)
    assert await store.obeyed_epoch() == recording.EPOCH
    assert await store.load(recording.DOCUMENT[0]) == recording.DOCUMENT[1]
    await store.finish(recording.SWAP.id, outcome="Swapped", now=1002.0)
    assert await store.unfinished() == (recording.RERUN,)
    await store.close()


@pytest.mark.parametrize("recorded", RECORDED, ids=lambda path: path.stem)
def test_earlier_release_finds_every_field_that_it_wrote(recorded: Path) -> None:
    """A downgrade works while the format is the same."""
    with contextlib.closing(sqlite3.connect(":memory:")) as then:
        then.executescript(recorded.read_text())
        ((record,),) = then.execute("SELECT body FROM rounds").fetchall()
        intents = dict(then.execute("SELECT id, body FROM intents").fetchall())
    assert missing(codec.record_to_json(recording.RECORD), record) == set()
    for intent in (recording.SWAP, recording.RERUN):
        assert missing(codec.intent_to_json(intent), intents[intent.id]) == set()


def missing(today: str, then: str) -> set[str]:
    """Return the fields that only the older JSON object has, and those of its objects."""
    return set(paths(json.loads(then))) - set(paths(json.loads(today)))


def paths(raw: dict[str, Any]) -> Iterator[str]:
    for name, value in raw.items():
        yield name
        if isinstance(value, dict):
            yield from (f"{name}.{path}" for path in paths(value))


def test_the_format_of_today_is_recorded() -> None:
    newest = RECORDED[-1].read_text()
    assert f"PRAGMA user_version = {history.SCHEMA_VERSION};" in newest, (
        "record a release: python -m tests.contract.journal.recording RELEASE"
    )
    with (
        contextlib.closing(sqlite3.connect(":memory:")) as today,
        contextlib.closing(sqlite3.connect(":memory:")) as then,
    ):
        today.executescript(history._SCHEMA)
        then.executescript(newest)
        shape = "SELECT type, name, sql FROM sqlite_master ORDER BY name"
        assert then.execute(shape).fetchall() == today.execute(shape).fetchall()


async def test_state_of_a_later_release_is_refused_and_not_touched(tmp_path: Path) -> None:
    path = left(tmp_path / "state.db", RECORDED[-1])
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 2")
    with pytest.raises(JournalError, match="it has format 2, this agent reads format 1; run the newer") as refused:
        await Store.open(path)
    assert "\n" not in str(refused.value)
    with contextlib.closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (2,)
        assert connection.execute("SELECT count(*) FROM intents").fetchone() == (2,)
