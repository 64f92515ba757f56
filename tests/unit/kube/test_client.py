"""The client against a real API server with scripted faults, and against servers that behave badly on the wire."""

import asyncio
import contextlib
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from hack.devnode import apiproxy, kubeconfig
from kubemend.common.kube import client, errors, paths
from tests.control_plane import Tenant

Wire = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@pytest.fixture
def server(tenant: Tenant) -> apiproxy.ApiProxy:
    return tenant.server


@pytest.fixture
async def api(tenant: Tenant) -> AsyncIterator[client.KubeClient]:
    async with tenant.client() as connected:
        yield connected


@contextlib.asynccontextmanager
async def _against(tmp_path: Path, wire: Wire, deadlines: client.Deadlines) -> AsyncIterator[client.KubeClient]:
    """Give a client of a raw TCP server; wait at the end until the server is done with every connection."""
    connections: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        connections.add(task)
        try:
            await wire(reader, writer)
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    path = kubeconfig.write(tmp_path / "kubeconfig", server=f"http://127.0.0.1:{port}", token="x")
    async with client.connect(kubeconfig=path, deadlines=deadlines) as connected:
        yield connected
    server.close()
    await asyncio.gather(*connections)


@pytest.mark.parametrize("status", [429, 500, 503, 504])
async def test_busy_server_is_asked_again(server: apiproxy.ApiProxy, api: client.KubeClient, status: int) -> None:
    server.fail_next(2, status=status, retry_after=0)
    await api.list(paths.PODS)
    assert server.hits == 2


async def test_busy_server_times_out(server: apiproxy.ApiProxy, api: client.KubeClient) -> None:
    server.fail_next(100, retry_after=0)
    with pytest.raises(errors.ApiUnavailableError, match="a scripted fault"):
        await api.list(paths.PODS)
    assert server.hits == 4


@pytest.mark.parametrize("status", [400, 403, 404, 409, 422, 501])
async def test_refusals_are_not_repeated(server: apiproxy.ApiProxy, api: client.KubeClient, status: int) -> None:
    server.fail_next(2, status=status)
    with pytest.raises(errors.KubeError):
        await api.list(paths.PODS)
    assert server.hits == 1


async def test_creation_is_sent_once(server: apiproxy.ApiProxy, api: client.KubeClient) -> None:
    server.fail_next(2, method="POST", retry_after=0)
    with pytest.raises(errors.ApiUnavailableError):
        await api.create(paths.collection("namespaces"), {"metadata": {"name": "a"}})
    assert server.hits == 1


async def test_retry_after_beyond_the_deadline_ends_at_the_deadline(server: apiproxy.ApiProxy) -> None:
    deadlines = client.Deadlines(call=0.2)
    async with client.connect(kubeconfig=server.kubeconfig, deadlines=deadlines) as api:
        server.fail_next(1, status=429, retry_after=3600)
        with pytest.raises(errors.ApiUnavailableError, match=r"no answer within 0\.2 s"):
            await api.list(paths.PODS)


async def test_refused_connection_names_the_address(server: apiproxy.ApiProxy, api: client.KubeClient) -> None:
    await server.stop()
    with pytest.raises(errors.ApiUnavailableError, match=f"cannot list pods at .*{server.port}.*is the API server up"):
        await api.list(paths.PODS)


