"""Wait for asynchronous results, for as long as a slow machine may need."""

import asyncio
from collections.abc import Awaitable, Callable

_SECONDS = 60.0
_FIRST_PAUSE = 0.01
_LONGEST_PAUSE = 0.1


async def true(predicate: Callable[[], bool | Awaitable[bool]], *, look_again: float | None = None) -> None:
    """Poll until it holds: every ``look_again`` seconds, or less and less often. Raises TimeoutError after a minute."""
    pause = _FIRST_PAUSE if look_again is None else look_again
    async with asyncio.timeout(_SECONDS):
        while True:
            holds = predicate()
            if holds if isinstance(holds, bool) else await holds:
                return
            await asyncio.sleep(pause)
            if look_again is None:
                pause = min(pause * 1.1, _LONGEST_PAUSE)
