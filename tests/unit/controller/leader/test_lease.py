"""The Lease: whose it is, under which epoch, and what the API server's troubles do to it."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from common import epochs
from common.kube import client, errors, paths
from controller.leader import library
from controller.leader.lease import EPOCH, EpochLock
from hack.devnode.api import standin
from tests.unit.reporters.running import connected

LEASES = paths.collection("leases", namespace="default", group="coordination.k8s.io")
RECORD = library.LeaderElectionRecord("ignored", "15.0", "ignored", "ignored")
NOW = 1_700_000_000.25
HIGHEST = epochs.highest(NOW)


@pytest.fixture
async def server_and_api(tmp_path: Path) -> AsyncIterator[tuple[standin.StandIn, client.KubeClient]]:
    async with connected(tmp_path) as both:
        yield both


@pytest.fixture
def api(server_and_api: tuple[standin.StandIn, client.KubeClient]) -> client.KubeClient:
    return server_and_api[1]


@pytest.fixture
def server(server_and_api: tuple[standin.StandIn, client.KubeClient]) -> standin.StandIn:
    return server_and_api[0]


def lock(api: client.KubeClient, identity: str) -> EpochLock:
    return EpochLock(api=api, namespace="default", name="l", identity=identity, clock=lambda: NOW)


async def look(one: EpochLock) -> tuple[bool, Any]:
    return await one.get("l", "default")


async def write(one: EpochLock) -> bool:
    found, _ = await look(one)
    return await (one.update("l", "default", RECORD) if found else one.create("l", "default", RECORD))


async def test_times_are_utc_whatever_the_time_zone(api: client.KubeClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    assert await write(lock(api, "a"))
    spec = (await api.get(f"{LEASES}/l"))["spec"]
    assert spec == {
        "holderIdentity": "a",
        "leaseDurationSeconds": 15,
        "acquireTime": "2023-11-14T22:13:20.250000Z",
        "renewTime": "2023-11-14T22:13:20.250000Z",
        "leaseTransitions": 0,
    }


async def test_the_epoch_grows_with_every_holder_and_stays_with_each(api: client.KubeClient) -> None:
    first, second = lock(api, "a"), lock(api, "b")
    epochs = []
    for one in (first, first, second, second, first):
        assert await write(one)
        epochs.append((one.epoch, one.regained))
    assert epochs == [(1, True), (1, False), (2, True), (2, False), (3, True)]


async def test_of_two_that_write_at_once_one_fails(api: client.KubeClient) -> None:
    for found, names in ((False, "ab"), (True, "cd")):  # a Lease that is not there yet, and one that is
        first, second = (lock(api, name) for name in names)
        assert (await look(first))[0] is (await look(second))[0] is found
        verb = "update" if found else "create"
        wrote = await asyncio.gather(*(getattr(one, verb)("l", "default", RECORD) for one in (first, second)))
        assert sorted(wrote) == [False, True]
        assert first.error is second.error is None


async def test_a_lease_without_a_sensible_epoch_begins_anew(api: client.KubeClient) -> None:
    for told in (
        {},
        {"annotations": {EPOCH: "many"}},
        {"annotations": {EPOCH: "-4"}},
        {"annotations": {EPOCH: "9" * 5000}},
        {"annotations": {EPOCH: "9" * 18}},
        {"annotations": {EPOCH: str(HIGHEST + 1)}},
    ):
        await api.create(LEASES, {"metadata": {"name": "l", **told}, "spec": {"holderIdentity": "x"}})
        one = lock(api, "a")
        assert await write(one)
        assert one.epoch == 1
        await api.delete(f"{LEASES}/l")


async def test_above_the_highest_epoch_there_can_be_the_next_is_taken_when_there_can(api: client.KubeClient) -> None:
    now = 1_800_000_000.0
    highest = epochs.highest(now)
    one = EpochLock(api=api, namespace="default", name="l", identity="a", clock=lambda: now)
    await api.create(LEASES, {"metadata": {"name": "l", "annotations": {EPOCH: str(highest)}}})
    assert not await write(one)
    assert one.epoch == 0
    now += 1
    assert await write(one)
    assert (one.epoch, one.regained) == (highest + 1, True)


async def test_a_huge_epoch_written_under_a_leader_does_not_cost_it_its_own(api: client.KubeClient) -> None:
    one = lock(api, "a")
    one.floor = 42
    assert await write(one)
    lease = await api.get(f"{LEASES}/l")
    await api.update(f"{LEASES}/l", {**lease, "metadata": {**lease["metadata"], "annotations": {EPOCH: "9" * 18}}})
    assert await write(one)
    assert (one.epoch, one.regained) == (42, False)
    assert (await api.get(f"{LEASES}/l"))["metadata"]["annotations"][EPOCH] == "42"


async def test_a_deleted_lease_keeps_its_last_holders_epoch_growing(api: client.KubeClient) -> None:
    one = lock(api, "a")
    assert await write(one)
    await api.delete(f"{LEASES}/l")
    assert await write(one)
    assert (one.epoch, one.regained) == (2, True)


async def test_the_floor_is_kept(api: client.KubeClient) -> None:
    one = lock(api, "a")
    one.floor = 42
    assert await write(one)
    assert (await api.get(f"{LEASES}/l"))["metadata"]["annotations"][EPOCH] == "42"


async def test_foreign_annotations_stay(api: client.KubeClient) -> None:
    await api.create(LEASES, {"metadata": {"name": "l", "annotations": {"x": "1"}, "labels": {"y": "2"}}})
    assert await write(lock(api, "a"))
    metadata = (await api.get(f"{LEASES}/l"))["metadata"]
    assert (metadata["annotations"]["x"], metadata["labels"]) == ("1", {"y": "2"})


async def test_what_fails_is_told_and_never_raised(server: standin.StandIn, api: client.KubeClient) -> None:
    one = lock(api, "a")
    server.handler.faults.fail_next(1, status=403, method="GET", path="/leases")
    found, why = await look(one)
    assert not found
    assert why.status == 403
    assert isinstance(one.error, errors.ForbiddenError)
    assert (await look(one))[1].body == '{"code": 404}'
    assert one.error is None
    server.handler.faults.fail_next(1, status=403, method="POST", path="/leases")
    assert not await one.create("l", "default", RECORD)
    assert isinstance(one.error, errors.ForbiddenError)
    await server.stop()
    assert not (await look(one))[0]
    assert isinstance(one.error, errors.ApiUnavailableError)


async def test_only_its_holder_gives_it_up(api: client.KubeClient) -> None:
    first, second = lock(api, "a"), lock(api, "b")
    assert await write(first)
    await second.release()
    assert (await api.get(f"{LEASES}/l"))["spec"]["holderIdentity"] == "a"
    await first.release()
    assert await look(second) == (True, None)
    assert await write(second)
    assert second.epoch == 2
