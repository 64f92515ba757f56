"""What the store of Restart objects returns and does, after any changes."""

import itertools
from collections.abc import Sequence

import pytest

from kubemend.common.gangs import GangKey
from kubemend.common.kube import errors, informer, timestamps
from kubemend.common.kube.changes import ChangeKind
from kubemend.controller.restarts import objects, writing
from kubemend.controller.restarts import store as store_module
from kubemend.controller.restarts.objects import Restart
from kubemend.controller.restarts.store import RestartStore
from tests import background, eventually
from tests.fakes.listing_api import ListingApi
from tests.unit.controller.restarts import builders

TRAIN, OTHER = builders.GANG, GangKey("team", "Job", "other")


def made(name: str, *, gang: str = "train", uid: str = "") -> Restart:
    spec = {"gang": {"kind": "Job", "name": gang}}
    return objects.parse(builders.obj(name, spec=spec, uid=uid or f"uid-of-{name}"))


APPEARED = (ChangeKind.APPEARED, made("a"))
IN_ANOTHER_GANG = (ChangeKind.CHANGED, made("a", gang="other"))
SECOND = (ChangeKind.APPEARED, made("b"))
GONE = (ChangeKind.GONE, made("a"))
SUCCESSOR = (ChangeKind.APPEARED, made("a", gang="other", uid="uid-2"))
WITHOUT_A_GANG = (ChangeKind.CHANGED, objects.parse(builders.obj("b", spec={})))

Step = tuple[ChangeKind, Restart]


@pytest.mark.parametrize(
    ("steps", "of_train", "of_other"),
    [
        ((APPEARED, SECOND), ["team/a", "team/b"], []),
        ((APPEARED, SECOND, IN_ANOTHER_GANG), ["team/b"], ["team/a"]),
        ((APPEARED, IN_ANOTHER_GANG, GONE), [], []),
        ((APPEARED, SUCCESSOR, GONE), [], ["team/a"]),
        ((APPEARED, GONE, SUCCESSOR), [], ["team/a"]),
        ((APPEARED, SECOND, WITHOUT_A_GANG, GONE), [], []),
    ],
    ids=["two", "moved", "moved-and-gone", "replaced-before-gone", "replaced-after-gone", "without"],
)
def test_gang_has_its_own_objects(steps: Sequence[Step], of_train: list[str], of_other: list[str]) -> None:
    store = RestartStore(api=ListingApi(), report=lambda _: None, is_alive=lambda _: True)
    for kind, restart in steps:
        store._apply(informer.Change(kind, restart.uid, restart))
    assert [sorted(store.of_gang(gang)) for gang in (TRAIN, OTHER)] == [of_train, of_other]
    whole = store.restarts()
    assert {*of_train, *of_other} == {each.id for each in whole.values() if each.gang is not None}
    assert all(whole[each.id] is each for each in itertools.chain(*(store.of_gang(g).values() for g in (TRAIN, OTHER))))


async def test_object_that_cannot_be_removed_is_not_tried_at_each_change(monkeypatch: pytest.MonkeyPatch) -> None:
    """A policy may refuse deletions: thousands would be tried once a second while other objects change."""
    tried: list[str] = []

    async def refuse(_api: object, restart: Restart) -> None:
        tried.append(restart.id)
        raise errors.ForbiddenError("a policy refuses it")

    monkeypatch.setattr(writing, "remove", refuse)
    monkeypatch.setattr(store_module, "_SETTLE_SECONDS", 0.0)
    store = RestartStore(api=ListingApi(), report=lambda _: None, is_alive=lambda _: False, clock=lambda: builders.NOW)
    ended = {"phase": "Done", "completionTime": timestamps.rfc3339(builders.NOW - 10**6)}
    expired = builders.of_round(builders.new_round(), status=ended)
    store._apply(informer.Change(ChangeKind.APPEARED, expired.uid, expired))
    store._informer._synced.set()
    async with background.running(store._sweep()):
        for name in ("b", "c", "d"):
            await eventually.true(lambda: not store._changed.is_set())
            other = made(name)
            store._apply(informer.Change(ChangeKind.APPEARED, other.uid, other))
        await eventually.true(lambda: not store._changed.is_set())
    assert tried == [expired.id]
