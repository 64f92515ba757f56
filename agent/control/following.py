"""Follow a restart for ``kubemend restart`` and return its result as the exit code."""

import contextlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from kubemend.agent.control import client, messages
from kubemend.agent.restart import admission

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
    async with contextlib.aclosing(client.restart(request, socket=socket)) as events:
        async for event in events:
            show(event)
            if event["event"] == "done":
                return EXIT_OK if event["ok"] else EXIT_NOT_DONE
            if not wait and _is_an_answer(event):
                return EXIT_OK
    raise client.LostError("the connection to the agent was lost")


def _is_an_answer(event: Mapping[str, Any]) -> bool:
    """Return whether the event decides about the request. A refusal does not: the last event follows it."""
    if event["event"] == "decided":
        return bool(event["verb"] != admission.Verb.REFUSE.value)
    return event["event"] in ("queued", "joined")
