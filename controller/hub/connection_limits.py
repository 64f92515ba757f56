"""Limits of the hub's connections."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Caps:
    """Limits of connections.

    ``connections`` in all, of which ``strangers`` may be unauthenticated, and ``strangers_of_address`` of one address.
    An unauthenticated peer must have a stream accepted within ``seconds``.
    """

    connections: int = 6144
    strangers_of_address: int = 32
    strangers: int = 1024
    seconds: float = 10.0
