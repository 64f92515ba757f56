"""State of the sources across agent restarts: small texts on disk, written in the background."""

import structlog

from kubemend.agent.clients.journal.store import HistoryError, Store
from kubemend.common import aio

log = structlog.get_logger(__name__)


class SourceState:
    """Texts by name. They are written at most once a second, and only when they have changed."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._latest: dict[str, str] = {}
        self._saved: dict[str, str] = {}

    async def load(self, name: str) -> str | None:
        """Return the text stored under that name, None without one. Raises HistoryError."""
        return await self._store.load(name)

    def keep(self, name: str, text: str) -> None:
        """Store a text with the next write."""
        self._latest[name] = text

    async def run(self) -> None:
        """Write changed texts periodically, indefinitely."""
        async for _ in aio.ticks(period=1.0):
            await self.write()

    async def write(self) -> None:
        """Write changed texts now."""
        for name, text in list(self._latest.items()):
            if self._saved.get(name) == text:
                continue
            try:
                await self._store.save(name, text)
            except HistoryError as error:
                log.error("source_state.save_failed", name=name, error=str(error))
            else:
                self._saved[name] = text
