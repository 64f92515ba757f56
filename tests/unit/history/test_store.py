"""What the agent remembers: durable before the first act, and never read as something it is not."""

import json
import sqlite3
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from agent.health import fold
from agent.history import codec
from agent.history.store import HistoryError, Store
from agent.model import rounds
from agent.model.actions import ActionClass
from agent.model.findings import FindingKind
from agent.model.workloads import ContainerId
from agent.restart.counts import Begun
from tests.unit.restart import builders, pods

BEGUN = Begun(builders.POD.uid, frozenset({"trainer"}), at=1000.0, fault_at=1000.0)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    opened = await Store.open(tmp_path / "state.db")
    yield opened
    await opened.close()


async def test_an_intent_is_on_disk_when_begin_returns(store: Store, tmp_path: Path) -> None:
    await store.begin(builders.intent())
    with sqlite3.connect(tmp_path / "state.db") as other:  # what another process, after our death, would see
        assert other.execute("SELECT id FROM intents WHERE closed_at IS NULL").fetchall() == [("r1",)]
    other.close()


async def test_unfinished_intents_are_given_back_whole_and_in_order(store: Store) -> None:
    first, second = builders.intent(id="a", created_at=1.0), builders.intent(id="b", created_at=2.0, grace_seconds=1.5)
    await store.begin(second)
    await store.begin(first)
    assert await store.unfinished() == (first, second)


async def test_a_finished_intent_is_not_replayed_but_still_counts(store: Store) -> None:
    await store.begin(builders.intent())
    await store.finish("r1", outcome="Swapped", now=1001.0)
    assert await store.unfinished() == ()
    assert await store.begun_since(0.0) == (BEGUN,)
    assert await store.begun_since(1000.1) == ()


@pytest.mark.parametrize("now", [1000.0 + 25 * 3600, 1000.0 - 25 * 3600], ids=["old", "of a clock that was set back"])
async def test_restarts_that_count_no_longer_are_dropped(store: Store, now: float) -> None:
    await store.begin(builders.intent())
    await store.finish("r1", outcome="Swapped", now=now)
    assert await store.begun_since(0.0) == ()


async def test_what_budgets_count_is_kept_as_it_is_told(store: Store, tmp_path: Path) -> None:
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


async def test_the_same_intent_cannot_be_begun_twice(store: Store) -> None:
    await store.begin(builders.intent())
    with pytest.raises(HistoryError):
        await store.begin(builders.intent())
    assert await store.begun_since(0.0) == (BEGUN,)  # the whole transaction was taken back


async def test_a_file_that_is_no_database_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "state.db").write_bytes(b"not a database, " * 100)
    with pytest.raises(HistoryError, match="--state-dir"):
        await Store.open(tmp_path / "state.db")


async def test_a_format_of_the_future_is_refused(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "state.db") as database:
        database.execute("PRAGMA user_version = 99")
    database.close()
    with pytest.raises(HistoryError, match="format 99"):
        await Store.open(tmp_path / "state.db")


def test_verdicts_survive_the_way_to_disk_and_back() -> None:
    latch = fold.Latch(FindingKind.XID, "79", ActionClass.REBOOT_NODE, 1.0, 2.0, text="off the bus", count=3)
    state = fold.HealthState(boot_id="b", devices={"GPU-1": (latch,)})
    assert codec.health_from_json(codec.health_to_json(state)) == state


def test_an_intent_of_a_whole_pod_survives_the_way_to_disk_and_back() -> None:
    intent = pods.intent(trigger=ContainerId("old-trainer"), grace_seconds=2.0)
    assert codec.intent_from_json(codec.intent_to_json(intent)) == intent


def test_intents_of_the_first_version_still_load() -> None:
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


async def test_an_open_intent_of_a_newer_agent_keeps_this_one_from_beginning_anything(store: Store) -> None:
    await store.begin(builders.intent())
    connection = store._connection
    connection.execute("UPDATE intents SET body = json_set(body, '$.version', 9)")
    with pytest.raises(HistoryError, match="version 9"):
        await store.unfinished()


async def test_one_restart_of_several_containers_is_begun_whole_or_not_at_all(store: Store) -> None:
    await store.begin(builders.intent(id="b"))
    with pytest.raises(HistoryError):
        await store.begin(builders.intent(id="a"), builders.intent(id="b"))
    assert [intent.id for intent in await store.unfinished()] == ["b"]


