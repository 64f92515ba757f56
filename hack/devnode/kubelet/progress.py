"""Waiting until something holds, without polling: whoever changes a state says so."""

import asyncio
from collections.abc import Callable


class Progress:
    """One per process; all state that ``until`` looks at is changed in the same event loop."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def changed(self) -> None:
        """Say that some state has changed."""
        event, self._event = self._event, asyncio.Event()
        event.set()

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait until ``holds`` returns true."""
        while not holds():
            await self._event.wait()
