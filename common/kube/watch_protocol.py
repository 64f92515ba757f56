"""Parse the watch protocol, independent of its transport: one JSON object per line, in chunks of any size. Pure."""

import enum
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from kubemend.common.kube import safe_json


class EventType(enum.Enum):
    """Name the event types of a watch; ``ERROR`` becomes an exception and is not among them."""

    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"
    BOOKMARK = "BOOKMARK"


class NoEventError(ValueError):
    """The line is not a watch event."""


@dataclass(frozen=True, slots=True)
class WatchEvent:
    """Hold one event. ``object`` is the kept part of the object; that of a BOOKMARK has only its version.

    ``resource_version`` is the version from which a watch can be resumed after this event.
    """

    type: EventType
    object: Any
    resource_version: str = ""


@dataclass(frozen=True, slots=True)
class WatchFailure:
    """Hold an ERROR event: the server's ``Status``. Code 410 means that the resource version is too old."""

    code: int
    status: dict[str, Any]


class LineSplitter:
    """Split a byte stream into lines, independent of chunks; a line may be as long as an object (over 1 MB)."""

    def __init__(self, *, longest: int) -> None:
        """``longest``: bytes that a line may have."""
        self._longest = longest
        self._rest: list[bytes] = []
        self._size = 0

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """Yield the lines that the chunk completes, without their end; empty lines are left out.

        Raises NoEventError for a line that is too long.
        """
        *complete, rest = chunk.split(b"\n")
        for part in complete:
            self._add(part)
            yield from self._line()
        if rest:
            self._add(rest)

    def _add(self, part: bytes) -> None:
        self._rest.append(part)
        self._size += len(part)
        if self._size > self._longest:
            raise NoEventError(f"a line has more than {self._longest} bytes")

    def _line(self) -> Iterator[bytes]:
        line = b"".join(self._rest)
        self._rest.clear()
        self._size = 0
        if line.strip():
            yield line


def parse(line: bytes, project: Callable[[dict[str, Any]], Any] = lambda obj: obj) -> WatchEvent | WatchFailure:
    """Parse one line of a watch; ``project`` returns the part of its object to keep. Raises NoEventError."""
    try:
        event = safe_json.loads(line)
        match event:
            case {"type": "ERROR", "object": dict(status)}:
                return WatchFailure(code=int(status.get("code", 500)), status=status)
            case {"type": str(kind), "object": dict(body)}:
                type_, version = EventType(kind), str(body.get("metadata", {}).get("resourceVersion", ""))
            case _:
                raise NoEventError("not a watch event: lacks type and object")
    except (ValueError, TypeError, AttributeError) as error:
        raise NoEventError(str(error)) from error
    return WatchEvent(type_, body if type_ is EventType.BOOKMARK else project(body), version)
