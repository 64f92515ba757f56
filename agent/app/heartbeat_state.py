"""Persist which containers have a heartbeat, so that a restarted agent can detect their hangs."""

import json

import structlog

from kubemend.agent.clients.journal.store import HistoryError, Store
from kubemend.agent.model.workloads import ContainerId

log = structlog.get_logger(__name__)

_KEY = "beating"


class HeartbeatState:
    """Stores the ids of containers that have touched their heartbeat file (``agent.sources.heartbeats.Memory``)."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def load(self) -> frozenset[ContainerId]:
        """Return the saved ids.

        None when they are unreadable: then each container must beat once more to be watched.
        """
        try:
            text = await self._store.load(_KEY)
            return frozenset(ContainerId(item) for item in json.loads(text)) if text is not None else frozenset()
        except (HistoryError, ValueError, TypeError) as error:
            log.warning("heartbeat_state.unreadable", error=repr(error))
            return frozenset()

    async def save(self, beating: frozenset[ContainerId]) -> None:
        """Save the ids. A failure is logged: the state in memory remains valid."""
        try:
            await self._store.save(_KEY, json.dumps(sorted(beating)))
        except HistoryError as error:
            log.error("heartbeat_state.save_failed", error=str(error))
