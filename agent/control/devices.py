"""Device requests on the control socket: a JSON object in the body of a POST, an object in the answer."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from kubemend.agent.control import client
from kubemend.agent.control.messages import BadRequestError

LIST: Final = "/v1/devices"
"""GET: ``{"devices": [{device, health, action, reason, message, since}]}``."""

CLEAR: Final = "/v1/devices/clear"
"""POST ``{"device"}``: ``{"device", "over": [...], "still_seen": [...]}``."""

RELEASE: Final = "/v1/devices/release"
"""POST ``{"seconds"}``: ``{}`` when no NVML handle is open any more."""

RESUME: Final = "/v1/devices/resume"
"""POST ``{}``: ``{}``."""

RELEASE_SECONDS: Final = 20.0
"""Seconds that the agent may take to close its driver handles."""

LONGEST_RELEASE: Final = 3600.0
"""Longest release of the driver in seconds. During it, faults that only the driver reports are not detected."""

_LONGEST_NAME = 128


@dataclass(frozen=True, slots=True)
class Body:
    """The fields of a request; unknown fields are refused."""

    fields: dict[str, Any]

    @classmethod
    def parse(cls, text: bytes, *, known: frozenset[str]) -> "Body":
        """Parse a body. Raises BadRequestError."""
        try:
            given = json.loads(text)
        except (ValueError, RecursionError):
            raise BadRequestError("the request is not JSON") from None
        if not isinstance(given, dict):
            raise BadRequestError("the request is not a JSON object")
        if unknown := sorted(set(given) - known):
            raise BadRequestError(
                f"unknown fields {', '.join(unknown)}; known fields: {', '.join(sorted(known)) or 'none'}"
            )
        return cls(given)

    def name(self, key: str) -> str:
        """Return a device's name. Raises BadRequestError."""
        name = self.fields.get(key)
        if not isinstance(name, str) or not 0 < len(name) <= _LONGEST_NAME or not name.isprintable():
            raise BadRequestError(f"field {key} must be the name of a device")
        return name

    def seconds(self, key: str) -> float:
        """Return a number of seconds, at most ``LONGEST_RELEASE``. Raises BadRequestError."""
        number = self.fields.get(key)
        if isinstance(number, int | float) and not isinstance(number, bool) and 0 < number <= LONGEST_RELEASE:
            return float(number)
        raise BadRequestError(f"field {key} must be a number of seconds, more than 0 and at most {LONGEST_RELEASE:g}")


async def listed(*, socket: Path) -> list[dict[str, Any]]:
    """Return the agent's verdict on every device. Raises the client's errors."""
    answer = await client.ask(LIST, socket=socket)
    return list(answer["devices"])


async def clear(device: str, *, socket: Path) -> dict[str, Any]:
    """Clear the faults recorded for a device. Raises the client's errors."""
    return await client.ask(CLEAR, body={"device": device}, socket=socket)


async def release(*, seconds: float, socket: Path) -> None:
    """Have the agent close its driver handles. Raises the client's errors."""
    await client.ask(RELEASE, body={"seconds": seconds}, socket=socket)


async def resume(*, socket: Path) -> None:
    """Have the agent reopen the driver. Raises the client's errors."""
    await client.ask(RESUME, body={}, socket=socket)
