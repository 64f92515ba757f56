"""Find ports for servers that only this machine reaches."""

import errno
import itertools
import secrets
import socket
from collections.abc import Iterator
from typing import Final

_FIRST: Final = 16_000
_COUNT: Final = 14_000
"""Linux takes the ports of outgoing connections from 32768 on: none of them takes a port before its server does."""

_BLOCK: Final = 100


def free_port() -> int:
    """Return a free port of 127.0.0.1, another one with each call. Raises OSError if there is none.

    No other program that asks here is given it, also before its server listens.
    """
    for port in itertools.islice(_ports, _COUNT):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
    raise OSError(errno.EADDRINUSE, f"no port of 127.0.0.1 from {_FIRST} to {_FIRST + _COUNT - 1} is free")


def claimed() -> Iterator[int]:
    """Yield the ports of blocks that are this program's alone until it ends; again its own when no other is left."""
    blocks, mine = _COUNT // _BLOCK, set[int]()
    first = secrets.randbelow(blocks)
    while True:
        for number in range(first, first + blocks):
            block = number % blocks
            if block in mine or _is_claimed(block):
                mine.add(block)
                yield from range(_FIRST + block * _BLOCK, _FIRST + (block + 1) * _BLOCK)
        if not mine:
            return


def _is_claimed(block: int) -> bool:
    """Claim a block, if no program has: by a socket whose abstract name the kernel frees when this program ends."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as claim:
        try:
            claim.bind(f"\0kubemend-dev-ports-{block}")
        except OSError:
            return False
        claim.detach()
        return True


_ports: Final = claimed()
