"""The hub's connections, and which of them are not authenticated yet.

A TLS connection costs the hub tens of KiB before it can authenticate the peer, and any peer may open one. So a
connection on which no stream has been accepted is unauthenticated. An address may have few of these, their total is
limited, and none stays for long (docs/operations.md, Connections of the hub).
"""

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Protocol

from kubemend.common import fair_room
from kubemend.controller.hub.limits import Caps
from kubemend.controller.hub.metrics import ConnectionEnd, HubMetrics


class Visit(Protocol):
    """One connection. ``name`` is gRPC's name for it (``ServicerContext.peer``), ``address`` its source."""

    name: str
    address: str

    def end(self) -> None:
        """Close it at once and drop pending data."""


class Visitors:
    """All connections. Called from the event loop only."""

    def __init__(self, caps: Caps, metrics: HubMetrics, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.caps = caps
        self.metrics = metrics
        self._clock = clock
        self._all: dict[str, Visit] = {}
        self._streams: dict[str, int] = {}
        self._unauthenticated: fair_room.FairRoom[str] = fair_room.FairRoom()

    def __len__(self) -> int:
        return len(self._all)

    def come(self, visit: Visit) -> bool:
        """Accept a new connection as unauthenticated; return False if it must be closed."""
        if not self._enter(visit, taken=len(self._all)):
            return False
        self._all[visit.name] = visit
        self.metrics.connections.set(len(self._all))
        return True

    def gone(self, visit: Visit) -> None:
        """Record that a connection is closed."""
        if self._all.pop(visit.name, None) is not None:
            self._unauthenticated.leave(visit.name, address=visit.address)
            self.metrics.connections.set(len(self._all))

    @contextlib.contextmanager
    def known(self, name: str) -> Iterator[None]:
        """Count a connection as its node's for the length of the block: a stream on it was accepted."""
        self._streams[name] = self._streams.get(name, 0) + 1
        if (visit := self._all.get(name)) is not None:
            self._unauthenticated.leave(name, address=visit.address)
        try:
            yield
        finally:
            self._streams[name] -= 1
            if not self._streams[name]:
                del self._streams[name]
                self._unknown_again(name)

    def address(self, name: str) -> str:
        """Return the source of a connection as text."""
        visit = self._all.get(name)
        return visit.address if visit is not None else name

    def end_silent(self) -> None:
        """End the connections that were not authenticated in time."""
        for name in [*self._unauthenticated.since(self._clock() - self.caps.seconds)]:
            self._end(name, ConnectionEnd.SILENT)

    def end_all(self) -> None:
        """End every connection."""
        for visit in [*self._all.values()]:
            self.gone(visit)
            visit.end()

    def _unknown_again(self, name: str) -> None:
        """Count a connection as unauthenticated again, after its last stream has ended."""
        visit = self._all.get(name)
        if visit is not None and not self._enter(visit, taken=len(self._all) - 1):
            self.gone(visit)
            visit.end()

    def _enter(self, visit: Visit, *, taken: int) -> bool:
        """Count a connection as unauthenticated, in addition to ``taken`` others."""
        known = taken - len(self._unauthenticated)
        free = min(self.caps.unauthenticated, self.caps.connections - known)
        room = fair_room.Room(each=self.caps.unauthenticated_of_address, all_together=max(0, free))
        try:
            goes = self._unauthenticated.enter(visit.name, address=visit.address, room=room, now=self._clock())
        except fair_room.CrowdedError:
            self.metrics.connection_ended(ConnectionEnd.CROWDED)
            return False
        if goes is not None:
            self._end(goes, ConnectionEnd.DISPLACED)
        return True

    def _end(self, name: str, reason: ConnectionEnd) -> None:
        visit = self._all[name]
        self.gone(visit)
        self.metrics.connection_ended(reason)
        visit.end()
