"""Who may wait at a door that anybody can come to: each address has a fair share of the room. Pure."""

import ipaddress
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

_G = TypeVar("_G", bound=Hashable)


class CrowdedError(Exception):
    """Somebody is not let in: his own address has its share of the room already."""


@dataclass(frozen=True, slots=True)
class Room:
    """``each`` address may have so many guests at once, and ``all_together`` bounds what they take."""

    each: int
    all_together: int


class Crowd(Generic[_G]):
    """Guests by the address that they come from, the oldest first.

    One address alone never keeps another one out: where all is full, who has most gives way.
    """

    def __init__(self) -> None:
        self._by_address: dict[str, dict[_G, float]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def enter(self, guest: _G, *, address: str, room: Room, now: float) -> _G | None:
        """Let a guest in; return who has to go for him. Raises CrowdedError when he is not let in himself."""
        own = len(self._by_address.get(address, ()))
        if own >= room.each:
            raise CrowdedError(f"{address} has {own} already")
        goes = self._who_goes(own) if self._count >= room.all_together else None
        self._by_address.setdefault(address, {})[guest] = now
        self._count += 1
        return goes

    def leave(self, guest: _G, *, address: str) -> None:
        """A guest has left, or is no stranger any more. Nothing happens when he was not there."""
        guests = self._by_address.get(address, {})
        if guest in guests:
            del guests[guest]
            self._count -= 1
            if not guests:
                del self._by_address[address]

    def since(self, latest: float) -> Iterator[_G]:
        """Yield those who have been here since ``latest`` or longer."""
        for guests in self._by_address.values():
            yield from (guest for guest, came in guests.items() if came <= latest)

    def _who_goes(self, own: int) -> _G:
        """Return the oldest guest of the address that has most. Raises CrowdedError when a newcomer's has as many."""
        address = max(self._by_address, key=lambda each: len(self._by_address[each]), default="")
        if len(self._by_address.get(address, ())) <= own + 1:
            raise CrowdedError("there is no room, and nobody has more of it")
        goes = next(iter(self._by_address[address]))
        self.leave(goes, address=address)
        return goes


def address_of(peer: object) -> str:
    """Return whose a connection is, of what its socket says of its peer.

    An IPv6 host has all of a /64 to itself (RFC 7421), so that counts as one. Anything but TCP is one peer, "".
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
