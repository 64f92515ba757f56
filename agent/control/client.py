"""The client of the control socket. It follows a restart for ``kubemend restart`` to its exit code."""

import contextlib
import json
from collections.abc import AsyncGenerator, Callable, Mapping
from pathlib import Path
from typing import Any, Final

import aiohttp

from kubemend.agent.control import messages
from kubemend.agent.restart import admission

_CONNECT_SECONDS: Final = 5.0

SILENCE: Final = 30.0
"""Seconds without a sign of life after which the agent counts as hung. It sends one every few seconds."""


class NotReachableError(Exception):
    """The agent does not answer on its socket. The text is one line: which socket, why, and the hint."""


class NotAcceptedError(Exception):
    """The agent refused a request; the text is for people. ``usage``: the request was malformed."""

    def __init__(self, text: str, *, usage: bool) -> None:
        super().__init__(text)
        self.usage = usage


class LostError(Exception):
    """The connection to the agent ended while a restart was followed. A restart that has begun is still completed."""


async def restart(request: messages.RestartRequest, *, socket: Path) -> AsyncGenerator[dict[str, Any], None]:
    """Request a restart and yield its progress (``agent.control.events``); close the iterator to stop following.

    Raises NotReachableError, NotAcceptedError or LostError.
    """
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_SECONDS, sock_read=SILENCE)
    connector = aiohttp.UnixConnector(path=str(socket))
    async with aiohttp.ClientSession(connector=connector, timeout=timeout, trust_env=False) as session:
        try:
            answer = await session.post(f"http://agent{messages.RESTARTS}", json=request.to_json())
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise NotReachableError(_unreachable(socket, error)) from error
        async with contextlib.aclosing(_events(answer)) as events:
            async for event in events:
                yield event


async def ask(path: str, *, socket: Path, body: dict[str, Any] | None = None) -> dict[str, Any]:
    """Send a POST with a body, or a GET without one, and return the object in the answer.

    Raises NotReachableError, NotAcceptedError or LostError.
    """
    timeout = aiohttp.ClientTimeout(total=SILENCE, sock_connect=_CONNECT_SECONDS)
    connector = aiohttp.UnixConnector(path=str(socket))
    method = "GET" if body is None else "POST"
    async with aiohttp.ClientSession(connector=connector, timeout=timeout, trust_env=False) as session:
        try:
            answer = await session.request(method, f"http://agent{path}", json=body)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise NotReachableError(_unreachable(socket, error)) from error
        async with contextlib.aclosing(_events(answer)) as events:
            async for event in events:
                return event
    raise LostError("the connection to the agent was lost")


async def _events(answer: aiohttp.ClientResponse) -> AsyncGenerator[dict[str, Any], None]:
    """Yield the objects of an answer. Empty lines are signs of life."""
    async with answer:
        try:
            if answer.status != 200:
                raise NotAcceptedError(_error_text(await answer.read()), usage=answer.status == 400)
            async for line in answer.content:
                if line.strip():
                    yield json.loads(line)
        except TimeoutError as error:
            raise LostError(f"the agent sent no sign of life for {SILENCE:g} s") from error
        except (aiohttp.ClientError, ConnectionError, ValueError) as error:
            raise LostError(f"the connection to the agent was lost: {error}") from error


def _error_text(body: bytes) -> str:
    with contextlib.suppress(ValueError, TypeError, KeyError):
        return str(json.loads(body)["error"])
    return "the process that listens on the socket is not an agent of this version"


def _unreachable(socket: Path, error: Exception) -> str:
    return (
        f"cannot reach the agent at {socket}: {_describe(error)}. Is it running on this node, are you root, "
        "and is this its state directory (--state-dir)?"
    )


def _describe(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "no answer"
    if isinstance(error, aiohttp.ClientConnectorError):
        return error.os_error.strerror or str(error.os_error)
    if isinstance(error, aiohttp.ClientResponseError):
        return "the process that listens there does not speak HTTP"
    return str(error)


EXIT_OK: Final = 0
"""Restarted and verified; without waiting: accepted and not refused."""

EXIT_NOT_DONE: Final = 1
"""Refused, failed, or not verified."""

EXIT_USAGE: Final = 2
"""The request was invalid or ambiguous."""

EXIT_NOT_REACHABLE: Final = 3
"""No agent answers."""


async def follow(
    request: messages.RestartRequest, *, socket: Path, wait: bool, show: Callable[[Mapping[str, Any]], None]
) -> int:
    """Request a restart, show each event as it arrives, and return the exit code.

    Without ``wait``, stop after the first event that decides about the request. Raises the client's errors.
    """
    async with contextlib.aclosing(restart(request, socket=socket)) as events:
        async for event in events:
            show(event)
            if event["event"] == "done":
                return EXIT_OK if event["ok"] else EXIT_NOT_DONE
            if not wait and _is_an_answer(event):
                return EXIT_OK
    raise LostError("the connection to the agent was lost")


def _is_an_answer(event: Mapping[str, Any]) -> bool:
    """Return whether the event decides about the request. A refusal does not: the last event follows it."""
    if event["event"] == "decided":
        return bool(event["verb"] != admission.Verb.REFUSE.value)
    return event["event"] in ("queued", "joined")
