"""Write records of round members to a disk that fails."""

import asyncio
from collections.abc import Collection
from dataclasses import dataclass, field, replace

from kubemend.agent.clients.journal.store import JournalError
from kubemend.agent.model.rounds import Order, Record, StepResult
from kubemend.agent.model.workloads import PodRef, PodUid
from kubemend.agent.rounds.round_records import Key, Records
from kubemend.common.coordination import OrderKind, StepPhase
from tests import background

POD = PodRef("team", "train-0", PodUid("uid-0"))


def record(attempt: int) -> Record:
    name = f"team/train-{attempt}"
    order = Order(name, attempt, POD.uid, OrderKind.RESTART, "Exit1", "it ended", 30.0)
    return Record(order, POD, StepResult(name, POD, StepPhase.STOPPED), boot="boot-1", renewed_at=1.0, written_at=1.0)


@dataclass
class Disk:
    """Fails once after ``fail`` is set; then all writes succeed."""

    fail: asyncio.Event = field(default_factory=asyncio.Event)
    writing: asyncio.Event = field(default_factory=asyncio.Event)
    rows: dict[Key, Record] = field(default_factory=dict)
    written: asyncio.Event = field(default_factory=asyncio.Event)

    async def note(self, *records: Record, gone: Collection[Key] = ()) -> None:
        if not self.writing.is_set():
            self.writing.set()
            await self.fail.wait()
            raise JournalError("no space left")
        self.rows = {key: row for key, row in self.rows.items() if key not in gone}
        self.rows |= {each.key: each for each in records}
        self.written.set()


async def test_record_forgotten_during_failed_write_stays_forgotten() -> None:
    disk = Disk()
    records = Records(disk, now=lambda: 2.0)  # type: ignore[arg-type]
    records.note(record(1))
    async with background.running(records.write()), asyncio.timeout(60):
        await disk.writing.wait()
        records.forget(POD.uid, but=(), present=())
        records.note(record(2))
        disk.fail.set()
        await disk.written.wait()
    assert list(disk.rows) == [record(2).key]


def test_results_of_present_pods_are_kept_however_long_a_rolling_round_takes() -> None:
    """A new leader that does not get them restarts their members once more."""
    records = Records(Disk(), now=lambda: 86400.0)  # type: ignore[arg-type]
    here, gone = record(1), replace(record(1), pod=replace(POD, uid=PodUid("uid-1")))
    gone = replace(gone, order=replace(gone.order, pod=gone.pod.uid))
    for each in (here, gone):
        records.note(each)

    records.forget(PodUid("another"), but=(), present={POD.uid})

    assert list(records.all) == [here.key]
