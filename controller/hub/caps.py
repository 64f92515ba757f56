"""How many connections the hub has."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Caps:
    """``connections`` in all, of which ``strangers`` may be those of peers that have not said yet who they are, and
    ``strangers_of_address`` those of one address. Such a peer must have a stream that is accepted within ``seconds``.
    """

    connections: int = 6144
    strangers_of_address: int = 32
    strangers: int = 1024
    seconds: float = 10.0
