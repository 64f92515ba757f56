"""The bare broadcast of ``bench.hub``, the floor for a round: two messages to all, the second after all answers."""

import asyncio
from collections.abc import AsyncIterator

import grpc
import grpc.aio
import pytest

from bench.hub import broadcast

_Call = grpc.aio.StreamStreamCall[bytes, bytes]


@pytest.fixture
async def calls() -> AsyncIterator[list[_Call]]:
    """Three streams that have been welcomed."""
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((broadcast.Broadcast().handler(),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        opened: list[_Call] = [channel.stream_stream(broadcast.PATH)() for _ in range(3)]
        for call in opened:
            await call.read()
        yield opened
    await server.stop(None)


def test_messages_of_a_broadcast_are_sent_in_one() -> None:
    assert broadcast.begun(broadcast.begin(b"stop", b"")) == [b"stop", b""]


async def test_each_stream_gets_the_second_message_when_all_have_answered_the_first(calls: list[_Call]) -> None:
    await calls[1].write(broadcast.begin(b"first", b"second"))
    assert [await call.read() for call in calls] == [b"first"] * 3
    await calls[0].write(b"answer")
    await calls[1].write(b"answer")
    early = asyncio.ensure_future(calls[0].read())
    await calls[2].write(b"answer")
    assert [await early, await calls[1].read(), await calls[2].read()] == [b"second"] * 3


async def test_second_message_is_not_sent_before_the_last_answer(calls: list[_Call]) -> None:
    await calls[0].write(broadcast.begin(b"first", b"second"))
    assert [await call.read() for call in calls] == [b"first"] * 3
    await calls[0].write(b"answer")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(calls[0].read(), 0.1)


async def test_a_broadcast_follows_another_one(calls: list[_Call]) -> None:
    for _ in range(2):
        await calls[0].write(broadcast.begin(b"only"))
        assert [await call.read() for call in calls] == [b"only"] * 3
        for call in calls:
            await call.write(b"answer")
