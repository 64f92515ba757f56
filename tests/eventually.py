"""Wait for asynchronous results, for as long as a slow machine may need."""

import asyncio
from collections.abc import Awaitable, Callable

_SECONDS = 60.0
_LOOK_AGAIN = 0.01


async def true(predicate: Callable[[], bool | Awaitable[bool]], *, look_again: float = _LOOK_AGAIN) -> None:
    """Return as soon as it holds. Raises TimeoutError after a minute."""
    async with asyncio.timeout(_SECONDS):
        while True:
            holds = predicate()
            if holds if isinstance(holds, bool) else await holds:
                return
            await asyncio.sleep(look_again)
