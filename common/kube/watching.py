"""The watch protocol, apart from its transport: one JSON object per line, in chunks of any size. Pure."""

import enum
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from common.kube import nesting


class EventType(enum.Enum):
    """The event types that a watch gives us; ``ERROR`` becomes an exception and is not among them."""

    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"
    BOOKMARK = "BOOKMARK"


@dataclass(frozen=True, slots=True)
class WatchEvent:
    """One event. ``object`` is the whole object; a BOOKMARK's holds only ``metadata.resourceVersion``."""

    type: EventType
    object: dict[str, Any]

    @property
    def resource_version(self) -> str:
        """The version from which a watch can be resumed after this event."""
        return str(self.object.get("metadata", {}).get("resourceVersion", ""))


@dataclass(frozen=True, slots=True)
class WatchFailure:
    """An ERROR event: the server's ``Status``. Code 410 means that the resource version is too old."""

    code: int
    status: dict[str, Any]


class LineSplitter:
    """Cuts a byte stream into lines, whatever the chunks; a line may be as long as an object (over 1 MB)."""

    def __init__(self) -> None:
        self._rest: list[bytes] = []

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """Yield the lines that the chunk completes, without their end; empty lines are left out."""
        *complete, rest = chunk.split(b"\n")
        for part in complete:
            line = b"".join((*self._rest, part))
            self._rest.clear()
            if line.strip():
                yield line
        if rest:
            self._rest.append(rest)


def parse(line: bytes) -> WatchEvent | WatchFailure:
    """Parse one line of a watch. Raises ValueError when it is not a watch event."""
    match nesting.loads(line):
        case {"type": "ERROR", "object": dict(status)}:
            return WatchFailure(code=int(status.get("code", 500)), status=status)
        case {"type": str(kind), "object": dict(body)}:
            return WatchEvent(type=EventType(kind), object=body)
    raise ValueError("not a watch event: lacks type and object")
