"""What an H100 reported of real faults (driver 580.159.04) is one fault for the agent, in its own time and any order.

Each record has the kernel's lines and NVML's Xid events, in milliseconds after the kernel launch. A fault can come as
up to four lines, of which only the last names the process, and NVML can report another code than the first line.
"""

import asyncio
import contextlib
import itertools
import json
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, Final

import pytest
from prometheus_client import CollectorRegistry

from kubemend.agent.clients.journal.store import Store
from kubemend.agent.faults.app_faults import Patience
from kubemend.agent.health.catalog import catalog_file
from kubemend.agent.health.catalog.catalog import FaultKey
from kubemend.agent.health.kmsg import kmsg_record, provenance
from kubemend.agent.health.kmsg.line_findings import Seen
from kubemend.agent.health.kmsg.line_reader import LineReader
from kubemend.agent.metrics import Metrics
from kubemend.agent.model.findings import Finding
from kubemend.agent.model.workloads import ContainerId
from kubemend.agent.sources.nvml.finding_emitter import FindingEmitter
from kubemend.agent.sources.nvml.protocol import XidEvent
from tests.fakes import outside
from tests.unit.faults.test_pipeline import QUICK, TRAINER, World, make, running

RECORDS: Final[dict[str, Any]] = json.loads(Path(__file__).with_name("h100_faults.json").read_text())
RECORDED_AT: Final = "PCI:0000:00:06"
BOOT: Final = 1_000.0
"""The moment of the node's start, in Unix time."""

Timed = tuple[float, Finding]


def findings(record: dict[str, Any]) -> list[Timed]:
    """Return the findings of a record with their times in seconds, as the sources make them."""
    catalog = catalog_file.builtin()
    reader = LineReader(catalog)
    made: list[Timed] = []
    for at, raw in record["kernel"]:
        line = kmsg_record.parse(raw.replace(RECORDED_AT, "PCI:0000:41:00").encode())
        assert not isinstance(line, kmsg_record.Malformed)
        assert provenance.is_genuine(line)
        seconds = line.usec / 1e6
        seen = Seen(observed_at=BOOT + seconds, boot_seconds=seconds, key=f"kmsg:{line.seq}:{line.usec}")
        made += [(at / 1e3, found) for found in reader.read(line.text, seen=seen)]
    launched = made[0][1].observed_at - made[0][0]
    reported: list[Finding] = []
    emitter = FindingEmitter(
        emit=reported.append,
        classify=lambda kind, code: catalog.action(FaultKey(kind, code)),
        known_before={},
        on_inventory=lambda _: None,
        limits=catalog.limits.gpu,
    )
    for at, code in record["nvml"]:
        emitter.xid(XidEvent(launched + at / 1e3, code, outside.GPU.uuid, outside.GPU.pci))
    return sorted(
        [*made, *((at / 1e3, each) for (at, _), each in zip(record["nvml"], reported, strict=True))], key=first
    )


def first(timed: Timed) -> float:
    return timed[0]


async def outcome(world: World, record: dict[str, Any], timed: Sequence[Timed]) -> None:
    """Have the agent receive the findings; it restarts the container of the process, once."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    for at, finding in timed:
        loop.call_at(began + at, world.engine.submit, finding)
    request = await world.restarted()
    assert request.target == TRAINER
    done = asyncio.Event()
    loop.call_at(began + timed[-1][0], done.set)
    await done.wait()
    await world.nothing_restarted()
    assert request.cause().code in {f"Xid{finding.code}" for _, finding in timed}
    world.processes.ends[record["pid"]].set()
    assert await request.lapsed()


@contextlib.asynccontextmanager
async def world(record: dict[str, Any], store: Store, patience: Patience) -> AsyncIterator[World]:
    """The trainer holds the GPU, and has the process of the record."""
    made = make(store, Metrics(CollectorRegistry()), patience=patience, monotonic=time.monotonic)
    made.holders.hold(TRAINER)
    made.events.run(TRAINER, name="trainer-0")
    made.processes.add(record["pid"], container=ContainerId("trainer-0"))
    async with running(made):
        yield made


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    made = await Store.open(tmp_path / "state.db")
    yield made
    await made.close()


@pytest.mark.parametrize("record", RECORDS.values(), ids=list(RECORDS))
async def test_recorded_fault_restarts_its_container_once_in_its_own_time(store: Store, record: dict[str, Any]) -> None:
    async with world(record, store, Patience()) as made:
        await outcome(made, record, findings(record))


@pytest.mark.parametrize("record", RECORDS.values(), ids=list(RECORDS))
async def test_recorded_fault_restarts_its_container_once_in_every_order(store: Store, record: dict[str, Any]) -> None:
    for order in itertools.permutations(findings(record)):
        async with world(record, store, QUICK) as made:
            await outcome(made, record, [(0.0, finding) for _, finding in order])
