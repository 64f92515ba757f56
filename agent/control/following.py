"""``kubemend restart``: ask, follow, and say by the exit code how it ended."""

import contextlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from agent.control import client, messages
from agent.restart import admission

EXIT_OK: Final = 0
"""Restarted and verified; without waiting: taken in, and not refused."""

EXIT_NOT_DONE: Final = 1
"""Refused, failed, or not verified."""

EXIT_USAGE: Final = 2
"""Asked in a way that means nothing, or several things."""

EXIT_NOT_REACHABLE: Final = 3
"""No agent answers."""


async def follow(
    request: messages.RestartRequest, *, socket: Path, wait: bool, show: Callable[[Mapping[str, Any]], None]
) -> int:
    """Ask for a restart, show each event as it comes, and return the exit code.

    Without ``wait`` the first word on what becomes of it is the last that is shown. Raises the client's errors.
    """
    async with contextlib.aclosing(client.restart(request, socket=socket)) as events:
        async for event in events:
            show(event)
            if event["event"] == "done":
                return EXIT_OK if event["ok"] else EXIT_NOT_DONE
            if not wait and _is_an_answer(event):
                return EXIT_OK
    raise client.LostError("the agent has gone away")


def _is_an_answer(event: Mapping[str, Any]) -> bool:
    """Whether it says what becomes of the request. A refusal does not: it is followed by the end."""
    if event["event"] == "decided":
        return bool(event["verb"] != admission.Verb.REFUSE.value)
    return event["event"] in ("queued", "joined")
