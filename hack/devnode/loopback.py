"""Find ports for servers that only this machine reaches."""

import errno
import itertools
import secrets
import socket
from typing import Final

_FIRST: Final = 16_000
_COUNT: Final = 14_000
"""Linux takes the ports of outgoing connections from 32768 on: none of them takes a port before its server does."""

_numbers: Final = itertools.count(secrets.randbelow(_COUNT))


def free_port() -> int:
    """Return a free port of 127.0.0.1, another one with each call. Raises OSError if there is none."""
    for number in itertools.islice(_numbers, _COUNT):
        port = _FIRST + number % _COUNT
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
    raise OSError(errno.EADDRINUSE, f"no port of 127.0.0.1 from {_FIRST} to {_FIRST + _COUNT - 1} is free")
