"""What is newest: the watch's word or our own write's answer."""

from collections.abc import Callable
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, cast

import pytest

from common.kube import mirror
from controller.jobsets import newest
from controller.jobsets.newest import Newest


@dataclass(frozen=True)
class Thing:
    version: str
    word: str = ""


class Watch:
    """A mirror whose changes a test tells."""

    def __init__(self) -> None:
        self.all: dict[str, Thing] = {}
        self.listener: Callable[[mirror.Change[Thing]], None] = lambda _: None

    def items(self) -> MappingProxyType[str, Thing]:
        return MappingProxyType(self.all)

    def subscribe(self, listener: Callable[[mirror.Change[Thing]], None]) -> Callable[[], None]:
        self.listener = listener
        return lambda: None

    def tells(self, uid: str, thing: Thing) -> None:
        kind = mirror.ChangeKind.CHANGED if uid in self.all else mirror.ChangeKind.APPEARED
        self.all[uid] = thing
        self.listener(mirror.Change(kind, uid, thing))

    def gone(self, uid: str) -> None:
        self.listener(mirror.Change(mirror.ChangeKind.GONE, uid, self.all.pop(uid)))


@dataclass
class Seen:
    watch: Watch
    newest: Newest[Thing]
    changes: list[tuple[str, Thing | None, Thing | None]]

    def now(self, uid: str = "a") -> Thing | None:
        return self.newest.items().get(uid)


@pytest.fixture
def seen() -> Seen:
    watch = Watch()
    changes: list[tuple[str, Thing | None, Thing | None]] = []
    made: Newest[Thing] = Newest(
        cast("mirror.Mirror[Any]", watch),
        version=lambda thing: thing.version,
        changed=lambda uid, before, after: changes.append((uid, before, after)),
    )
    return Seen(watch, made, changes)


async def test_an_own_write_counts_until_the_watch_has_caught_up(seen: Seen) -> None:
    seen.watch.tells("a", Thing("5", "old"))
    seen.newest.wrote("a", Thing("9", "ours"))
    seen.watch.tells("a", Thing("7", "late"))
    assert seen.now() == Thing("9", "ours")
    seen.watch.tells("a", Thing("10", "newer"))
    assert seen.now() == Thing("10", "newer")


async def test_versions_are_numbers(seen: Seen) -> None:
    seen.newest.wrote("a", Thing("100", "ours"))
    seen.watch.tells("a", Thing("99", "late"))
    assert seen.now() == Thing("100", "ours")


async def test_an_answer_that_comes_after_the_deletion_brings_nothing_back(seen: Seen) -> None:
    seen.watch.tells("a", Thing("5"))
    seen.watch.gone("a")
    seen.newest.wrote("a", Thing("4", "ours"))
    assert seen.now() is None
    assert [after for _, _, after in seen.changes] == [Thing("5"), None]


async def test_what_was_written_and_is_never_told_is_forgotten(seen: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    seen.newest.wrote("a", Thing("5"))
    seen.newest.wrote("b", Thing("6"))
    seen.watch.tells("b", Thing("6"))
    seen.newest.forget_unseen()
    assert seen.now("a") is not None
    monkeypatch.setattr(newest, "_UNSEEN_SECONDS", -1.0)
    seen.newest.forget_unseen()
    assert (seen.now("a"), seen.now("b")) == (None, Thing("6"))


async def test_what_was_forgotten_and_is_met_all_the_same_is_there(seen: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    seen.newest.wrote("a", Thing("5"))
    monkeypatch.setattr(newest, "_UNSEEN_SECONDS", -1.0)
    seen.newest.forget_unseen()
    seen.newest.wrote("a", Thing("6"))
    assert seen.now() == Thing("6")


async def test_after_another_leaders_term_only_the_watch_is_believed(seen: Seen) -> None:
    seen.newest.wrote("a", Thing("5"))
    seen.watch.tells("b", Thing("6"))
    seen.newest.clear()
    assert seen.newest.items() == {"b": Thing("6")}


async def test_a_word_that_changes_nothing_is_not_passed_on(seen: Seen) -> None:
    seen.newest.wrote("a", Thing("5"))
    seen.watch.tells("a", Thing("5"))
    assert len(seen.changes) == 1
