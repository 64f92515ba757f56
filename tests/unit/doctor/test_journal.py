"""The journal as doctor sees it: what is quarantined is told, and nothing is changed by looking."""

import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from agent.doctor import journal
from agent.doctor.checks import Result
from agent.history.store import FILE, Store
from tests.unit.restart import builders


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    """An agent's state file, in use."""
    opened = await Store.open(tmp_path / FILE)
    yield opened
    await opened.close()


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


async def quarantine(store: Store, restart: str, *, why: str = "IndexError in shm.py") -> None:
    await store.begin(builders.intent(id=restart))
    assert await store.replay_begins(restart)
    await store.quarantine(restart, why=why, now=1000.0)


async def test_where_no_agent_has_run_there_is_none_and_none_is_made(tmp_path: Path) -> None:
    (check,) = await journal.quarantined(tmp_path)
    assert check.result is Result.NOT_NEEDED
    assert contents(tmp_path) == {}


async def test_a_journal_without_a_quarantined_restart_is_well(store: Store, tmp_path: Path) -> None:
    await store.begin(builders.intent(id="good"))
    (check,) = await journal.quarantined(tmp_path)
    assert check.result is Result.OK


async def test_a_quarantined_restart_is_named_with_its_reason_and_what_to_do(store: Store, tmp_path: Path) -> None:
    await quarantine(store, "bad")
    (check,) = await journal.quarantined(tmp_path)
    assert check.result is Result.WARN
    assert f"{builders.intent().target} of restart bad (IndexError in shm.py)" in check.what
    assert "kubectl delete pod" in check.mend


async def test_many_are_told_in_one_line_however_long_their_reasons_are(store: Store, tmp_path: Path) -> None:
    for number in range(20):
        await quarantine(store, f"r{number}", why="two\nlines " * 10_000)
    (check,) = await journal.quarantined(tmp_path)
    assert "and 17 more" in check.what
    assert "\n" not in check.what
    assert len(check.what) < 1000


async def test_what_an_agent_has_left_is_read_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    opened = await Store.open(tmp_path / FILE)
    await quarantine(opened, "bad")
    await opened.close()
    before = contents(tmp_path)
    (check,) = await journal.quarantined(tmp_path)
    assert check.result is Result.WARN
    assert contents(tmp_path) == before


async def test_a_restart_that_another_version_has_written_is_told_by_its_id(store: Store, tmp_path: Path) -> None:
    await quarantine(store, "bad")
    with sqlite3.connect(tmp_path / FILE) as other:
        other.execute("UPDATE intents SET body = '{}'")
    other.close()
    (check,) = await journal.quarantined(tmp_path)
    assert check.result is Result.WARN
    assert "restart bad" in check.what


async def test_the_file_of_an_agent_that_quarantined_nothing_is_well(tmp_path: Path) -> None:
    sqlite3.connect(tmp_path / FILE).close()
    with sqlite3.connect(tmp_path / FILE) as older:
        older.execute("CREATE TABLE intents (id TEXT, body TEXT, outcome TEXT)")
    older.close()
    (check,) = await journal.quarantined(tmp_path)
    assert check.result is Result.OK


async def test_what_is_no_state_file_cannot_be_told(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(b"no database " * 1000)
    (check,) = await journal.quarantined(tmp_path)
    assert check.result is Result.UNKNOWN
    assert check.mend
