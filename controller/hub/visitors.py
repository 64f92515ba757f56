"""Who is connected to the hub, and who of them has not said yet who he is.

A TLS connection costs the hub tens of KiB before anything can be asked of it, and anybody may open one. So a connection
on which no stream has been accepted is a stranger's: an address has few of them, all together there are not many, and
none stays for long (docs/operations.md, Connections of the hub).
"""

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Protocol

from common import crowds
from controller.hub.caps import Caps
from controller.hub.metrics import ConnectionEnd, HubMetrics


class Visit(Protocol):
    """One connection. ``name`` is what gRPC calls it (``ServicerContext.peer``), ``address`` where it comes from."""

    name: str
    address: str

    def end(self) -> None:
        """Close it at once, whatever is on its way."""


class Visitors:
    """All connections. Called from the event loop only."""

    def __init__(self, caps: Caps, metrics: HubMetrics, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.caps = caps
        self.metrics = metrics
        self._clock = clock
        self._all: dict[str, Visit] = {}
        self._streams: dict[str, int] = {}
        self._strangers: crowds.Crowd[str] = crowds.Crowd()

    def __len__(self) -> int:
        return len(self._all)

    def come(self, visit: Visit) -> bool:
        """Let a new connection in, as a stranger's; False when it must be closed."""
        if not self._enter(visit, taken=len(self._all)):
            return False
        self._all[visit.name] = visit
        self.metrics.connections.set(len(self._all))
        return True

    def gone(self, visit: Visit) -> None:
        """A connection is closed."""
        if self._all.pop(visit.name, None) is not None:
            self._strangers.leave(visit.name, address=visit.address)
            self.metrics.connections.set(len(self._all))

    @contextlib.contextmanager
    def known(self, name: str) -> Iterator[None]:
        """Count a connection as its node's for the length of the block: a stream on it has been accepted."""
        self._streams[name] = self._streams.get(name, 0) + 1
        if (visit := self._all.get(name)) is not None:
            self._strangers.leave(name, address=visit.address)
        try:
            yield
        finally:
            self._streams[name] -= 1
            if not self._streams[name]:
                del self._streams[name]
                self._unknown_again(name)

    def address(self, name: str) -> str:
        """Return where a connection comes from, for people."""
        visit = self._all.get(name)
        return visit.address if visit is not None else name

    def end_silent(self) -> None:
        """End the connections of strangers that have not said in time who they are."""
        for name in [*self._strangers.since(self._clock() - self.caps.seconds)]:
            self._end(name, ConnectionEnd.SILENT)

    def end_all(self) -> None:
        """End every connection."""
        for visit in [*self._all.values()]:
            self.gone(visit)
            visit.end()

    def _unknown_again(self, name: str) -> None:
        """The last stream of a connection has ended: who keeps it does so as a stranger."""
        visit = self._all.get(name)
        if visit is not None and not self._enter(visit, taken=len(self._all) - 1):
            self.gone(visit)
            visit.end()

    def _enter(self, visit: Visit, *, taken: int) -> bool:
        """Make a connection a stranger's, beside ``taken`` others."""
        known = taken - len(self._strangers)
        free = min(self.caps.strangers, self.caps.connections - known)
        room = crowds.Room(each=self.caps.strangers_of_address, all_together=max(0, free))
        try:
            goes = self._strangers.enter(visit.name, address=visit.address, room=room, now=self._clock())
        except crowds.CrowdedError:
            self.metrics.connection_ended(ConnectionEnd.CROWDED)
            return False
        if goes is not None:
            self._end(goes, ConnectionEnd.DISPLACED)
        return True

    def _end(self, name: str, why: ConnectionEnd) -> None:
        visit = self._all[name]
        self.gone(visit)
        self.metrics.connection_ended(why)
        visit.end()
