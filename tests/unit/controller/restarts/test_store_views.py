"""What the store of Restart objects returns, after any changes."""

import itertools
from collections.abc import Sequence

import pytest

from kubemend.common.gangs import GangKey
from kubemend.common.kube import informer
from kubemend.common.kube.changes import ChangeKind
from kubemend.controller.restarts import objects
from kubemend.controller.restarts.objects import Restart
from kubemend.controller.restarts.store import RestartStore
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
