"""State files of earlier releases are read, and that of a later one is refused in one line."""

import contextlib
import sqlite3
from pathlib import Path

import pytest

from kubemend.agent.clients.journal import store as history
from kubemend.agent.clients.journal.store import HistoryError, Store
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


def test_the_format_of_today_is_recorded() -> None:
    newest = RECORDED[-1].read_text()
    assert f"PRAGMA user_version = {history._SCHEMA_VERSION};" in newest, (
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
    with pytest.raises(HistoryError, match="it has format 2, this agent reads format 1; run the newer") as refused:
        await Store.open(path)
    assert "\n" not in str(refused.value)
    with contextlib.closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (2,)
        assert connection.execute("SELECT count(*) FROM intents").fetchone() == (2,)
