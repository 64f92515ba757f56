"""Requests turned into rounds, and objects created for rounds, while other clients write them."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from kubemend.common import aio
from kubemend.common.components import ComponentStatus
from kubemend.common.kube import client, errors
from kubemend.controller.restarts import names, objects, writing
from kubemend.controller.restarts.objects import Restart
from kubemend.controller.restarts.status_writer import StatusWriter
from tests.contract.api import restarts
from tests.control_plane import Tenant
from tests.unit.reporters.running import connected, started


class Env:
    """A server with the resource, a request, and a client."""

    def __init__(self, tenant: Tenant, api: client.KubeClient, request: Restart) -> None:
        self.faults = tenant.server
        self.api = api
        self.request = request
        self.namespace = tenant.namespace
        self.new = restarts.new_round(tenant.namespace)
        self.path = names.path(tenant.namespace, "a")

    def conflicts(self, count: int) -> None:
        """Refuse this many of the next patches, for a reason other than a newer version."""
        self.faults.fail_next(count, status=409, method="PATCH", path="/restarts/a")

    async def adopt(self) -> writing.Written:
        return await writing.adopt(self.api, self.request, self.new)

    async def annotate(self, **annotations: str | None) -> None:
        body = {"metadata": {"annotations": annotations}}
        await self.api.patch(self.path, body, content_type=client.Patch.MERGE)


@pytest.fixture
async def env(tenant: Tenant) -> AsyncIterator[Env]:
    async with connected(tenant) as api:
        made = await api.create(names.collection(tenant.namespace), restarts.restart("a"))
        yield Env(tenant, api, objects.parse(made))


async def test_request_relabelled_concurrently_is_taken_at_once(env: Env) -> None:
    await env.annotate(mine="1")
    assert (await env.adopt()).epoch == str(env.new.epoch)
    assert env.faults.hits == 0


async def test_repeatedly_refused_request_is_left_for_later(env: Env) -> None:
    env.conflicts(10_000)
    async with asyncio.timeout(30):
        with pytest.raises(errors.ConflictError):
            await env.adopt()
    assert env.faults.hits == 3


async def test_request_left_for_later_is_taken_then(env: Env) -> None:
    reports: list[ComponentStatus] = []
    waits = aio.Backoff(first=0.01, limit=0.05)
    writer = StatusWriter(api=env.api, report=reports.append, backoff=lambda: waits)
    env.conflicts(8)
    async with started(writer):
        assert await writer.begin(f"{env.namespace}/a", env.adopt, timeout=60.0)
    assert env.faults.hits == 8
    assert [each for each in reports if each.message] != []
    assert writing.written(await env.api.get(env.path)).epoch == str(env.new.epoch)


async def test_lost_answer_is_detected_though_request_is_refused(env: Env) -> None:
    taken = await env.adopt()
    env.conflicts(1)
    assert await env.adopt() == taken


@pytest.mark.parametrize("epoch", [None, "7"])
async def test_round_of_another_leader_or_none_does_not_belong_to_this_one(env: Env, epoch: str | None) -> None:
    await env.adopt()
    await env.annotate(**{names.EPOCH: epoch})
    with pytest.raises(writing.SupersededError, match=f"{env.namespace}/a is a round already"):
        await env.adopt()


async def test_recreated_request_is_another_one(env: Env) -> None:
    env.request = replace(env.request, uid="another")
    env.conflicts(1)
    with pytest.raises(writing.SupersededError, match="was deleted or replaced"):
        await env.adopt()


async def test_quota_conflict_is_no_missing_definition(env: Env) -> None:
    env.faults.fail_next(1, status=409, method="POST", path="/restarts")
    with pytest.raises(errors.ConflictError):
        await writing.create(env.api, "b", env.new)
    assert (await writing.create(env.api, "b", env.new)).name == "b"
