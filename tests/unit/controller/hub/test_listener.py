"""The hub's own port: which connections it accepts, for how long, and that gRPC's bytes pass unchanged."""

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import grpc.aio
import pytest

from kubemend.common.pb.coordination.v1 import coordination_pb2 as pb
from kubemend.controller.hub.limits import Caps
from kubemend.controller.hub.server import HubOptions
from tests.unit.controller.hub import words
from tests.unit.controller.hub.rig import SECONDS, Rig

_REFUSED = "kubemend_hub_connections_refused_total"


@contextlib.asynccontextmanager
async def connected(
    rig: Rig, host: str = "127.0.0.1"
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection(host, rig.port)
    try:
        yield reader, writer
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def closed(reader: asyncio.StreamReader) -> bool:
    """Wait until the hub has closed a connection."""
    async with asyncio.timeout(SECONDS):
        with contextlib.suppress(OSError):
            while await reader.read(4096):
                pass
    return True


async def test_unauthenticated_connections_per_address_are_limited() -> None:
    async with Rig(caps=Caps(unauthenticated_of_address=2)).running() as rig, contextlib.AsyncExitStack() as opened:
        for _ in range(2):
            await opened.enter_async_context(connected(rig))
        reader, _ = await opened.enter_async_context(connected(rig))
        assert await closed(reader)
        assert rig.counted(_REFUSED) == {"Crowded": 1}


async def test_authenticated_agents_do_not_count_against_their_address() -> None:
    async with Rig(caps=Caps(unauthenticated_of_address=1)).running() as rig:
        for number in range(1, 5):
            await rig.session(f"node-{number}")
        assert len(rig.hub.sessions()) == 4
        assert not rig.counted(_REFUSED)


@pytest.mark.parametrize("said", [b"", b"\x16\x03\x01", b"GET / HTTP/1.1\r\n\r\n"], ids=["nothing", "half", "http"])
async def test_silent_connection_is_closed_in_time(said: bytes) -> None:
    async with Rig(caps=Caps(seconds=0.5)).running() as rig, connected(rig) as (reader, writer):
        writer.write(said)
        assert await closed(reader)
        await _until_there_are(0, rig)


async def test_tls_connection_without_stream_is_closed_in_time() -> None:
    async with Rig(caps=Caps(seconds=0.5)).running(epoch=None) as rig:
        agent = await rig.agent()
        await agent.say(words.hello())
        assert (await agent.ended())[0] is grpc.StatusCode.UNAVAILABLE
        await _until_there_are(0, rig)
        assert rig.counted(_REFUSED)["Silent"] >= 1


async def test_silent_session_stays(rig: Rig) -> None:
    _, session = await rig.session()
    async with connected(rig) as (reader, _):
        await _until_there_are(2, rig)
        rig.service.visitors._clock = lambda: time.monotonic() + 1000
        assert await closed(reader)
    assert rig.counted(_REFUSED) == {"Silent": 1}
    assert session.send(pb.HubMessage(sync=pb.Sync()))
    assert rig.engine.of("gone") == []


@pytest.mark.skipif(not Path("/proc/net/if_inet6").exists(), reason="no IPv6 here: all would have one address")
async def test_agent_connects_while_another_address_is_at_limit() -> None:
    options = HubOptions(address="[::]:0")
    async with (
        Rig(caps=Caps(unauthenticated=4, unauthenticated_of_address=4), options=options).running() as rig,
        contextlib.AsyncExitStack() as opened,
    ):
        readers = [(await opened.enter_async_context(connected(rig, "::1")))[0] for _ in range(4)]
        await rig.session()
        assert await closed(readers[0]), "the oldest of theirs gave way"
        assert rig.counted(_REFUSED)["Displaced"] >= 1


async def test_long_messages_pass_both_ways(rig: Rig) -> None:
    agent, session = await rig.session()
    text = "x" * 60_000
    for _ in range(20):
        assert session.send(pb.HubMessage(abort=pb.Abort(round="train/llm-1", reason=text)))
    assert [(await agent.hear()).abort.reason for _ in range(20)] == [text] * 20
    hello = words.hello(*(f"pod-{number}" for number in range(500)))
    await agent.say(hello)
    await rig.engine.until(lambda: len(rig.engine.of("hello")) == 2)


async def test_port_in_use_raises() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        rig = Rig(options=HubOptions(address=f"127.0.0.1:{taken.getsockname()[1]}"))
        with pytest.raises(RuntimeError, match="cannot listen on"):
            async with rig.running():
                pass
        await rig.hub.stop()


async def _until_there_are(count: int, rig: Rig) -> None:
    async with asyncio.timeout(SECONDS):
        while len(rig.service.visitors) != count:  # noqa: ASYNC110 - no event signals it
            await asyncio.sleep(0.01)
