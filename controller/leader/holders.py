"""Detect that the Lease holder's process is dead, so that no replica waits until the Lease expires."""

import asyncio
from typing import Final

_CONNECT_SECONDS: Final = 1.0


async def refuses(address: str) -> bool:
    """Return whether connections to ``IP:PORT``, the holder's hub, are refused, i.e.

    none of its processes listens there.

    Anything else is False, in particular a timeout: on an unreachable node processes may still run.
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
