"""Run Python's garbage collection while no round is under way.

The messages of a large round leave a hundred thousand objects. A collection of these takes a tenth of a second, in
which no agent's message is received. Hardly any of them are garbage that only the collection would find.
"""

import asyncio
import gc
from collections.abc import Callable
from typing import Final

from kubemend.common import aio

_CHECK_SECONDS: Final = 1.0
_WHOLE_SECONDS: Final = 3600.0
_YOUNG_OBJECTS: Final = 20_000
_MOST_YOUNG_OBJECTS: Final = 500_000


def put_off() -> None:
    """Have Python collect on its own only if rounds leave no time for it (``collect``)."""
    gc.set_threshold(_MOST_YOUNG_OBJECTS, 50, 1000)


async def collect(*, is_busy: Callable[[], bool]) -> None:
    """Collect the young generations whenever nothing is under way, and everything each hour. Never returns."""
    now = asyncio.get_running_loop().time
    whole_at = now() + _WHOLE_SECONDS
    async for _ in aio.ticks(period=_CHECK_SECONDS):
        if is_busy():
            continue
        if now() >= whole_at:
            gc.collect()
            whole_at = now() + _WHOLE_SECONDS
        elif gc.get_count()[0] >= _YOUNG_OBJECTS:
            gc.collect(1)
