"""The Lease: its holder, its epoch, and errors of the API server."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest
import structlog

from hack.devnode import apiproxy
from kubemend.common import epochs
from kubemend.common.components import ComponentRegistry, ComponentStatus
from kubemend.common.kube import client, errors, paths
from kubemend.controller.leader import library
from kubemend.controller.leader.election import Election, Timing
from kubemend.controller.leader.lease import EPOCH, EpochLock
from tests.control_plane import Tenant
from tests.unit.reporters.running import connected

RECORD = library.LeaderElectionRecord("ignored", "15.0", "ignored", "ignored")
NOW = 1_700_000_000.25
HIGHEST = epochs.highest(NOW)


@dataclass(frozen=True, slots=True)
class Env:
    """A namespace with or without a Lease, on a server that can fail."""

    server: apiproxy.ApiProxy
    api: client.KubeClient
    namespace: str

    @property
    def leases(self) -> str:
        return paths.collection("leases", namespace=self.namespace, group="coordination.k8s.io")

    async def read(self, one: EpochLock) -> tuple[bool, Any]:
        return await one.get("l", self.namespace)

    async def write(self, one: EpochLock) -> bool:
        found, _ = await self.read(one)
        return await (one.update("l", self.namespace, RECORD) if found else one.create("l", self.namespace, RECORD))


@pytest.fixture
async def env(tenant: Tenant) -> AsyncIterator[Env]:
    async with connected(tenant) as api:
        yield Env(tenant.server, api, tenant.namespace)


def lock(env: Env, identity: str) -> EpochLock:
    return EpochLock(api=env.api, namespace=env.namespace, name="l", identity=identity, clock=lambda: NOW)


async def test_times_are_utc_in_any_time_zone(env: Env, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    assert await env.write(lock(env, "a"))
    spec = (await env.api.get(f"{env.leases}/l"))["spec"]
    assert spec == {
        "holderIdentity": "a",
        "leaseDurationSeconds": 15,
        "acquireTime": "2023-11-14T22:13:20.250000Z",
        "renewTime": "2023-11-14T22:13:20.250000Z",
        "leaseTransitions": 0,
    }


async def test_epoch_grows_with_each_new_holder_only(env: Env) -> None:
    first, second = lock(env, "a"), lock(env, "b")
    epochs = []
    for one in (first, first, second, second, first):
        assert await env.write(one)
        epochs.append((one.epoch, one.regained))
    assert epochs == [(1, True), (1, False), (2, True), (2, False), (3, True)]


async def test_one_of_two_concurrent_writes_fails(env: Env) -> None:
    for found, names in ((False, "ab"), (True, "cd")):  # a missing Lease, and an existing one
        first, second = (lock(env, name) for name in names)
        assert (await env.read(first))[0] is (await env.read(second))[0] is found
        verb = "update" if found else "create"
        wrote = await asyncio.gather(*(getattr(one, verb)("l", env.namespace, RECORD) for one in (first, second)))
        assert sorted(wrote) == [False, True]
        assert first.error is second.error is None


async def test_lease_without_valid_epoch_begins_again(env: Env) -> None:
    for content in (
        {},
        {"annotations": {EPOCH: "many"}},
        {"annotations": {EPOCH: "-4"}},
        {"annotations": {EPOCH: "9" * 5000}},
        {"annotations": {EPOCH: "9" * 18}},
        {"annotations": {EPOCH: str(HIGHEST + 1)}},
    ):
        await env.api.create(env.leases, {"metadata": {"name": "l", **content}, "spec": {"holderIdentity": "x"}})
        one = lock(env, "a")
        assert await env.write(one)
        assert one.epoch == 1
        await env.api.delete(f"{env.leases}/l")


async def test_epoch_above_the_highest_possible_must_wait(env: Env) -> None:
    now = 1_800_000_000.0
    highest = epochs.highest(now)
    one = EpochLock(api=env.api, namespace=env.namespace, name="l", identity="a", clock=lambda: now)
    await env.api.create(env.leases, {"metadata": {"name": "l", "annotations": {EPOCH: str(highest)}}})
    assert not await env.write(one)
    assert one.epoch == 0
    now += 1
    assert await env.write(one)
    assert (one.epoch, one.regained) == (highest + 1, True)


async def test_huge_foreign_epoch_does_not_cost_the_leader_its_own(env: Env) -> None:
    one = lock(env, "a")
    one.floor = 42
    assert await env.write(one)
    lease = await env.api.get(f"{env.leases}/l")
    await env.api.update(
        f"{env.leases}/l", {**lease, "metadata": {**lease["metadata"], "annotations": {EPOCH: "9" * 18}}}
    )
    assert await env.write(one)
    assert (one.epoch, one.regained) == (42, False)
    assert (await env.api.get(f"{env.leases}/l"))["metadata"]["annotations"][EPOCH] == "42"


async def test_epoch_grows_after_lease_was_deleted(env: Env) -> None:
    one = lock(env, "a")
    assert await env.write(one)
    await env.api.delete(f"{env.leases}/l")
    assert await env.write(one)
    assert (one.epoch, one.regained) == (2, True)


async def test_floor_is_respected(env: Env) -> None:
    one = lock(env, "a")
    one.floor = 42
    assert await env.write(one)
    assert (await env.api.get(f"{env.leases}/l"))["metadata"]["annotations"][EPOCH] == "42"


async def test_foreign_annotations_are_kept(env: Env) -> None:
    await env.api.create(env.leases, {"metadata": {"name": "l", "annotations": {"x": "1"}, "labels": {"y": "2"}}})
    assert await env.write(lock(env, "a"))
    metadata = (await env.api.get(f"{env.leases}/l"))["metadata"]
    assert (metadata["annotations"]["x"], metadata["labels"]) == ("1", {"y": "2"})


async def test_errors_are_reported_and_never_raised(env: Env) -> None:
    one = lock(env, "a")
    env.server.fail_next(1, status=403, method="GET", path="/leases")
    found, reason = await env.read(one)
    assert not found
    assert reason.status == 403
    assert isinstance(one.error, errors.ForbiddenError)
    assert (await env.read(one))[1].body == '{"code": 404}'
    assert one.error is None
    env.server.fail_next(1, status=403, method="POST", path="/leases")
    assert not await one.create("l", env.namespace, RECORD)
    assert isinstance(one.error, errors.ForbiddenError)
    await env.server.stop()
    assert not (await env.read(one))[0]
    assert isinstance(one.error, errors.ApiUnavailableError)


async def test_outage_is_logged_once(env: Env, caplog: pytest.LogCaptureFixture) -> None:
    """The library logs an error at each attempt."""
    attempts, many = 0, asyncio.Event()
    take = ComponentRegistry(show=lambda *_: None).reporter("leader")

    def report(status: ComponentStatus) -> None:
        nonlocal attempts
        attempts += 1
        take(status)
        if attempts == 2:
            many.set()

    await env.server.stop()
    campaign = Election(
        api=env.api,
        namespace=env.namespace,
        name="l",
        identity="a",
        lead=lambda _: asyncio.Event().wait(),
        report=report,
        timing=Timing(retry=1.0),  # the least that the library takes
    )
    with structlog.testing.capture_logs() as logs:
        running = asyncio.create_task(campaign.run())
        await many.wait()
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
    assert [(each["event"], each["state"]) for each in logs if each["log_level"] != "debug"] == [
        ("component", "degraded")
    ]
    assert not caplog.records


async def test_only_the_holder_releases_lease(env: Env) -> None:
    first, second = lock(env, "a"), lock(env, "b")
    assert await env.write(first)
    await second.release()
    assert (await env.api.get(f"{env.leases}/l"))["spec"]["holderIdentity"] == "a"
    await first.release()
    assert await env.read(second) == (True, None)
    assert await env.write(second)
    assert second.epoch == 2
