"""The client of the control socket, and the failures of the services that may listen there."""

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from kubemend.agent.control import client, messages

REQUEST = messages.RestartRequest(namespace="default", pod="trainer-0")
ACCEPTED = {"event": "accepted", "ms": 0.0}
DECIDED = {"event": "decided", "ms": 1.0, "verb": "act"}
REFUSED = {"event": "decided", "ms": 1.0, "verb": "refuse"}
DONE = {"event": "done", "ms": 2.0, "ok": True}
NOT_DONE = {"event": "done", "ms": 2.0, "ok": False}
HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def encoded(*events: Mapping[str, Any], whole: bool = True) -> bytes:
    lines = [chunk(json.dumps(event).encode() + b"\n") for event in events]
    return HEAD + b"".join(lines) + (chunk(b"") if whole else b"")


@contextlib.asynccontextmanager
async def answering(path: Path, answer: bytes, *, hang: bool = False) -> AsyncIterator[None]:
    """A service on the socket that gives this answer to any request, and ends or hangs."""
    gone = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        if hang:
            await gone.wait()
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_unix_server(serve, path)
    yield
    gone.set()
    server.close()
    await server.wait_closed()


async def follow(path: Path, *, wait: bool = True) -> tuple[int, list[str]]:
    shown: list[str] = []
    code = await client.follow(REQUEST, socket=path, wait=wait, show=lambda event: shown.append(event["event"]))
    return code, shown


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "control.sock"


@pytest.mark.parametrize(("end", "code"), [(DONE, 0), (NOT_DONE, 1)])
async def test_follow_ends_with_the_restart(path: Path, end: Mapping[str, Any], code: int) -> None:
    async with answering(path, encoded(ACCEPTED, DECIDED, end)):
        assert await follow(path) == (code, ["accepted", "decided", "done"])


async def test_follow_without_wait_ends_at_first_decision(path: Path) -> None:
    async with answering(path, encoded(ACCEPTED, DECIDED, whole=False), hang=True):
        assert await follow(path, wait=False) == (0, ["accepted", "decided"])


async def test_follow_without_wait_returns_refusal(path: Path) -> None:
    async with answering(path, encoded(ACCEPTED, REFUSED, NOT_DONE)):
        assert await follow(path, wait=False) == (1, ["accepted", "decided", "done"])


async def test_signs_of_life_are_not_shown(path: Path) -> None:
    async with answering(path, HEAD + chunk(b"\n\n") + chunk(json.dumps(DONE).encode() + b"\n") + chunk(b"")):
        assert await follow(path) == (0, ["done"])


@pytest.mark.parametrize(("status", "usage"), [(400, True), (404, False), (503, False)])
async def test_rejected_request_raises_the_reason(path: Path, status: int, usage: bool) -> None:
    body = b'{"error": "no such pod"}'
    async with answering(path, b"HTTP/1.1 %d No\r\nContent-Length: %d\r\n\r\n%s" % (status, len(body), body)):
        with pytest.raises(client.NotAcceptedError, match="no such pod") as error:
            await follow(path)
    assert error.value.usage is usage


@pytest.mark.parametrize("body", [b"404: Not Found", b"[]", b'{"message": "x"}'])
async def test_foreign_service_on_socket_is_detected(path: Path, body: bytes) -> None:
    async with answering(path, b"HTTP/1.1 404 No\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)):
        with pytest.raises(client.NotAcceptedError, match="not an agent"):
            await follow(path)


@pytest.mark.parametrize("events", [(ACCEPTED,), (ACCEPTED, DECIDED)])
@pytest.mark.parametrize("whole", [True, False])
async def test_lost_connection_is_not_success(path: Path, events: tuple[Any, ...], whole: bool) -> None:
    async with answering(path, encoded(*events, whole=whole)):
        with pytest.raises(client.LostError, match="was lost"):
            await follow(path)


async def test_silent_agent_times_out(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "SILENCE", 3.0)  # the time for the first line, too
    async with answering(path, encoded(ACCEPTED, whole=False), hang=True):
        with pytest.raises(client.LostError, match="no sign of life"):
            await follow(path)


async def test_agent_that_never_answers_is_not_reachable(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "SILENCE", 0.2)
    async with answering(path, b"", hang=True):
        with pytest.raises(client.NotReachableError, match="no answer"):
            await follow(path)


@pytest.mark.parametrize(
    ("answer", "reason"), [(b"", "Server disconnected"), (b"SSH-2.0-OpenSSH\r\n\r\n", "does not speak HTTP")]
)
async def test_service_without_http_is_not_reachable(path: Path, answer: bytes, reason: str) -> None:
    async with answering(path, answer):
        with pytest.raises(client.NotReachableError, match=f"{path}: .*{reason}") as error:
            await follow(path)
    assert "\n" not in str(error.value)


async def test_missing_socket_raises_hint(path: Path) -> None:
    with pytest.raises(client.NotReachableError, match="No such file") as error:
        await follow(path)
    for word in (str(path), "root", "--state-dir"):
        assert word in str(error.value)


async def test_socket_without_listener_is_not_reachable(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as left_behind:
        left_behind.bind(str(path))
    with pytest.raises(client.NotReachableError, match="refused"):
        await follow(path)


async def test_invalid_socket_path_is_not_reachable(tmp_path: Path) -> None:
    with pytest.raises(client.NotReachableError, match="too long"):
        await follow(tmp_path / ("x" * 200))
