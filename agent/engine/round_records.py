"""What is remembered of members in rounds: by this agent, and on disk for the next one."""

import asyncio
from collections.abc import Callable, Collection, Mapping

import structlog

from agent.history.store import HistoryError, Store
from agent.model.rounds import Record
from agent.model.workloads import PodUid
from common import aio, contained

log = structlog.get_logger(__name__)

Key = tuple[str, PodUid]

_REMEMBERED = 3600.0
"""Seconds for which it is known what became of a member."""


class Records:
    """The newest record of each member. ``write`` brings them to the disk."""

    def __init__(self, store: Store, *, now: Callable[[], float]) -> None:
        self._store = store
        self._now = now
        self._all: dict[Key, Record] = {}
        self._to_note: dict[Key, Record] = {}
        self._gone: set[Key] = set()
        self._wake = asyncio.Event()

    @property
    def all(self) -> Mapping[Key, Record]:
        """Every record, by round and pod."""
        return self._all

    def keep(self, record: Record) -> None:
        """Know a record that is on the disk."""
        self._all[record.key] = record

    def forget_one(self, record: Record) -> None:
        """Forget a record that is on the disk."""
        self._gone.add(record.key)
        self._wake.set()

    def note(self, record: Record) -> None:
        """Know a record, and have it written down soon."""
        if self._all.get(record.key) != record:
            self._all[record.key] = self._to_note[record.key] = record
            self._wake.set()

    def forget(self, uid: PodUid, *, but: Collection[Key]) -> None:
        """Forget what became of a pod in earlier rounds, and what became of all long ago; ``but`` are under way."""
        old = self._now() - _REMEMBERED
        for key, record in list(self._all.items()):
            if key not in but and (key[1] == uid or record.written_at < old):
                del self._all[key]
                self._to_note.pop(key, None)
                self._gone.add(key)
        self._wake.set()

    async def write(self) -> None:
        """Write down what is new, for ever; together, for members of one round stand at one point at about one time."""
        backoff = aio.Backoff(first=0.1, limit=5.0)
        while True:
            await self._wake.wait()
            self._wake.clear()
            notes, self._to_note = self._to_note, {}
            gone, self._gone = self._gone, set()
            try:
                with contained.within(contained.Part.RECORD, f"{len(notes)} records", passing=(HistoryError,)):
                    await self._store.note(*notes.values(), gone=gone)
                backoff.reset()
            except HistoryError as error:
                log.error("round.not_written", error=str(error))
                kept = {key: record for key, record in notes.items() if key not in self._gone}
                self._to_note = kept | self._to_note
                self._gone |= gone - self._to_note.keys()
                await backoff.wait()
                self._wake.set()
