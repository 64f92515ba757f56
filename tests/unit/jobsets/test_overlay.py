"""The newest state: the watch's, or that of our own write's answer."""

from collections.abc import Callable
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, cast

import pytest

from kubemend.common.kube import informer
from kubemend.common.kube.changes import ChangeKind
from kubemend.controller.jobsets import overlay as newest
from kubemend.controller.jobsets.overlay import Overlay


@dataclass(frozen=True)
class Thing:
    version: str
    state: str = ""


class Watch:
    """An Informer stand-in whose changes the test sends."""

    def __init__(self) -> None:
        self.all: dict[str, Thing] = {}
        self.listener: Callable[[informer.Change[Thing]], None] = lambda _: None

    def items(self) -> MappingProxyType[str, Thing]:
        return MappingProxyType(self.all)

    def subscribe(self, listener: Callable[[informer.Change[Thing]], None]) -> Callable[[], None]:
        self.listener = listener
        return lambda: None

    def reports(self, uid: str, thing: Thing) -> None:
        kind = ChangeKind.CHANGED if uid in self.all else ChangeKind.APPEARED
        self.all[uid] = thing
        self.listener(informer.Change(kind, uid, thing))

    def gone(self, uid: str) -> None:
        self.listener(informer.Change(ChangeKind.GONE, uid, self.all.pop(uid)))


@dataclass
class Seen:
    watch: Watch
    newest: Overlay[Thing]
    changes: list[tuple[str, Thing | None, Thing | None]]

    def now(self, uid: str = "a") -> Thing | None:
        return self.newest.items().get(uid)


@pytest.fixture
def seen() -> Seen:
    watch = Watch()
    changes: list[tuple[str, Thing | None, Thing | None]] = []
    made: Overlay[Thing] = Overlay(
        cast("informer.Informer[Any]", watch),
        version=lambda thing: thing.version,
        changed=lambda uid, before, after: changes.append((uid, before, after)),
    )
    return Seen(watch, made, changes)


async def test_own_write_counts_until_watch_catches_up(seen: Seen) -> None:
    seen.watch.reports("a", Thing("5", "old"))
    seen.newest.wrote("a", Thing("9", "ours"))
    seen.watch.reports("a", Thing("7", "late"))
    assert seen.now() == Thing("9", "ours")
    seen.watch.reports("a", Thing("10", "newer"))
    assert seen.now() == Thing("10", "newer")


async def test_versions_are_compared_as_numbers(seen: Seen) -> None:
    seen.newest.wrote("a", Thing("100", "ours"))
    seen.watch.reports("a", Thing("99", "late"))
    assert seen.now() == Thing("100", "ours")


async def test_answer_after_deletion_restores_nothing(seen: Seen) -> None:
    seen.watch.reports("a", Thing("5"))
    seen.watch.gone("a")
    seen.newest.wrote("a", Thing("4", "ours"))
    assert seen.now() is None
    assert [after for _, _, after in seen.changes] == [Thing("5"), None]


async def test_write_never_seen_by_watch_is_forgotten(seen: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    seen.newest.wrote("a", Thing("5"))
    seen.newest.wrote("b", Thing("6"))
    seen.watch.reports("b", Thing("6"))
    seen.newest.forget_unseen()
    assert seen.now("a") is not None
    monkeypatch.setattr(newest, "_UNSEEN_SECONDS", -1.0)
    seen.newest.forget_unseen()
    assert (seen.now("a"), seen.now("b")) == (None, Thing("6"))


async def test_forgotten_object_that_is_found_exists(seen: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    seen.newest.wrote("a", Thing("5"))
    monkeypatch.setattr(newest, "_UNSEEN_SECONDS", -1.0)
    seen.newest.forget_unseen()
    seen.newest.wrote("a", Thing("6"))
    assert seen.now() == Thing("6")


async def test_only_watch_counts_after_another_leaders_term(seen: Seen) -> None:
    seen.newest.wrote("a", Thing("5"))
    seen.watch.reports("b", Thing("6"))
    seen.newest.clear()
    assert seen.newest.items() == {"b": Thing("6")}


async def test_unchanged_object_is_not_passed_on(seen: Seen) -> None:
    seen.newest.wrote("a", Thing("5"))
    seen.watch.reports("a", Thing("5"))
    assert len(seen.changes) == 1
