"""Whether the process that holds the Lease is gone: then nobody need wait until the Lease has run out."""

import asyncio
from typing import Final

_CONNECT_SECONDS: Final = 1.0


async def refuses(address: str) -> bool:
    """Whether connections to ``IP:PORT``, the hub of the holder, are refused: nothing of it listens there.

    Anything else is False, silence above all: of a node that cannot be reached nobody knows what runs on it.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isascii() or not port.isdecimal() or len(port) > len("65535"):
        return False
    try:
        async with asyncio.timeout(_CONNECT_SECONDS):
            _, writer = await asyncio.open_connection(host.strip("[]"), int(port))
    except ConnectionRefusedError:
        return True
    except (OSError, OverflowError, ValueError):
        return False
    writer.close()
    return False
