"""The control socket from both ends: valid and invalid requests, slow and lost clients, dead and running agents."""

import asyncio
import json
import os
import socket
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from kubemend.agent.actuator.progress import Begun, Decided, Queued, Reported
from kubemend.agent.app.control import ControlServer
from kubemend.agent.control import client, messages
from kubemend.agent.model.outcomes import Outcome, Result
from kubemend.agent.restart.admission import Decision, Verb
from kubemend.agent.restart.intents import Strategy
from kubemend.agent.restart.overrides import RestartOverrides
from kubemend.agent.restart.reasons import Reason
from kubemend.agent.restart.verification import Check, CheckState
from kubemend.agent.restarts.requests import Request
from kubemend.common.web import ListenError
from tests.unit.app.conftest import NOW, SECONDS, ControlEnv, Output, control_env
from tests.unit.restart import builders

ACT = Decided(Decision(Verb.ACT, Reason.ADMITTED, strategy=Strategy.SWAP))
BEGUN = Begun(1000.0, "r1", Strategy.SWAP, ["trainer"], 1)
VERIFIED = Reported(Outcome(Result.SWAPPED), (Check("one-running", CheckState.PASSED),), settled=True)
GOOD = {"namespace": "default", "pod": "trainer-0"}


async def swap(request: Request) -> None:
    for event in (ACT, BEGUN, VERIFIED):
        request.followed.notify(event)


class Slow:
    """A restart that continues until it is released."""

    def __init__(self) -> None:
        self.go_on = asyncio.Event()
        self.ended = asyncio.Event()

    async def __call__(self, request: Request) -> None:
        request.followed.notify(ACT)
        request.followed.notify(BEGUN)
        await self.go_on.wait()
        request.followed.notify(VERIFIED)
        self.ended.set()


async def post(env: ControlEnv, **content: Any) -> tuple[int, dict[str, Any]]:
    """Post the content unchanged to the socket; return status and body."""
    async with (
        aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(env.path)), trust_env=False) as session,
        session.post(f"http://agent{messages.RESTARTS}", **content) as answer,
    ):
        return answer.status, await answer.json()


async def test_restart_request_is_executed_and_streamed(env: ControlEnv) -> None:
    env.restarts.does = swap
    output = await env.ask(reason="new data", strategy=Strategy.SWAP, grace_seconds=3.0)
    assert output.code == 0
    events = [output.events.get_nowait() for _ in range(output.events.qsize())]
    assert [event["event"] for event in events] == ["accepted", "decided", "begun", "settled", "done"]
    (request,) = env.restarts.requests
    assert request.target == builders.TARGET
    assert request.asked == RestartOverrides(strategy=Strategy.SWAP, grace_seconds=3.0)
    cause = request.cause()
    assert (cause.code, cause.happened_at) == ("Requested", NOW)
    assert cause.message == f"request of uid {os.getuid()} (new data)"
    assert events[0]["by"] == f"uid {os.getuid()} (new data)"


BAD = [
    (b"restart!", 400, "not JSON"),
    (json.dumps(GOOD | {"force": True}).encode(), 400, "unknown fields force"),
    (json.dumps(GOOD | {"containers": ["typo"]}).encode(), 400, "it has trainer"),
    (json.dumps(GOOD | {"pod": "missing"}).encode(), 404, "pod default/missing not found on this node"),
    (b" " * (messages.LARGEST + 1), 413, str(messages.LARGEST)),
]


@pytest.mark.parametrize(("body", "status", "named"), BAD)
async def test_invalid_request_is_rejected_in_one_line(env: ControlEnv, body: bytes, status: int, named: str) -> None:
    found, answer = await post(env, data=body)
    assert (found, set(answer)) == (status, {"error"})
    assert named in answer["error"]
    assert "\n" not in answer["error"]
    assert env.restarts.requests == []
    assert (await env.ask()).code == 1  # the server still works; nothing was done, so nothing was verified


async def test_bytes_that_are_not_http_are_harmless(env: ControlEnv) -> None:
    reader, writer = await asyncio.open_unix_connection(env.path)
    writer.write(b"\x00\xff\r\n" * 10_000)
    writer.write_eof()
    await reader.read()
    writer.close()
    await writer.wait_closed()
    env.restarts.does = swap
    assert (await env.ask()).code == 0


async def test_request_before_first_pod_listing_is_not_answered_with_not_found(env: ControlEnv) -> None:
    env.pods.synced = False
    status, answer = await post(env, json=GOOD | {"pod": "missing"})
    assert (status, "not listed" in answer["error"]) == (503, True)


