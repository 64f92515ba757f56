"""The fault proxy in front of a real API server: what it passes on, and its faults."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from kubemend.common.kube import client, errors, paths, watch_protocol
from tests.control_plane import Tenant


def config_map(name: str, **data: str) -> dict[str, Any]:
    return {"metadata": {"name": name}, "data": data}


@pytest.fixture
async def api(tenant: Tenant) -> AsyncIterator[client.KubeClient]:
    async with tenant.client() as connected:
        yield connected


@pytest.fixture
def maps(tenant: Tenant) -> str:
    return tenant.of("configmaps")


async def first(events: AsyncIterator[watch_protocol.WatchEvent]) -> str:
    """Return the name of the first object of a watch, bookmarks apart."""
    async for event in events:
        if event.type is not watch_protocol.EventType.BOOKMARK:
            return str(event.object["metadata"]["name"])
    raise AssertionError("the watch has ended")


async def test_objects_and_watches_are_passed_on(api: client.KubeClient, maps: str) -> None:
    version = (await api.list(maps)).resource_version
    async with contextlib.aclosing(api.watch(maps, resource_version=version)) as events:
        created = await api.create(maps, config_map("a", y="ö"))
        assert await first(events) == "a"
    assert await api.get(f"{maps}/a") == created
    await api.patch(f"{maps}/a", {"data": {"x": "y"}}, content_type=client.Patch.MERGE)
    (found,) = (await api.list(maps, params={"fieldSelector": "metadata.name=a"})).items
    assert found["data"] == {"y": "ö", "x": "y"}
    await api.delete(f"{maps}/a")


async def test_the_callers_credentials_are_passed_on(tenant: Tenant, tmp_path: Path) -> None:
    config = yaml.safe_load(tenant.kubeconfig.read_text())
    config["users"][0]["user"]["token"] = "wrong"
    path = tmp_path / "wrong"
    path.write_text(yaml.safe_dump(config))
    async with client.connect(kubeconfig=path) as stranger:
        with pytest.raises(errors.UnauthorizedError):
            await stranger.list(paths.PODS)


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (403, errors.ForbiddenError),
        (404, errors.NotFoundError),
        (409, errors.ConflictError),
        (429, errors.ApiUnavailableError),
        (500, errors.ApiUnavailableError),
        (503, errors.ApiUnavailableError),
    ],
)
async def test_rule_fails_a_number_of_requests_with_its_message(
    tenant: Tenant, api: client.KubeClient, maps: str, status: int, kind: type[errors.KubeError]
) -> None:
    tenant.server.fail_next(1, status=status, method="POST", path="/configmaps", message="not today", retry_after=7)
    assert (await api.list(maps)).items == []
    with pytest.raises(kind, match="not today") as caught:
        await api.create(maps, config_map("a"))
    assert (caught.value.status, caught.value.retry_after) == (status, 7.0)
    assert (await api.list(maps)).items == [], "the server has not received it"
    await api.create(maps, config_map("a"))
    assert tenant.server.hits == 1


async def test_lost_answer_is_to_a_request_that_was_carried_out(
    tenant: Tenant, api: client.KubeClient, maps: str
) -> None:
    tenant.server.fail_next(1, method="POST", lost=True)
    with pytest.raises(errors.ApiUnavailableError):
        await api.create(maps, config_map("a"))
    assert [each["metadata"]["name"] for each in (await api.list(maps)).items] == ["a"]


async def test_stopped_proxy_breaks_watches_and_refuses_connections(
    tenant: Tenant, api: client.KubeClient, maps: str
) -> None:
    port = tenant.server.port
    version = (await api.list(maps)).resource_version
    async with contextlib.aclosing(api.watch(maps, resource_version=version)) as events:
        waiting = asyncio.create_task(first(events))
        await api.create(maps, config_map("a"))
        await waiting
        await tenant.server.stop()
        with pytest.raises(errors.ApiUnavailableError):
            await first(events)
    with pytest.raises(errors.ApiUnavailableError, match="is the API server up"):
        await api.list(maps)
    await tenant.server.start()
    assert tenant.server.port == port
    assert len((await api.list(maps)).items) == 1


async def test_hanging_proxy_answers_only_after_resume(tenant: Tenant, api: client.KubeClient, maps: str) -> None:
    tenant.server.hang()
    async with tenant.client(client.Deadlines(call=0.1)) as impatient:
        with pytest.raises(errors.ApiUnavailableError, match="no answer within"):
            await impatient.list(maps)
    patient = asyncio.create_task(api.create(maps, config_map("a")))
    tenant.server.resume()
    assert (await patient)["metadata"]["name"] == "a"


async def test_slow_proxy_delays_each_request(tenant: Tenant, api: client.KubeClient, maps: str) -> None:
    tenant.server.slow(3600.0)
    async with tenant.client(client.Deadlines(call=0.1)) as impatient:
        with pytest.raises(errors.ApiUnavailableError, match="no answer within"):
            await impatient.list(maps)
    tenant.server.slow(0.01)
    await api.list(maps)


async def test_cut_watch_is_an_error_for_its_watcher_alone(tenant: Tenant, api: client.KubeClient, maps: str) -> None:
    await api.create(maps, config_map("a"))
    async with contextlib.aclosing(api.watch(maps)) as events:
        assert await first(events) == "a"
        tenant.server.cut_watches()
        with pytest.raises(errors.ApiUnavailableError):
            await first(events)
    assert len((await api.list(maps)).items) == 1


async def test_forgotten_history_ends_only_watches_that_resume_from_it(
    tenant: Tenant, api: client.KubeClient, maps: str
) -> None:
    version = (await api.list(maps)).resource_version
    async with contextlib.aclosing(api.watch(maps, resource_version=version)) as events:
        await api.create(maps, config_map("a"))
        assert await first(events) == "a"
        await tenant.server.forget_history()
        with pytest.raises(errors.GoneError, match="too old resource version"):
            await first(api.watch(maps, resource_version=version))
        version = (await api.list(maps)).resource_version
        later = asyncio.create_task(first(api.watch(maps, resource_version=version)))
        await api.create(maps, config_map("b"))
        assert await first(events) == "b"
        assert await later == "b"


async def test_answers_can_be_rewritten(tenant: Tenant, api: client.KubeClient, maps: str) -> None:
    await api.create(maps, config_map("a", x="1"))
    tenant.server.rewrite = replaced
    assert (await api.get(f"{maps}/a"))["data"] == {"x": 1}
    async with contextlib.aclosing(api.watch(maps)) as events:
        assert (await anext(events)).object["data"] == {"x": 1}


def replaced(text: bytes) -> bytes:
    return text.replace(b'"x":"1"', b'"x":1')


async def test_requests_are_counted(tenant: Tenant, api: client.KubeClient, maps: str) -> None:
    before = tenant.server.counts["GET", maps]
    await api.list(maps)
    await api.create(maps, config_map("a"))
    assert (tenant.server.counts["GET", maps], tenant.server.counts["POST", maps]) == (before + 1, 1)
