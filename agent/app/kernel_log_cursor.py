"""Persist the kernel log's cursor, never ahead of the findings that have been handled."""

import json
import time
from collections.abc import Callable
from dataclasses import asdict

import structlog

from kubemend.agent.clients.journal.store import HistoryError, Store
from kubemend.agent.sources.kernel_log import Cursor
from kubemend.common import aio

log = structlog.get_logger(__name__)

_KEY = "kernel-log-cursor"
_FIRST_START = "first-start"


async def watched_since(store: Store, *, boot_id: str) -> float:
    """Return when an agent first ran on this boot, in seconds since boot; now, if this is the first.

    Raises HistoryError.
    """
    text = await store.load(_FIRST_START)
    known = json.loads(text) if text is not None else {}
    if known.get("boot_id") == boot_id:
        return float(known["since"])
    since = time.monotonic()
    await store.save(_FIRST_START, json.dumps({"boot_id": boot_id, "since": since}))
    return since


class StoredCursor:
    """Saves at most once a second, and only when all findings read so far have been handled.

    Reading a record twice is harmless (a container that began after it is never restarted for it); a skipped record is
    a lost restart.
    """

    def __init__(self, *, store: Store, may_forget: Callable[[], bool]) -> None:
        self._store = store
        self._may_forget = may_forget
        self._latest: Cursor | None = None
        self._saved: Cursor | None = None

    async def load(self) -> Cursor | None:
        """Return the last saved cursor. An unreadable one counts as none: the log is read from its start."""
        text = await self._store.load(_KEY)
        if text is None:
            return None
        try:
            return Cursor(**json.loads(text))
        except (ValueError, TypeError) as error:
            log.warning("cursor.unreadable", error=repr(error))
            return None

    def save(self, cursor: Cursor) -> None:
        """Note the cursor."""
        self._latest = cursor

    async def run(self) -> None:
        """Save the cursor periodically, indefinitely."""
        async for _ in aio.ticks(period=1.0):
            await self.write()

    async def write(self) -> None:
        """Save the cursor now, if all findings have been handled."""
        cursor = self._latest
        if cursor is None or cursor == self._saved or not self._may_forget():
            return
        try:
            await self._store.save(_KEY, json.dumps(asdict(cursor)))
        except HistoryError as error:
            log.error("cursor.save_failed", error=str(error))
        else:
            self._saved = cursor
