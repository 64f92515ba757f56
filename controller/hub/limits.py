"""Limits of the hub: how many connections there may be, and how many messages an agent may send. Pure."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Caps:
    """Limits of connections.

    ``connections`` is the total, ``unauthenticated`` the maximum of unauthenticated ones, and
    ``unauthenticated_of_address`` the maximum of those from one address. The hub closes a connection if no stream of it
    is accepted within ``seconds``.
    """

    connections: int = 6144
    unauthenticated_of_address: int = 32
    unauthenticated: int = 1024
    seconds: float = 10.0


@dataclass(frozen=True, slots=True)
class Rate:
    """``per_second`` in the long run, and up to ``burst`` at once."""

    per_second: float
    burst: float


class Bucket:
    """A token bucket. It is full at first."""

    __slots__ = ("_at", "_left", "_rate")

    def __init__(self, rate: Rate, *, now: float) -> None:
        self._rate = rate
        self._left = rate.burst
        self._at = now

    def take(self, cost: float, *, now: float) -> bool:
        """Take this much; return False if less is left. ``now`` is in seconds of a clock that does not go back."""
        grown = self._left + (now - self._at) * self._rate.per_second
        self._left = min(grown, self._rate.burst)
        self._at = now
        if self._left < cost:
            return False
        self._left -= cost
        return True
