"""What sources want to know again after a restart of the agent: small texts on disk, written behind their backs."""

import structlog

from agent.history.store import HistoryError, Store
from common import aio

log = structlog.get_logger(__name__)


class Memories:
    """Texts by name. They are written at most once a second, and only when they have changed."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._latest: dict[str, str] = {}
        self._saved: dict[str, str] = {}

    async def load(self, name: str) -> str | None:
        """Return what was kept by that name, None if nothing. Raises HistoryError."""
        return await self._store.load(name)

    def keep(self, name: str, text: str) -> None:
        """Note what to keep."""
        self._latest[name] = text

    async def run(self) -> None:
        """Write what has changed, for ever."""
        async for _ in aio.ticks(period=1.0):
            await self.write()

    async def write(self) -> None:
        """Write what has changed now."""
        for name, text in list(self._latest.items()):
            if self._saved.get(name) == text:
                continue
            try:
                await self._store.save(name, text)
            except HistoryError as error:
                log.error("memory.not_saved", name=name, error=str(error))
            else:
                self._saved[name] = text
