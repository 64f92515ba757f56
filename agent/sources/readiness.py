"""Wait for a file descriptor on the event loop."""

import asyncio


async def readable(fd: int) -> None:
    """Wait until a read of ``fd`` would not block.

    Raises PermissionError for descriptors that epoll does not support.
    """
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    loop.add_reader(fd, _resolve, ready)
    try:
        await ready
    finally:
        loop.remove_reader(fd)


def _resolve(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)
