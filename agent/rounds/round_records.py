"""Keep the records of round members, in memory and on disk for the next agent."""

import asyncio
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

import structlog

from kubemend.agent.clients.journal.store import JournalError, Store
from kubemend.agent.model.rounds import Record
from kubemend.agent.model.workloads import PodUid
from kubemend.common import aio, contained

log = structlog.get_logger(__name__)

Key = tuple[str, PodUid]

_REMEMBERED = 3600.0
"""Seconds for which the result of a pod that is gone is kept. Others stay: a rolling round may last a day."""


@dataclass(frozen=True, slots=True)
class Clocks:
    """Clocks in seconds: ``now`` is Unix time; ``since_boot`` counts from the boot with the id ``boot``."""

    now: Callable[[], float]
    since_boot: Callable[[], float]
    boot: str


def since_boot() -> float:
    """Return the seconds since this boot, including suspend."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Records:
    """The newest record of each member. ``write`` saves them to disk."""

    def __init__(self, store: Store, *, now: Callable[[], float]) -> None:
        self._store = store
        self._now = now
        self._all: dict[Key, Record] = {}
        self._to_note: dict[Key, Record] = {}
        self._gone: set[Key] = set()
        self._wake = asyncio.Event()

    @property
    def all(self) -> Mapping[Key, Record]:
        """Return every record, by round and pod."""
        return self._all

    def keep(self, record: Record) -> None:
        """Add a record that is on disk already."""
        self._all[record.key] = record

    def forget_one(self, record: Record) -> None:
        """Delete a record from disk."""
        self._gone.add(record.key)
        self._wake.set()

    def note(self, record: Record) -> None:
        """Add a record, and schedule its write to disk."""
        if self._all.get(record.key) != record:
            self._all[record.key] = self._to_note[record.key] = record
            self._wake.set()

    def forget(self, uid: PodUid, *, but: Collection[Key], present: Collection[PodUid]) -> None:
        """Forget the pod's earlier rounds, and old results of pods that are not ``present``.

        Members in ``but`` are in progress and stay.
        """
        old = self._now() - _REMEMBERED
        for key, record in list(self._all.items()):
            is_old = record.written_at < old and key[1] not in present
            if key not in but and (key[1] == uid or is_old):
                del self._all[key]
                self._to_note.pop(key, None)
                self._gone.add(key)
        self._wake.set()

    async def write(self) -> None:
        """Write new records to disk, in batches, because a round's members reach each phase at about the same time."""
        backoff = aio.Backoff(first=0.1, limit=5.0)
        while True:
            await self._wake.wait()
            self._wake.clear()
            notes, self._to_note = self._to_note, {}
            gone, self._gone = self._gone, set()
            try:
                with contained.within(contained.Part.RECORD, f"{len(notes)} records", passing=(JournalError,)):
                    await self._store.note(*notes.values(), gone=gone)
                backoff.reset()
            except JournalError as error:
                log.error("round.write_failed", error=str(error))
                kept = {key: record for key, record in notes.items() if key not in self._gone}
                self._to_note = kept | self._to_note
                self._gone |= gone - self._to_note.keys()
                await backoff.wait()
                self._wake.set()
