"""Persist sets of containers, so that a restarted agent knows what the one before knew."""

import json
from typing import Final

import structlog

from kubemend.agent.clients.journal.store import HistoryError, Store
from kubemend.agent.model.workloads import ContainerId

log = structlog.get_logger(__name__)

BEATING: Final = "beating"
"""Containers that have touched their heartbeat file (``agent.sources.heartbeats.Memory``)."""
EXITS_HANDLED: Final = "exits-handled"
"""Containers of gangs whose exit has been answered (``agent.hub.ports.HandledExits``)."""


class StoredIds:
    """One set of container ids, under a key of its own."""

    def __init__(self, store: Store, key: str) -> None:
        self._store = store
        self._key = key

    async def load(self) -> frozenset[ContainerId]:
        """Return the saved ids; none when they are unreadable."""
        try:
            text = await self._store.load(self._key)
            return frozenset(ContainerId(item) for item in json.loads(text)) if text is not None else frozenset()
        except (HistoryError, ValueError, TypeError) as error:
            log.warning("stored_ids.unreadable", key=self._key, error=repr(error))
            return frozenset()

    async def save(self, ids: frozenset[ContainerId]) -> None:
        """Save the ids. A failure is logged: the set in memory remains valid."""
        try:
            await self._store.save(self._key, json.dumps(sorted(ids)))
        except HistoryError as error:
            log.error("stored_ids.save_failed", key=self._key, error=str(error))