async def test_a_whole_pods_restart_counts_once_for_all_of_its_containers(store: Store) -> None:
    await store.begin(pods.intent())
    (begun,) = await store.begun_since(0.0)
    assert (begun.pod, begun.containers) == (pods.intent().target.pod.uid, pods.intent().names)


RECORD = rounds.Record(
    order=rounds.Order(
        round="default/gang-7",
        gang="default/Gang/g",
        attempt=7,
        pod=builders.POD.uid,
        kind=rounds.OrderKind.HOLD,
        cause_code="Exit",
        cause_message="it exited with 1",
        hold_seconds=30.0,
        containers=frozenset({"trainer"}),
        strategy="rerun",
        grace_seconds=1.5,
    ),
    pod=builders.POD,
    standing=rounds.Standing(
        "default/gang-7",
        builders.POD,
        rounds.Phase.STOPPED,
        seconds=MappingProxyType({"stop": 0.1}),
        slipped=0.01,
        attempt=7,
    ),
    boot="this",
    heard_at=12.5,
    written_at=1000.0,
    names=frozenset({"trainer", "logger"}),
)


async def test_a_record_of_a_round_is_written_with_its_intents_and_given_back_whole(store: Store) -> None:
    await store.begin(builders.intent(), record=RECORD)
    assert await store.records() == (RECORD,)
    assert len(await store.unfinished()) == 1


async def test_of_one_member_in_one_round_there_is_one_record(store: Store) -> None:
    later = replace(RECORD, released=True)
    name = "default/gang-8"
    other = replace(RECORD, order=replace(RECORD.order, round=name), standing=replace(RECORD.standing, round=name))
    await store.note(RECORD, other)
    await store.note(later)
    assert sorted(await store.records(), key=lambda record: record.order.round) == [later, other]
    await store.note(gone=[other.key])
    assert await store.records() == (later,)


async def test_a_record_that_cannot_be_read_is_an_error_not_nothing(store: Store, tmp_path: Path) -> None:
    await store.note(RECORD)
    with sqlite3.connect(tmp_path / "state.db") as database:
        database.execute("UPDATE rounds SET body = '{\"version\": 99}'")
    database.close()
    with pytest.raises(HistoryError, match="newer agent"):
        await store.records()


async def test_a_file_of_an_agent_that_knew_no_rounds_is_taken_on(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "state.db") as database:
        database.execute("CREATE TABLE documents (key TEXT PRIMARY KEY, body TEXT NOT NULL)")
        database.execute("PRAGMA user_version = 1")
    database.close()
    store = await Store.open(tmp_path / "state.db")
    assert await store.records() == ()
    await store.close()


async def test_the_epoch_that_was_obeyed_never_goes_down(store: Store) -> None:
    assert await store.obeyed_epoch() == 0
    await store.obey(9)
    await store.obey(10)
    await store.obey(9)
    assert await store.obeyed_epoch() == 10
    await store.obey(9, highest=10)
    assert await store.obeyed_epoch() == 10


@pytest.mark.parametrize("stored", [2**40, 10**18, 2**64 - 1])
async def test_an_epoch_that_there_cannot_be_gives_way_to_one_that_there_can(store: Store, stored: int) -> None:
    await store.obey(stored)
    await store.obey(9, highest=2**39)
    assert await store.obeyed_epoch() == 9


@pytest.mark.parametrize("changes", [{"boot": "another"}, {"released": True}])
def test_a_record_of_another_boot_or_of_what_was_let_go_is_not_under_way(changes: dict[str, Any]) -> None:
    assert RECORD.is_under_way(boot="this")
    assert not replace(RECORD, **changes).is_under_way(boot="this")


@pytest.mark.parametrize("phase", [rounds.Phase.RUNNING, rounds.Phase.REFUSED, rounds.Phase.COMPLETED])
def test_a_member_that_is_through_with_it_is_not_under_way(phase: rounds.Phase) -> None:
    assert not replace(RECORD, standing=replace(RECORD.standing, phase=phase)).is_under_way(boot="this")


async def test_what_is_quarantined_is_kept_with_its_reason_and_not_unfinished(tmp_path: Path) -> None:
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
    await store.quarantine("bad", why="IndexError", now=1000.0)
    assert [intent.id for intent in await store.unfinished()] == ["good"]
    await store.finish("good", outcome="Swapped", now=1000.0)
    assert await store.quarantined() == {"bad"}
    await store.begin(builders.intent(id="later"))
    await store.finish("later", outcome="Swapped", now=1000.0 + 30 * 24 * 3600.0)
    assert await store.quarantined() == frozenset(), "not for ever"
    await store.close()
