"""The doctor's check of the journal: quarantined restarts are reported, and nothing is changed."""

import contextlib
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from kubemend.agent.clients.journal.store import FILE, Store
from kubemend.agent.doctor import directories
from kubemend.agent.doctor.checks import Result
from tests.unit.restart import builders


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    """An agent's state file, in use."""
    opened = await Store.open(tmp_path / FILE)
    yield opened
    await opened.close()


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


async def quarantine(store: Store, restart: str, *, reason: str = "IndexError in shm.py") -> None:
    await store.begin(builders.intent(id=restart))
    assert await store.replay_begins(restart)
    await store.quarantine(restart, reason=reason, now=1000.0)


def edit(directory: Path, statement: str) -> None:
    """Change the state file, or create it, as another agent would."""
    with contextlib.closing(sqlite3.connect(directory / FILE)) as database, database:
        database.execute(statement)


async def test_missing_journal_is_not_needed_and_not_created(tmp_path: Path) -> None:
    (check,) = await directories.quarantined(tmp_path)
    assert check.result is Result.NOT_NEEDED
    assert contents(tmp_path) == {}


async def test_journal_without_quarantined_restarts_is_ok(store: Store, tmp_path: Path) -> None:
    await store.begin(builders.intent(id="good"))
    (check,) = await directories.quarantined(tmp_path)
    assert check.result is Result.OK


async def test_journal_of_a_later_release_fails(tmp_path: Path) -> None:
    edit(tmp_path, "PRAGMA user_version = 99")
    (check,) = await directories.quarantined(tmp_path)
    assert check.result is Result.FAIL
    assert "it has format 99" in check.what
    assert "run the newer agent" in check.hint


async def test_quarantined_restart_is_reported_with_reason_and_hint(store: Store, tmp_path: Path) -> None:
    await quarantine(store, "bad")
    (check,) = await directories.quarantined(tmp_path)
    assert check.result is Result.WARN
    assert f"{builders.intent().target} of restart bad (IndexError in shm.py)" in check.what
    assert "kubectl delete pod" in check.hint


async def test_many_quarantined_restarts_are_reported_in_one_line(store: Store, tmp_path: Path) -> None:
    for number in range(20):
        await quarantine(store, f"r{number}", reason="two\nlines " * 10_000)
    (check,) = await directories.quarantined(tmp_path)
    assert "and 17 more" in check.what
    assert "\n" not in check.what
    assert len(check.what) < 1000


async def test_check_reads_the_agents_file_and_leaves_none_behind(tmp_path: Path) -> None:
    opened = await Store.open(tmp_path / FILE)
    await quarantine(opened, "bad")
    await opened.close()
    before = contents(tmp_path)
    (check,) = await directories.quarantined(tmp_path)
    assert check.result is Result.WARN
    assert contents(tmp_path) == before


async def test_restart_of_another_version_is_reported_by_its_id(store: Store, tmp_path: Path) -> None:
    await quarantine(store, "bad")
    edit(tmp_path, "UPDATE intents SET body = '{}'")
    (check,) = await directories.quarantined(tmp_path)
    assert check.result is Result.WARN
    assert "restart bad" in check.what


async def test_file_of_an_agent_without_quarantine_is_ok(tmp_path: Path) -> None:
    edit(tmp_path, "CREATE TABLE intents (id TEXT, body TEXT, outcome TEXT)")
    (check,) = await directories.quarantined(tmp_path)
    assert check.result is Result.OK


async def test_file_that_is_not_a_state_file_is_unknown(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(b"no database " * 1000)
    (check,) = await directories.quarantined(tmp_path)
    assert check.result is Result.UNKNOWN
    assert check.hint
