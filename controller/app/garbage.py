"""When Python looks for garbage: while no round is under way.

A large round's messages leave a hundred thousand objects behind, and to look through them takes a tenth of a second in
which no agent is heard. Hardly any of them are garbage that only this look would find.
"""

import asyncio
import gc
from collections.abc import Callable
from typing import Final

from common import aio

_LOOK_SECONDS: Final = 1.0
_WHOLE_SECONDS: Final = 3600.0
_YOUNG_OBJECTS: Final = 20_000
_MOST_YOUNG_OBJECTS: Final = 500_000


def put_off() -> None:
    """Have Python look by itself only where rounds leave no time for it (``collect``)."""
    gc.set_threshold(_MOST_YOUNG_OBJECTS, 50, 1000)


async def collect(*, is_busy: Callable[[], bool]) -> None:
    """Collect what is young whenever nothing is under way, and everything now and then. Never returns."""
    now = asyncio.get_running_loop().time
    whole_at = now() + _WHOLE_SECONDS
    async for _ in aio.ticks(period=_LOOK_SECONDS):
        if is_busy():
            continue
        if now() >= whole_at:
            gc.collect()
            whole_at = now() + _WHOLE_SECONDS
        elif gc.get_count()[0] >= _YOUNG_OBJECTS:
            gc.collect(1)
