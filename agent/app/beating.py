"""Which containers beat, on disk: an agent that comes back knows whose silence means something."""

import json

import structlog

from agent.history.store import HistoryError, Store
from agent.model.workloads import ContainerId

log = structlog.get_logger(__name__)

_KEY = "beating"


class StoredBeating:
    """Keeps the ids of containers that have touched their heartbeat file (``agent.sources.heartbeats.Memory``)."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def load(self) -> frozenset[ContainerId]:
        """Return what was saved last; none when that cannot be read: then each must beat once more to be watched."""
        try:
            text = await self._store.load(_KEY)
            return frozenset(ContainerId(item) for item in json.loads(text)) if text is not None else frozenset()
        except (HistoryError, ValueError, TypeError) as error:
            log.warning("beating.unreadable", error=repr(error))
            return frozenset()

    async def save(self, beating: frozenset[ContainerId]) -> None:
        """Write them out. A disk that refuses is logged: what is in memory still holds."""
        try:
            await self._store.save(_KEY, json.dumps(sorted(beating)))
        except HistoryError as error:
            log.error("beating.not_saved", error=str(error))