async def test_silent_server_times_out(tmp_path: Path) -> None:
    async def mute(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async with _against(tmp_path, mute, client.Deadlines(call=0.2)) as api:
        with pytest.raises(errors.ApiUnavailableError, match="no answer within"):
            await api.get("/version")
        with pytest.raises(errors.ApiUnavailableError, match="no answer within"):
            await anext(api.watch(paths.PODS))


@pytest.mark.parametrize("body", [b"nonsense", b"[1]"])
async def test_answer_that_is_not_an_object_is_an_unavailable_server(tmp_path: Path, body: bytes) -> None:
    async def odd(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        writer.write(head.encode() + body)
        await writer.drain()

    async with _against(tmp_path, odd, client.Deadlines()) as api:
        with pytest.raises(errors.ApiUnavailableError):
            await api.get("/version")


async def test_silent_watch_ends(tmp_path: Path) -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        await reader.read()  # until the client leaves

    async with _against(tmp_path, silent, client.Deadlines(silence=0.1)) as api:
        assert [event async for event in api.watch(paths.PODS)] == []


async def test_broken_watch_is_an_unavailable_server(tenant: Tenant, api: client.KubeClient) -> None:
    config_maps = tenant.of("configmaps")
    await api.create(config_maps, {"metadata": {"name": "a"}})
    events = api.watch(config_maps)
    await anext(events)
    tenant.server.cut_watches()
    with pytest.raises(errors.ApiUnavailableError):
        _ = [event async for event in events]  # a bookmark may have been on its way


async def test_objects_larger_than_any_buffer_pass_a_watch(tenant: Tenant, api: client.KubeClient) -> None:
    config_maps = tenant.of("configmaps")
    data = {"big": "x" * 1_000_000}
    await api.create(config_maps, {"metadata": {"name": "a"}, "data": data})
    events = api.watch(config_maps)
    assert (await anext(events)).object["data"] == data
    await events.aclose()


async def test_long_list_is_held_a_few_items_at_a_time(tmp_path: Path) -> None:
    async def long(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")
        writer.write(b'{"metadata": {"resourceVersion": "7"}, "items": [')
        for number in range(50):
            writer.write(b'{"metadata": {"name": "%d"}, "spec": "%s"},' % (number, b"x" * 1_000_000))
            await writer.drain()
        writer.write(b'{"metadata": {"name": "50"}}]}')
        await writer.drain()

    async with _against(tmp_path, long, client.Deadlines(call=60.0)) as api:
        tracemalloc.start()
        try:
            [page] = [page async for page in api.pages(paths.PODS, project=lambda obj: obj["metadata"]["name"])]
            most = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert page == client.Listing([*map(str, range(51))], resource_version="7")
    assert most < 20_000_000


@pytest.mark.parametrize("body", [b"nonsense", b"[1]", b'{"items": [{}', b'{"metadata": {}, "items": [{"a": '])
async def test_invalid_or_truncated_list_is_an_unavailable_server(tmp_path: Path, body: bytes) -> None:
    async def odd(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + body)
        await writer.drain()

    async with _against(tmp_path, odd, client.Deadlines()) as api:
        with pytest.raises(errors.ApiUnavailableError):
            await anext(api.pages(paths.PODS))


async def test_stalled_list_times_out(tmp_path: Path) -> None:
    async def mute(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + b'{"items": [{')
        await reader.read()  # until the client leaves

    async with _against(tmp_path, mute, client.Deadlines(call=0.2)) as api:
        with pytest.raises(errors.ApiUnavailableError, match="no answer within"):
            await anext(api.pages(paths.PODS))


@pytest.mark.parametrize("status", [200, 500])
async def test_endless_answer_is_not_kept(tmp_path: Path, status: int) -> None:
    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 %d So\r\nConnection: close\r\n\r\n" % status)
        with contextlib.suppress(ConnectionError):
            for _ in range(100):
                writer.write(b'"' + b"x" * 1_000_000)
                await writer.drain()

    async with _against(tmp_path, endless, client.Deadlines(call=60.0)) as api:
        with pytest.raises(errors.ApiUnavailableError, match="more than"):
            await api.create(paths.PODS, {})


async def test_no_compressed_answer_is_requested(tmp_path: Path) -> None:
    heads: list[bytes] = []

    async def ear(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n{}")
        await writer.drain()

    async with _against(tmp_path, ear, client.Deadlines()) as api:
        await api.get("/version")
    assert b"accept-encoding: identity\r\n" in heads[0].lower()


async def test_metadata_only_can_be_requested(tenant: Tenant, api: client.KubeClient) -> None:
    pods = tenant.of("pods")
    spec = {"nodeName": tenant.node, "containers": [{"name": "c", "image": "i"}]}
    await api.create(pods, {"metadata": {"name": "a"}, "spec": spec})
    [page] = [page async for page in api.pages(pods, metadata_only=True)]
    assert [(each["metadata"]["name"], "spec" in each) for each in page.items] == [("a", False)]
    events = api.watch(pods, metadata_only=True)
    event = await anext(events)
    assert (event.object["metadata"]["name"], "spec" in event.object) == ("a", False)
    await events.aclose()


async def test_existing_object_is_returned_by_uid(tenant: Tenant, api: client.KubeClient) -> None:
    made = await api.create(tenant.of("configmaps"), {"metadata": {"name": "a"}})
    assert await client.get_by_uid(api, f"{tenant.of('configmaps')}/a", uid=made["metadata"]["uid"]) == made


async def test_deleted_or_replaced_object_is_not_returned_by_uid(tenant: Tenant, api: client.KubeClient) -> None:
    former = await api.create(tenant.of("configmaps"), {"metadata": {"name": "a"}})
    await api.delete(f"{tenant.of('configmaps')}/a")
    assert await client.get_by_uid(api, f"{tenant.of('configmaps')}/a", uid=former["metadata"]["uid"]) is None
    await api.create(tenant.of("configmaps"), {"metadata": {"name": "a"}})
    assert await client.get_by_uid(api, f"{tenant.of('configmaps')}/a", uid=former["metadata"]["uid"]) is None


async def test_error_does_not_count_as_absence_of_uid(tenant: Tenant, api: client.KubeClient) -> None:
    tenant.server.fail_next(1, status=403, method="GET", path="/configmaps")
    with pytest.raises(errors.ForbiddenError):
        await client.get_by_uid(api, f"{tenant.of('configmaps')}/a", uid="uid")
