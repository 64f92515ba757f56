"""What an agent leaves to the next one: its sources' state, the kernel log's cursor and sets of containers.

A write that fails is logged and the agent continues: its state in memory remains valid.
"""

import asyncio
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Final

import structlog

from kubemend.agent.clients.journal.store import JournalError, Store
from kubemend.agent.model.workloads import ContainerId
from kubemend.agent.sources.kernel_log import Cursor
from kubemend.common import aio
from kubemend.common.components import ComponentState, ComponentStatus

log = structlog.get_logger(__name__)

BEATING: Final = "beating"
"""Containers that have touched their heartbeat file (``agent.ports.StoredIds``)."""
EXITS_HANDLED: Final = "exits-handled"
"""Containers of gangs whose exit has been answered (``agent.ports.StoredIds``)."""
PROGRAMS: Final = "programs"
"""The number of the program that each launcher has started last (``StoredNumbers``)."""
_CURSOR: Final = "kernel-log-cursor"
_FIRST_START: Final = "first-start"
_CHECKED: Final = "checked"


class StateCheck:
    """Write to the state file periodically, and report whether that works.

    Without a journal nothing is restarted. An agent whose disk is read-only, full or hangs must not count as ready
    until the first fault shows it.
    """

    def __init__(
        self, store: Store, *, report: Callable[[ComponentStatus], None], period: float = 30.0, deadline: float = 10.0
    ) -> None:
        """``period`` and ``deadline`` (of one write) are in seconds."""
        self._store = store
        self._report = report
        self._period = period
        self._deadline = deadline

    async def run(self) -> None:
        """Check indefinitely."""
        async for _ in aio.ticks(period=self._period):
            self._report(await self.check())

    async def check(self) -> ComponentStatus:
        """Write once, and return the result."""
        try:
            async with asyncio.timeout(self._deadline):
                await self._store.save(_CHECKED, f"{time.time():.0f}")
        except JournalError as error:
            what, _, hint = str(error).partition("; ")
            return ComponentStatus(ComponentState.DEGRADED, what, hint)
        except TimeoutError:
            what = f"a write to the state file has not ended within {self._deadline:g} s"
            return ComponentStatus(ComponentState.DEGRADED, what, "check the disk with --state-dir; use a local one")
        return ComponentStatus(ComponentState.READY)


class SourceState:
    """Texts by name. They are written at most once a second, and only when they have changed."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._latest: dict[str, str] = {}
        self._saved: dict[str, str] = {}

    async def load(self, name: str) -> str | None:
        """Return the text stored under that name, None without one. Raises JournalError."""
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
            except JournalError as error:
                log.error("source_state.save_failed", name=name, error=str(error))
            else:
                self._saved[name] = text


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
        except (JournalError, ValueError, TypeError) as error:
            log.warning("stored_ids.unreadable", key=self._key, error=repr(error))
            return frozenset()

    async def save(self, ids: frozenset[ContainerId]) -> None:
        """Save the ids. A failure is logged: the set in memory remains valid."""
        try:
            await self._store.save(self._key, json.dumps(sorted(ids)))
        except JournalError as error:
            log.error("stored_ids.save_failed", key=self._key, error=str(error))


class StoredNumbers:
    """A number for each of some containers, under a key of its own."""

    def __init__(self, store: Store, key: str) -> None:
        self._store = store
        self._key = key

    async def load(self) -> Mapping[ContainerId, int]:
        """Return the saved numbers; none when they are unreadable."""
        try:
            text = await self._store.load(self._key)
            found = json.loads(text) if text is not None else {}
            return {ContainerId(each): int(number) for each, number in found.items()}
        except (JournalError, AttributeError, ValueError, TypeError) as error:
            log.warning("stored_numbers.unreadable", key=self._key, error=repr(error))
            return {}

    async def save(self, numbers: Mapping[ContainerId, int]) -> None:
        """Save the numbers. A failure is logged: those in memory remain valid."""
        try:
            await self._store.save(self._key, json.dumps(dict(numbers), sort_keys=True))
        except JournalError as error:
            log.error("stored_numbers.save_failed", key=self._key, error=str(error))


class BootIdError(Exception):
    """The node's boot id cannot be read. The text is one line for people, with a hint."""


def boot_id(proc: Path) -> str:
    """Return the id of the node's current boot from its ``/proc``. Raises BootIdError."""
    file = proc / "sys" / "kernel" / "random" / "boot_id"
    try:
        return file.read_text("ascii").strip()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise BootIdError(f"cannot read {file}: {reason}; pass the host's /proc with --proc") from error


async def watched_since(store: Store, *, boot_id: str) -> float:
    """Return when an agent first ran on this boot, in seconds since boot; now, if this is the first or is unknown.

    Raises JournalError.
    """
    text = await store.load(_FIRST_START)
    try:
        known = json.loads(text) if text is not None else {}
        if known.get("boot_id") == boot_id:
            return float(known["since"])
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        log.warning("first_start.unreadable", error=repr(error))
    since = time.clock_gettime(time.CLOCK_BOOTTIME)
    await store.save(_FIRST_START, json.dumps({"boot_id": boot_id, "since": since}))
    return since


class StoredCursor:
    """Saves at most once a second, and only when all findings read so far have been handled.

    Reading a record twice is harmless (a container that began after it is never restarted for it, and the verdicts
    have it once: ``VerdictStore.was_folded``); a skipped record is a lost restart.
    """

    def __init__(self, *, store: Store, may_forget: Callable[[], bool]) -> None:
        self._store = store
        self._may_forget = may_forget
        self._latest: Cursor | None = None
        self._saved: Cursor | None = None

    async def load(self) -> Cursor | None:
        """Return the last saved cursor. An unreadable one counts as none: the log is read from its start."""
        text = await self._store.load(_CURSOR)
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
            await self._store.save(_CURSOR, json.dumps(asdict(cursor)))
        except JournalError as error:
            log.error("cursor.save_failed", error=str(error))
        else:
            self._saved = cursor
