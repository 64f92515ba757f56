"""The agent's state: durable before the first action, and never misread."""

import asyncio
import itertools
import json
import sqlite3
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from kubemend.agent.clients.journal import codec
from kubemend.agent.clients.journal import store as journal
from kubemend.agent.clients.journal.store import JournalError, Store
from kubemend.agent.health.state import fold
from kubemend.agent.model import rounds
from kubemend.agent.model.actions import ActionClass
from kubemend.agent.model.findings import FindingKind
from kubemend.agent.model.workloads import ContainerId, PodUid
from kubemend.agent.restart import intents
from kubemend.agent.restart.counts import Begun
from kubemend.common.coordination import OrderKind, StepPhase
from tests.unit.restart import builders, pods

BEGUN = Begun(builders.POD.uid, frozenset({"trainer"}), at=1000.0, fault_at=1000.0)


async def test_begin_returns_once_the_intent_is_on_disk(store: Store, tmp_path: Path) -> None:
    await store.begin(builders.intent())
    with sqlite3.connect(tmp_path / "state.db") as other:  # what another process would read after the agent's death
        assert other.execute("SELECT id FROM intents WHERE closed_at IS NULL").fetchall() == [("r1",)]
    other.close()


async def test_unfinished_intents_are_returned_complete_and_in_order(store: Store) -> None:
    first, second = builders.intent(id="a", created_at=1.0), builders.intent(id="b", created_at=2.0, grace_seconds=1.5)
    await store.begin(second)
    await store.begin(first)
    assert await store.unfinished() == (first, second)


async def test_finished_intent_is_not_replayed_but_counted(store: Store) -> None:
    await store.begin(builders.intent())
    await store.finish("r1", outcome="Swapped", now=1001.0)
    assert await store.unfinished() == ()
    assert await store.begun_since(0.0) == (BEGUN,)
    assert await store.begun_since(1000.1) == ()


@pytest.mark.parametrize("now", [1000.0 + 25 * 3600, 1000.0 - 25 * 3600], ids=["old", "of a clock that was set back"])
async def test_expired_restarts_are_dropped(store: Store, now: float) -> None:
    await store.begin(builders.intent())
    await store.finish("r1", outcome="Swapped", now=now)
    assert await store.begun_since(0.0) == ()


async def test_closing_an_intent_costs_no_more_after_hundreds(store: Store) -> None:
    async def cost(intent_id: str) -> int:
        await store.begin(builders.intent(id=intent_id))
        steps = itertools.count()
        store._connection.set_progress_handler(lambda: next(steps) < 0, 1)
        await store.finish(intent_id, outcome="Swapped", now=1001.0)
        store._connection.set_progress_handler(None, 0)
        return next(steps)

    await cost("warm-up")
    few = await cost("second")
    names = [f"r{number}" for number in range(500)]
    await asyncio.gather(*(store.begin(builders.intent(id=name)) for name in names))
    await asyncio.gather(*(store.finish(name, outcome="Swapped", now=1001.0) for name in names))
    assert await cost("last") < 2 * few


async def test_budget_counts_are_stored_as_given(store: Store, tmp_path: Path) -> None:
    counted = Begun(builders.POD.uid, frozenset({"a", "b"}), at=1000.5, fault_at=999.5, device="GPU-0")
    await store.begin(builders.intent(), counted=counted)
    other = await Store.open(tmp_path / "state.db")
    assert await other.begun_since(0.0) == (counted,)
    await other.close()


async def test_documents_are_overwritten(store: Store) -> None:
    assert await store.load("key") is None
    await store.save("key", "one")
    await store.save("key", "two")
    assert await store.load("key") == "two"


async def test_everything_survives_reopening(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "state.db"
    first = await Store.open(path)
    await first.begin(builders.intent())
    await first.close()
    again = await Store.open(path)
    assert await again.unfinished() == (builders.intent(),)
    await again.close()


async def test_same_intent_cannot_begin_twice(store: Store) -> None:
    await store.begin(builders.intent())
    with pytest.raises(JournalError):
        await store.begin(builders.intent())
    assert await store.begun_since(0.0) == (BEGUN,)  # the whole transaction was rolled back


async def test_file_that_is_no_database_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "state.db").write_bytes(b"not a database, " * 100)
    with pytest.raises(JournalError, match="file is not a database; remove the file"):
        await Store.open(tmp_path / "state.db")


