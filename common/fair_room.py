"""Share the capacity of a public listener fairly among addresses. Pure."""

import ipaddress
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

_G = TypeVar("_G", bound=Hashable)


class CrowdedError(Exception):
    """The peer is rejected: its address has used its share."""


@dataclass(frozen=True, slots=True)
class Room:
    """Bound the capacity: ``each`` peers per address at once, ``all_together`` in total."""

    each: int
    all_together: int


class FairRoom(Generic[_G]):
    """The peers by address, the oldest first.

    One address never excludes another: when the room is full, the address with most peers loses its oldest.
    """

    def __init__(self) -> None:
        self._by_address: dict[str, dict[_G, float]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def enter(self, guest: _G, *, address: str, room: Room, now: float) -> _G | None:
        """Admit a peer; return the peer that must leave in exchange.

        Raises CrowdedError when the new peer is rejected.
        """
        own = len(self._by_address.get(address, ()))
        if own >= room.each:
            raise CrowdedError(f"{address} already has {own}")
        evicted = self._evict(own) if self._count >= room.all_together else None
        self._by_address.setdefault(address, {})[guest] = now
        self._count += 1
        return evicted

    def leave(self, guest: _G, *, address: str) -> None:
        """Remove a peer that has left or has been authenticated. Unknown peers are ignored."""
        guests = self._by_address.get(address, {})
        if guest in guests:
            del guests[guest]
            self._count -= 1
            if not guests:
                del self._by_address[address]

    def since(self, latest: float) -> Iterator[_G]:
        """Yield the peers that were admitted at ``latest`` or earlier."""
        for guests in self._by_address.values():
            yield from (guest for guest, came in guests.items() if came <= latest)

    def _evict(self, own: int) -> _G:
        """Remove and return the oldest peer of the address with most.

        Raises CrowdedError if the new peer's has as many.
        """
        address = max(self._by_address, key=lambda each: len(self._by_address[each]), default="")
        if len(self._by_address.get(address, ())) <= own + 1:
            raise CrowdedError("there is no room, and no address has a larger share")
        evicted = next(iter(self._by_address[address]))
        self.leave(evicted, address=address)
        return evicted


def address_of(peer: object) -> str:
    """Return the address to which a connection is attributed, from its socket's peer name.

    An IPv6 host has a /64 of its own (RFC 7421), so a /64 counts as one. Anything but TCP is one peer, "".
    """
    try:
        address = ipaddress.ip_address(str(peer[0]).partition("%")[0])  # type: ignore[index]
    except (ValueError, TypeError, IndexError):
        return ""
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        return str(ipaddress.ip_network((address, 64), strict=False))
    return str(address)