async def test_disconnected_client_does_not_stop_the_restart(env: ControlEnv) -> None:
    slow = env.restarts.does = Slow()
    async with env.asking() as (output, _):
        await output.until("begun")
    slow.go_on.set()
    async with asyncio.timeout(SECONDS):
        await slow.ended.wait()


async def test_client_without_wait_is_released_at_first_decision(env: ControlEnv) -> None:
    slow = env.restarts.does = Slow()
    assert (await env.ask(wait=False)).code == 0
    assert not slow.ended.is_set()


async def test_client_that_does_not_read_blocks_nothing(env: ControlEnv) -> None:
    ended = asyncio.Event()

    async def talkative(request: Request) -> None:
        for count in range(100_000):  # more than all buffers in between hold
            request.followed.notify(Queued())
            if count % 100 == 0:
                await asyncio.sleep(0)  # the agent continues writing
        request.followed.notify(VERIFIED)
        ended.set()

    env.restarts.does = talkative
    body = json.dumps(GOOD).encode()
    reader, writer = await asyncio.open_unix_connection(env.path, limit=1024)
    writer.write(b"POST %s HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % (messages.RESTARTS.encode(), len(body)))
    writer.write(body)
    async with asyncio.timeout(SECONDS):
        await ended.wait()
    env.restarts.does = swap
    assert (await env.ask()).code == 0
    answer = b""
    async with asyncio.timeout(SECONDS):
        while b'"event": "done"' not in answer:
            answer += await reader.read(65536)
    assert b'"event": "missed"' in answer  # a late reader gets the number of missed events
    writer.close()
    await writer.wait_closed()


async def test_request_without_runtime_is_held_with_reason(tmp_path: Path) -> None:
    async with control_env(tmp_path, runtime=False) as env, env.asking() as (output, task):
        held = await output.until("decided")
        assert (held["verb"], held["reason"]) == ("postpone", "RuntimeUnavailable")
        assert held["detail"] == "no socket of a runtime at /run"
        env.restarts.does = swap
        env.find_runtime()
        async with asyncio.timeout(SECONDS):
            assert (await task).code == 0


async def test_stopping_agent_reports_state_of_the_restart(tmp_path: Path) -> None:
    async with control_env(tmp_path) as env:
        env.restarts.does = Slow()
        output = Output()
        task = asyncio.create_task(env.ask(output))
        await output.until("begun")
    async with asyncio.timeout(SECONDS):
        assert (await task).code == 1
    assert (await output.until("done"))["reason"] == "AgentStopped"


async def test_stopping_agent_rejects_new_requests(env: ControlEnv) -> None:
    env.server.close()
    with pytest.raises(client.NotAcceptedError, match="stopping"):
        await env.ask()
    assert env.restarts.requests == []


async def test_socket_is_root_only_and_removed_with_the_agent(tmp_path: Path) -> None:
    async with control_env(tmp_path) as env:
        assert env.path.stat().st_mode & 0o777 == 0o600
    assert not env.path.exists()


async def test_socket_of_dead_agent_is_replaced(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(tmp_path / messages.SOCKET))
    async with control_env(tmp_path) as env:
        env.restarts.does = swap
        assert (await env.ask()).code == 0


async def test_socket_of_running_agent_is_not_replaced(env: ControlEnv) -> None:
    with pytest.raises(ListenError, match="in use; stop the agent that listens there, or choose another --state-dir"):
        async with ControlServer(path=env.path, requests=env.requests):
            pytest.fail("two agents on one socket")
    env.restarts.does = swap
    assert (await env.ask()).code == 0


async def test_path_that_is_not_a_socket_is_not_touched(tmp_path: Path, env: ControlEnv) -> None:
    precious = tmp_path / "precious"
    precious.write_text("data")
    with pytest.raises(ListenError, match="--state-dir"):
        async with ControlServer(path=precious, requests=env.requests):
            pytest.fail("listens on a file")
    assert precious.read_text() == "data"


async def test_invalid_socket_path_is_refused_in_one_line(tmp_path: Path, env: ControlEnv) -> None:
    with pytest.raises(ListenError, match="too long; choose another --state-dir"):
        async with ControlServer(path=tmp_path / ("x" * 200), requests=env.requests):
            pytest.fail("listens nowhere")


async def test_internal_error_is_answered_and_next_request_works(env: ControlEnv) -> None:
    async def broken(_: Request) -> None:
        raise IndexError

    env.restarts.does = broken
    output = await env.ask()
    events = [output.events.get_nowait() for _ in range(output.events.qsize())]
    assert output.code != 0
    assert (events[-1]["event"], events[-1]["reason"]) == ("done", "Internal")
    assert "IndexError" in events[-1]["detail"]
    env.restarts.does = swap
    assert (await env.ask()).code == 0