async def test_file_that_cannot_be_created_is_refused_with_its_directory(tmp_path: Path) -> None:
    (tmp_path / "state.db").mkdir()
    with pytest.raises(JournalError, match=r"make its directory writable .* [(]--state-dir[)]"):
        await Store.open(tmp_path / "state.db")


@pytest.mark.parametrize("code", [sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_SHMSIZE])
async def test_full_disk_has_a_hint_that_helps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    def full(_: Path) -> sqlite3.Connection:
        error = sqlite3.OperationalError("disk I/O error")
        error.sqlite_errorcode = code
        raise error

    monkeypatch.setattr(journal, "_connect", full)
    with pytest.raises(JournalError, match="disk I/O error; free disk space or fix --state-dir"):
        await Store.open(tmp_path / "state.db")


async def test_damaged_file_has_a_hint_that_helps(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    store = await Store.open(path)
    await store.save("k", "v" * 20_000)
    await store.close()
    whole = path.read_bytes()
    path.write_bytes(whole[:8192])
    with pytest.raises(JournalError, match="remove the file"):
        await Store.open(path)
    path.write_bytes(whole[:4096] + bytes(len(whole) - 4096))
    damaged = await Store.open(path)
    try:
        with pytest.raises(JournalError, match="remove the file"):
            await damaged.unfinished()
    finally:
        await damaged.close()


async def test_newer_format_is_refused(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "state.db") as database:
        database.execute("PRAGMA user_version = 99")
    database.close()
    with pytest.raises(JournalError, match="format 99"):
        await Store.open(tmp_path / "state.db")


def test_verdicts_survive_a_round_trip() -> None:
    latch = fold.ActiveFault(FindingKind.XID, "79", ActionClass.REBOOT_NODE, 1.0, 2.0, text="off the bus", count=3)
    state = fold.HealthState(boot_id="b", devices={"GPU-1": (latch,)}, newest_key="kmsg:7:5000000")
    assert codec.health_from_json(codec.health_to_json(state)) == state


def test_verdicts_of_an_older_agent_have_no_key() -> None:
    assert codec.health_from_json('{"bootId": "b", "devices": {}}') == fold.HealthState(boot_id="b")


def test_pod_intent_survives_a_round_trip() -> None:
    intent = pods.intent(trigger=ContainerId("old-trainer"), grace_seconds=2.0, completes=True)
    assert codec.intent_from_json(codec.intent_to_json(intent)) == intent


def test_process_intent_survives_a_round_trip() -> None:
    swap = builders.intent()
    intent = intents.ProcessIntent(
        "r1", swap.target, swap.sandbox_id, swap.old, program=3, reason="Xid31", created_at=1.0, grace_seconds=2.0
    )
    assert codec.intent_from_json(codec.intent_to_json(intent)) == intent


def test_swap_intent_survives_a_round_trip() -> None:
    swap = builders.intent(empty_cache_after=2, completes=True)
    assert codec.intent_from_json(codec.intent_to_json(swap)) == swap


def test_intents_of_version_1_load() -> None:
    body = {
        "id": "r1",
        "namespace": "default",
        "pod": "trainer-0",
        "uid": "uid-1",
        "container": "trainer",
        "sandbox": "sandbox-1",
        "old": "old",
        "oldAttempt": 0,
        "order": "stop-first",
        "reason": "Xid31",
        "createdAt": 1000.0,
        "grace": 0.0,
        "strategy": "swap",
    }
    assert codec.intent_from_json(json.dumps(body)) == builders.intent()


UNREADABLE = ["{", "[]", "null", '{"version": 9}', "[" * 100_000, b"\xff" * 1000]


@pytest.mark.parametrize("body", UNREADABLE)
async def test_unreadable_document_is_read_as_text_and_an_unreadable_epoch_as_none(
    store: Store, body: str | bytes
) -> None:
    for key in ("epoch", "other"):
        await store.save(key, "7")
    store._connection.execute("UPDATE documents SET body = CAST(? AS TEXT)", (body,))
    assert isinstance(await store.load("other"), str)
    assert await store.obeyed_epoch() == 0
    await store.obey(3)
    assert await store.obeyed_epoch() == 3


@pytest.mark.parametrize("body", UNREADABLE)
async def test_unreadable_intent_is_reported_apart_from_the_others(store: Store, body: str | bytes) -> None:
    await store.begin(builders.intent(id="bad"))
    await store.begin(builders.intent(id="good"))
    store._connection.execute("UPDATE intents SET body = CAST(? AS TEXT) WHERE id = 'bad'", (body,))
    assert [intent.id for intent in await store.unfinished()] == ["good"]
    (entry,) = await store.unreadable()
    assert (entry.id, entry.target) == ("bad", None)
    assert entry.reason.startswith("its entry cannot be read: ")
    assert len(entry.reason) < 300
    await store.quarantine("bad", reason=entry.reason, now=1000.0)
    assert await store.unreadable() == ()
    assert await store.quarantined() == {"bad"}


async def test_intent_of_a_newer_agent_shows_its_target(store: Store) -> None:
    await store.begin(builders.intent())
    store._connection.execute("UPDATE intents SET body = json_set(body, '$.version', 9)")
    (entry,) = await store.unreadable()
    assert entry.target == builders.intent().target
    assert "version 9" in entry.reason
    store._connection.execute("UPDATE intents SET body = json_set(body, '$.uid', json('[]'))")
    (entry,) = await store.unreadable()
    assert entry.target is None


async def test_restart_of_several_containers_begins_atomically(store: Store) -> None:
    await store.begin(builders.intent(id="b"))
    with pytest.raises(JournalError):
        await store.begin(builders.intent(id="a"), builders.intent(id="b"))
    assert [intent.id for intent in await store.unfinished()] == ["b"]


async def test_pod_restart_counts_once_for_all_containers(store: Store) -> None:
    await store.begin(pods.intent())
    (begun,) = await store.begun_since(0.0)
    assert (begun.pod, begun.containers) == (pods.intent().target.pod.uid, pods.intent().names)


@pytest.mark.parametrize(
    ("column", "value", "known"),
    [
        ("containers", b"\xff{", True),
        ("containers", "3", True),
        ("containers", "[1]", True),
        ("fault_at", "yesterday", True),
        ("at", "yesterday", False),
        ("pod_uid", b"\xff" * 1000, False),
    ],
)
async def test_count_that_cannot_be_read_counts_as_far_as_its_pod_and_time_are_known(
    store: Store, column: str, value: str | bytes, *, known: bool
) -> None:
    bad, good = (Begun(PodUid(uid), frozenset({"a"}), at=1000.5, fault_at=999.5) for uid in ("bad", "good"))
    for count in (bad, good):
        await store.begin(builders.intent(id=count.pod), counted=count)
    store._connection.execute(f"UPDATE begun SET {column} = CAST(? AS BLOB) WHERE pod_uid = 'bad'", (value,))
    found = {str(begun.pod): begun for begun in await store.begun_since(0.0)}
    (reason,) = await store.unreadable_counts(0.0)
    assert len(reason) < 300
    assert found["good"] == good
    assert ("bad" in found) is known
    if known:
        assert reason.endswith(" of pod bad")
        assert found["bad"].containers == (frozenset() if column == "containers" else {"a"})


RECORD = rounds.Record(
    order=rounds.Order(
        round="default/gang-7",
        attempt=7,
        pod=builders.POD.uid,
        kind=OrderKind.HOLD,
        cause_code="Exit",
        cause_message="it exited with 1",
        hold_seconds=30.0,
        containers=frozenset({"trainer"}),
        strategy="rerun",
        grace_seconds=1.5,
    ),
    pod=builders.POD,
    step_result=rounds.StepResult(
        "default/gang-7",
        builders.POD,
        StepPhase.STOPPED,
        seconds=MappingProxyType({"stop": 0.1}),
        unheld_seconds=0.01,
        attempt=7,
    ),
    boot="this",
    renewed_at=12.5,
    written_at=1000.0,
    names=frozenset({"trainer", "logger"}),
)


async def test_round_record_is_stored_with_its_intents(store: Store) -> None:
    await store.begin(builders.intent(), record=RECORD)
    assert await store.records() == (RECORD,)
    assert len(await store.unfinished()) == 1


async def test_member_has_one_record_per_round(store: Store) -> None:
    later = replace(RECORD, released=True)
    name = "default/gang-8"
    other = replace(
        RECORD, order=replace(RECORD.order, round=name), step_result=replace(RECORD.step_result, round=name)
    )
    await store.note(RECORD, other)
    await store.note(later)
    assert sorted(await store.records(), key=lambda record: record.order.round) == [later, other]
    await store.note(gone=[other.key])
    assert await store.records() == (later,)


@pytest.mark.parametrize("body", UNREADABLE)
async def test_unreadable_record_is_reported_apart_from_the_others(store: Store, body: str | bytes) -> None:
    other = replace(RECORD, order=replace(RECORD.order, pod=PodUid("uid-2")))
    await store.note(RECORD, other)
    update = "UPDATE rounds SET body = CAST(? AS TEXT) WHERE pod_uid = 'uid-2'"
    store._connection.execute(update, (body,))
    assert await store.records() == (RECORD,)
    (entry,) = await store.unreadable_records()
    assert entry.key == other.key


async def test_file_without_rounds_table_is_upgraded(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "state.db") as database:
        database.execute("CREATE TABLE documents (key TEXT PRIMARY KEY, body TEXT NOT NULL)")
        database.execute("PRAGMA user_version = 1")
    database.close()
    store = await Store.open(tmp_path / "state.db")
    assert await store.records() == ()
    await store.close()


async def test_obeyed_epoch_never_decreases(store: Store) -> None:
    assert await store.obeyed_epoch() == 0
    await store.obey(9)
    await store.obey(10)
    await store.obey(9)
    assert await store.obeyed_epoch() == 10
    await store.obey(9, highest=10)
    assert await store.obeyed_epoch() == 10


@pytest.mark.parametrize("stored", [2**40, 10**18, 2**64 - 1])
async def test_impossible_epoch_gives_way_to_a_possible_one(store: Store, stored: int) -> None:
    await store.obey(stored)
    await store.obey(9, highest=2**39)
    assert await store.obeyed_epoch() == 9


@pytest.mark.parametrize("changes", [{"boot": "another"}, {"released": True}])
def test_record_of_another_boot_or_released_is_not_active(changes: dict[str, Any]) -> None:
    assert RECORD.is_under_way(boot="this")
    assert not replace(RECORD, **changes).is_under_way(boot="this")


@pytest.mark.parametrize("phase", [StepPhase.RUNNING, StepPhase.REFUSED, StepPhase.COMPLETED])
def test_finished_member_is_not_active(phase: StepPhase) -> None:
    assert not replace(RECORD, step_result=replace(RECORD.step_result, phase=phase)).is_under_way(boot="this")


async def test_quarantined_intent_is_kept_with_its_reason(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    store = await Store.open(path)
    await store.begin(builders.intent(id="bad"))
    await store.begin(builders.intent(id="good"))
    assert await store.replay_begins("bad")
    assert not await store.replay_ended("bad", failed=True)
    await store.close()
    store = await Store.open(path)
    assert await store.replay_begins("bad")
    assert await store.replay_ended("bad", failed=True), "the second time, by another agent"
    await store.quarantine("bad", reason="IndexError", now=1000.0)
    assert [intent.id for intent in await store.unfinished()] == ["good"]
    await store.finish("good", outcome="Swapped", now=1000.0)
    assert await store.quarantined() == {"bad"}
    await store.begin(builders.intent(id="later"))
    await store.finish("later", outcome="Swapped", now=1000.0 + 30 * 24 * 3600.0)
    assert await store.quarantined() == frozenset(), "not indefinitely"
    await store.close()
