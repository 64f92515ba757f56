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
from kubemend.common.web import ListenError
from kubemend.controller.hub.limits import Caps
from kubemend.controller.hub.server import HubOptions
from tests.unit.controller.hub import words
from tests.unit.controller.hub.env import SECONDS, HubServiceEnv

_REFUSED = "kubemend_hub_connections_refused_total"


@contextlib.asynccontextmanager
async def connected(
    env: HubServiceEnv, host: str = "127.0.0.1"
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection(host, env.port)
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
    async with (
        HubServiceEnv(caps=Caps(unauthenticated_of_address=2)).running() as env,
        contextlib.AsyncExitStack() as opened,
    ):
        for _ in range(2):
            await opened.enter_async_context(connected(env))
        reader, _ = await opened.enter_async_context(connected(env))
        assert await closed(reader)
        assert env.counted(_REFUSED) == {"Crowded": 1}


async def test_authenticated_agents_do_not_count_against_their_address() -> None:
    async with HubServiceEnv(caps=Caps(unauthenticated_of_address=1)).running() as env:
        for number in range(1, 5):
            await env.session(f"node-{number}")
        assert len(env.hub.sessions()) == 4
        assert not env.counted(_REFUSED)


@pytest.mark.parametrize("said", [b"", b"\x16\x03\x01", b"GET / HTTP/1.1\r\n\r\n"], ids=["nothing", "half", "http"])
async def test_silent_connection_is_closed_in_time(said: bytes) -> None:
    async with HubServiceEnv(caps=Caps(seconds=0.5)).running() as env, connected(env) as (reader, writer):
        writer.write(said)
        assert await closed(reader)
        await _until_there_are(0, env)


async def test_tls_connection_without_stream_is_closed_in_time() -> None:
    async with HubServiceEnv(caps=Caps(seconds=0.5)).running(epoch=None) as env:
        agent = await env.agent()
        await agent.say(words.hello())
        assert (await agent.ended())[0] is grpc.StatusCode.UNAVAILABLE
        await _until_there_are(0, env)
        assert env.counted(_REFUSED)["Silent"] >= 1


async def test_silent_session_stays(env: HubServiceEnv) -> None:
    _, session = await env.session()
    async with connected(env) as (reader, _):
        await _until_there_are(2, env)
        env.service.visitors._clock = lambda: time.monotonic() + 1000
        assert await closed(reader)
    assert env.counted(_REFUSED) == {"Silent": 1}
    assert session.send(pb.HubMessage(sync=pb.Sync()))
    assert env.engine.of("gone") == []


@pytest.mark.skipif(not Path("/proc/net/if_inet6").exists(), reason="no IPv6 here: all would have one address")
async def test_agent_connects_while_another_address_is_at_limit() -> None:
    options = HubOptions(address="[::]:0")
    async with (
        HubServiceEnv(caps=Caps(unauthenticated=4, unauthenticated_of_address=4), options=options).running() as env,
        contextlib.AsyncExitStack() as opened,
    ):
        readers = [(await opened.enter_async_context(connected(env, "::1")))[0] for _ in range(4)]
        await env.session()
        assert await closed(readers[0]), "the oldest of theirs gave way"
        assert env.counted(_REFUSED)["Displaced"] >= 1


async def test_long_messages_pass_both_ways(env: HubServiceEnv) -> None:
    agent, session = await env.session()
    text = "x" * 60_000
    for _ in range(20):
        assert session.send(pb.HubMessage(abort=pb.Abort(round="train/llm-1", reason=text)))
    assert [(await agent.hear()).abort.reason for _ in range(20)] == [text] * 20
    hello = words.hello(*(f"pod-{number}" for number in range(500)))
    await agent.say(hello)
    await env.engine.until(lambda: len(env.engine.of("hello")) == 2)


async def test_port_in_use_raises() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        env = HubServiceEnv(options=HubOptions(address=f"127.0.0.1:{taken.getsockname()[1]}"))
        with pytest.raises(ListenError, match=r"cannot listen on .*; choose another --hub-address"):
            async with env.running():
                pass
        await env.hub.stop()


async def _until_there_are(count: int, env: HubServiceEnv) -> None:
    async with asyncio.timeout(SECONDS):
        while len(env.service.visitors) != count:  # noqa: ASYNC110 - no event signals it
            await asyncio.sleep(0.01)
