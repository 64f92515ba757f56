"""The client against the stand-in with scripted faults, and against servers that behave badly on the wire."""

import asyncio
import contextlib
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from common.kube import client, errors, paths
from hack.devnode.api import kubeconfig, standin

Wire = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[standin.StandIn]:
    async with standin.StandIn(kubeconfig=tmp_path / "kubeconfig") as running:
        yield running


@pytest.fixture
async def api(server: standin.StandIn) -> AsyncIterator[client.KubeClient]:
    async with client.connect(kubeconfig=server.kubeconfig) as connected:
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
async def test_busy_server_is_asked_again(server: standin.StandIn, api: client.KubeClient, status: int) -> None:
    server.handler.faults.fail_next(2, status=status, retry_after=0)
    await api.list(paths.PODS)
    assert server.handler.faults.hits == 2


async def test_server_that_stays_busy_is_given_up(server: standin.StandIn, api: client.KubeClient) -> None:
    server.handler.faults.fail_next(100, retry_after=0)
    with pytest.raises(errors.ApiUnavailableError, match="a scripted fault"):
        await api.list(paths.PODS)
    assert server.handler.faults.hits == 4


@pytest.mark.parametrize("status", [400, 403, 404, 409, 422, 501])
async def test_refusals_are_not_repeated(server: standin.StandIn, api: client.KubeClient, status: int) -> None:
    server.handler.faults.fail_next(2, status=status)
    with pytest.raises(errors.KubeError):
        await api.list(paths.PODS)
    assert server.handler.faults.hits == 1


async def test_creation_is_sent_once(server: standin.StandIn, api: client.KubeClient) -> None:
    server.handler.faults.fail_next(2, method="POST", retry_after=0)
    with pytest.raises(errors.ApiUnavailableError):
        await api.create(paths.collection("namespaces"), {"metadata": {"name": "a"}})
    assert server.handler.faults.hits == 1


async def test_retry_after_beyond_the_deadline_ends_at_the_deadline(server: standin.StandIn) -> None:
    deadlines = client.Deadlines(call=0.2)
    async with client.connect(kubeconfig=server.kubeconfig, deadlines=deadlines) as api:
        server.handler.faults.fail_next(1, status=429, retry_after=3600)
        with pytest.raises(errors.ApiUnavailableError, match=r"no answer within 0\.2 s"):
            await api.list(paths.PODS)


async def test_refused_connection_says_where(server: standin.StandIn, api: client.KubeClient) -> None:
    await server.stop()
    with pytest.raises(errors.ApiUnavailableError, match=f"cannot list pods at .*{server.port}.*is the API server up"):
        await api.list(paths.PODS)


async def test_server_that_never_answers_is_given_up(tmp_path: Path) -> None:
    async def mute(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async with _against(tmp_path, mute, client.Deadlines(call=0.2)) as api:
        with pytest.raises(errors.ApiUnavailableError, match="no answer within"):
            await api.get("/version")
        with pytest.raises(errors.ApiUnavailableError, match="no answer within"):
            await anext(api.watch(paths.PODS))


@pytest.mark.parametrize("body", [b"nonsense", b"[1]"])
async def test_answer_that_is_no_object_is_an_unavailable_server(tmp_path: Path, body: bytes) -> None:
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


async def test_broken_watch_is_an_unavailable_server(server: standin.StandIn, api: client.KubeClient) -> None:
    await api.create(paths.collection("pods", namespace="default"), {"metadata": {"name": "a"}, "spec": {}})
    events = api.watch(paths.PODS)
    await anext(events)
    server.handler.drop_watches()
    with pytest.raises(errors.ApiUnavailableError):
        await anext(events)


async def test_objects_larger_than_any_buffer_pass_a_watch(server: standin.StandIn, api: client.KubeClient) -> None:
    pods = paths.collection("pods", namespace="default")
    annotations = {"big": "x" * 1_000_000}
    await api.create(pods, {"metadata": {"name": "a", "annotations": annotations}, "spec": {}})
    events = api.watch(paths.PODS)
    assert (await anext(events)).object["metadata"]["annotations"] == annotations
    await events.aclose()


async def test_of_a_long_list_a_few_items_are_there_at_a_time(tmp_path: Path) -> None:
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
async def test_a_list_that_is_none_or_breaks_off_is_an_unavailable_server(tmp_path: Path, body: bytes) -> None:
    async def odd(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + body)
        await writer.drain()

    async with _against(tmp_path, odd, client.Deadlines()) as api:
        with pytest.raises(errors.ApiUnavailableError):
            await anext(api.pages(paths.PODS))


async def test_a_list_that_stops_in_the_middle_is_given_up(tmp_path: Path) -> None:
    async def mute(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + b'{"items": [{')
        await reader.read()  # until the client leaves

    async with _against(tmp_path, mute, client.Deadlines(call=0.2)) as api:
        with pytest.raises(errors.ApiUnavailableError, match="no answer within"):
            await anext(api.pages(paths.PODS))


@pytest.mark.parametrize("status", [200, 500])
async def test_an_answer_without_end_is_not_kept_for_ever(tmp_path: Path, status: int) -> None:
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


async def test_nothing_is_asked_for_that_would_swell_when_it_is_unpacked(tmp_path: Path) -> None:
    heads: list[bytes] = []

    async def ear(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n{}")
        await writer.drain()

    async with _against(tmp_path, ear, client.Deadlines()) as api:
        await api.get("/version")
    assert b"accept-encoding: identity\r\n" in heads[0].lower()


async def test_metadata_can_be_all_that_is_asked_for(server: standin.StandIn, api: client.KubeClient) -> None:
    pods = paths.collection("pods", namespace="default")
    await api.create(pods, {"metadata": {"name": "a"}, "spec": {"nodeName": "n"}})
    [page] = [page async for page in api.pages(pods, metadata_only=True)]
    assert [(each["metadata"]["name"], "spec" in each) for each in page.items] == [("a", False)]
    events = api.watch(pods, metadata_only=True)
    event = await anext(events)
    assert (event.object["metadata"]["name"], "spec" in event.object) == ("a", False)
    await events.aclose()
