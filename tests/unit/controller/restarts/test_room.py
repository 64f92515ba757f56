"""Oversized Restart objects, which any author of Restarts can create, are kept in a reduced form."""

import json
from collections.abc import Mapping
from typing import Any

import pytest

from kubemend.common.kube import shares, timestamps
from kubemend.controller.restarts import names, objects
from kubemend.controller.restarts.objects import Restart
from kubemend.controller.restarts.store import RestartStore
from tests.fakes.listing_api import ListingApi
from tests.unit.controller.restarts import builders
from tests.unit.reporters.running import started

SMALL = 16_384
LONG = "x" * 250_000
OF_A_ROUND = {
    "labels": {names.GANG_KIND: "Job", names.GANG_NAME: "train"},
    "annotations": {names.ATTEMPT: "3", names.EPOCH: "5"},
}


def forged(name: str, status: Mapping[str, Any], *, gang_uid: str = "") -> dict[str, Any]:
    """Return an object that looks like a round."""
    annotations = {**OF_A_ROUND["annotations"], names.ROUND: json.dumps(dict(status)), names.GANG_UID: gang_uid}
    return builders.obj(name, labels=OF_A_ROUND["labels"], annotations=annotations)


async def test_oversized_round_takes_no_room_of_others() -> None:
    members = {str(number): number for number in range(17_000)}
    many = [forged(f"huge-{number}", {"phase": "Stopping", "members": members}) for number in range(5)]
    usual = forged("usual", builders.STATUS)
    store = RestartStore(api=ListingApi({names.WHOLE: [usual, *many]}), report=lambda _: None, is_alive=lambda _: True)
    async with started(store):
        await store.wait_synced()
        found = store.restarts()
    assert len(found) == 1 + len(many)
    assert all(shares.weight(each) < SMALL for each in found.values())
    assert found["team/usual"].status == builders.STATUS
    assert {(each.gang, each.attempt, each.phase) for each in found.values()} == {(builders.GANG, 3, "Stopping")}


@pytest.mark.parametrize(
    ("status", "gang_uid"),
    [
        ({}, LONG),
        ({"phase": LONG}, ""),
        ({"trigger": {"kind": LONG}}, ""),
        ({"resume": {"recreate": [LONG]}}, ""),
    ],
    ids=["uid", "phase", "trigger", "resume"],
)
def test_bare_restart_is_small(status: dict[str, Any], gang_uid: str) -> None:
    whole = objects.parse(forged("a", status, gang_uid=gang_uid))
    assert shares.weight(whole) > SMALL
    assert shares.weight(objects.bare(whole)) < SMALL


def test_bare_restart_keeps_its_times_and_whether_it_has_ended() -> None:
    end = timestamps.rfc3339(builders.NOW + 60)
    ended = {**builders.STATUS, "phase": "Done", "startTime": timestamps.rfc3339(builders.NOW), "completionTime": end}
    whole = builders.of_round(builders.new_round(), status=ended)
    found: Restart = objects.bare(whole)
    assert (found.is_finished, found.begun_at, found.finished_at) == (True, builders.NOW, builders.NOW + 60)
    assert (found.id, found.uid, found.ref, found.spec) == (whole.id, whole.uid, whole.ref, whole.spec)
