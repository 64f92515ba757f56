"""Replay faults that an H100 and an H200 reported to everything from the sources to the decisions.

The records in ``h100_faults.json`` were taken on one H100 80GB HBM3, those in ``h200_faults.json`` on one H200 by
``tests/gpu/test_fault_survey.py``, both with driver 580.159.04 (open kernel modules), in a virtual machine with Linux
6.18. Each has the kernel's lines, NVML's Xid events, and the moment at which CUDA reported
the error to the program, in milliseconds after the kernel launch. The kernel log and NVML are independent: each keeps
its own order, and every interleaving of the two can occur. The program can exit at any moment in between.
"""

import asyncio
import contextlib
import itertools
import json
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from kubemend.agent.faults.app_faults import Timeouts
from kubemend.agent.faults.exits import Exits
from kubemend.agent.health.catalog import catalog_file
from kubemend.agent.health.gpu.gpu_inventory_state import KnownGpus
from kubemend.agent.model.devices import DeviceId, DeviceInventory, Gpu, PciAddress
from kubemend.agent.model.workloads import (
    Allocation,
    Allocations,
    ContainerRef,
    ContainerRole,
    ContainerSpec,
    ContainerState,
    ContainerSummary,
    PodView,
)
from kubemend.agent.restart import admission
from kubemend.agent.restarts.dependencies import DeviceFacts
from kubemend.agent.restarts.requests import Request
from kubemend.agent.sources import kernel_log, kmsg_readers
from kubemend.agent.sources.nvml.finding_emitter import FindingEmitter
from kubemend.agent.sources.nvml.protocol import XidEvent
from tests.fakes import outside
from tests.unit.faults import test_exits
from tests.unit.faults.test_pipeline import MONITOR, TRAINER, PipelineEnv, Restarts, running
from tests.unit.restart import builders
from tests.unit.sources import kernel_logs

GPUS: Final[dict[str, dict[str, Any]]] = {
    gpu: json.loads(Path(__file__).with_name(f"{gpu}_faults.json").read_text()) for gpu in ("h100", "h200")
}
RECORDS: Final = {f"{gpu}-{name}": record for gpu, records in GPUS.items() for name, record in records.items()}
RECORDED_AT: Final = "PCI:0000:00:06"
BOOT: Final = 1_000.0
"""The moment of the node's start, in Unix time."""

LAUNCH: Final = 1.0
"""The moment of the kernel launch, in virtual time."""

GAPS: Final = (1e-6, 0.004, 0.04)
"""Seconds between two messages: read in one batch, as the driver prints them, and as on a busy node."""

STOPPED, STARTED = 0.183, 0.141
"""Seconds of a restart on the H100: until the old process was dead, and until its successor ran."""

STANDBY: Final = 0.3
"""Seconds for which a successor was on standby on an H200, next to a program that was dying and could not be frozen."""

AFTERWARDS: Final = 10.0
OTHER_GPU: Final = Gpu(uuid=DeviceId("GPU-1"), pci=PciAddress.parse("0000:42:00.0"), index=1)


@dataclass(frozen=True)
class Place:
    """The containers that hold the GPU, and the container of the faulty process (None: it is in no pod)."""

    holders: tuple[ContainerRef, ...]
    faulty: ContainerRef | None


PLACES: Final = {
    "sole-holder": Place((TRAINER,), TRAINER),
    "one-of-two-holders": Place((MONITOR, TRAINER), TRAINER),
    "not-a-holder": Place((MONITOR,), TRAINER),
    "outside-pods": Place((TRAINER,), None),
}


@dataclass(frozen=True)
class Launch:
    """The program launches its faulty kernel; it has this process."""

    pid: int


@dataclass(frozen=True)
class Line:
    """A record of the kernel log."""

    raw: bytes


@dataclass(frozen=True)
class Event:
    """An Xid event of NVML."""

    code: int


@dataclass(frozen=True)
class Exit:
    """The program ends by itself, with an error."""


Message = Launch | Line | Event | Exit
Timed = tuple[float, Message]
"""A message, and when it arrives in seconds after the (first) launch."""


def lines(record: dict[str, Any]) -> list[Line]:
    return [Line(raw.replace(RECORDED_AT, "PCI:0000:41:00").encode()) for _, raw in record["kernel"]]


def launched_at(record: dict[str, Any]) -> float:
    """Return the moment of the kernel launch, in seconds after the boot."""
    at: float
    raw: str
    at, raw = record["kernel"][0]
    return int(raw.split(",")[2]) / 1e6 - at / 1e3


def as_recorded(record: dict[str, Any], *, exits: bool = False) -> list[Timed]:
    """Return the messages in their own time."""
    timed: list[Timed] = [(at / 1e3, line) for (at, _), line in zip(record["kernel"], lines(record), strict=True)]
    timed += [(at / 1e3, Event(code)) for at, code in record["nvml"]]
    timed += [(record["cuda_error_ms"] / 1e3, Exit())] if exits else []
    return [(0.0, Launch(record["pid"])), *sorted(timed, key=lambda each: each[0])]


def named_at(messages: Sequence[Timed]) -> float:
    """Return when the first line arrives that names the process, in seconds after the launch."""
    return next(at for at, message in messages if isinstance(message, Line) and b", pid=" in message.raw)


def followed_by(record: dict[str, Any], other: str, *, after: float) -> list[Timed]:
    """Return the messages in their own time, and a line of another Xid so long after the line with the process."""
    messages = as_recorded(record)
    at = named_at(messages) + after
    raw = f"4,999,{int((launched_at(record) + at) * 1e6)},c;NVRM: Xid (PCI:0000:41:00): {other}"
    return sorted([*messages, (at, Line(raw.encode()))], key=lambda each: each[0])


def exiting_at(record: dict[str, Any], moment: float) -> list[Timed]:
    """Return the messages in their own time, and the end of the program at a moment of its own."""
    return sorted([*as_recorded(record), (moment, Exit())], key=lambda each: each[0])


def in_every_order(record: dict[str, Any], *, exits: bool = False) -> Iterator[list[Timed]]:
    """Return the messages in every order, and at every distance of ``GAPS``. None comes before it was recorded."""
    begin = as_recorded(record, exits=exits)[-1][0]
    events = [Event(code) for _, code in record["nvml"]]
    for order in _interleaved(lines(record), events, [Exit()] if exits else []):
        for gap in GAPS:
            yield [
                (0.0, Launch(record["pid"])),
                *((begin + number * gap, message) for number, message in enumerate(order)),
            ]


def all_in_a_row(gpu: str) -> list[Timed]:
    """Return the messages of all records of a GPU, one after another as it reported them."""
    records = GPUS[gpu].values()
    began = min(map(launched_at, records))
    return [(launched_at(record) - began + at, message) for record in records for at, message in as_recorded(record)]


def _interleaved(*channels: Sequence[Message]) -> Iterator[list[Message]]:
    """Return every interleaving of channels that each keep their own order."""
    sources = [number for number, channel in enumerate(channels) for _ in channel]
    for order in sorted(set(itertools.permutations(sources))):
        following = [iter(channel) for channel in channels]
        yield [next(following[source]) for source in order]


class ReplayedLog:
    """The kernel log: its records become readable when they are printed."""

    def __init__(self, *, read_at: Callable[[], float]) -> None:
        self._read_at = read_at
        self._printed: list[bytes] = []
        self._replaced = False
        self._changed = asyncio.Event()

    def print(self, raw: bytes) -> None:
        self._printed.append(raw)
        self._changed.set()

    async def wait(self) -> None:
        await self._changed.wait()

    def restart(self) -> None:
        """Become another log, as a file in place of the kernel's does."""
        self._replaced = True
        self._changed.set()

    def read(self) -> kmsg_readers.Batch:
        if self._replaced:
            self._replaced = False
            raise kmsg_readers.LogReplacedError
        records, self._printed = self._printed, []
        self._changed.clear()
        return kmsg_readers.Batch(records=records, at_end=True, read_at=self._read_at(), awaited=True)

    def close(self) -> None:
        return


class Documents:
    """The agent's state, in memory."""

    def __init__(self) -> None:
        self._bodies: dict[str, str] = {}

    async def load(self, key: str) -> str | None:
        return self._bodies.get(key)

    async def save(self, key: str, body: str) -> None:
        self._bodies[key] = body


class Decisions(Restarts):
    """Decides about each request as the agent does, one after another, and replaces the admitted containers.

    ``decided_at`` has the moment of each admission, in seconds after the launch. Of ``withheld`` nothing was started,
    because a graver fault of the device was found after the decision.
    """

    def __init__(self, node: "Node") -> None:
        super().__init__()
        self.node = node
        self.requested: list[ContainerRef] = []
        self.admitted: list[ContainerRef] = []
        self.withheld: list[ContainerRef] = []
        self.decided_at: list[float] = []
        self._turn = asyncio.Lock()

    async def submit(self, request: Request) -> None:
        self.requested.append(request.target)
        async with self._turn:
            decision = admission.decide(self.node.facts(request), now=self.node.now())
            assert decision.verb is not admission.Verb.POSTPONE
            if decision.verb is admission.Verb.ACT:
                self.admitted.append(request.target)
                self.decided_at.append(asyncio.get_running_loop().time() - LAUNCH)
                if not await self.node.replace(request.target, may_start=lambda: _may_start(request)):
                    self.withheld.append(request.target)


class Node:
    """A trainer and a monitor run, and the agent watches. ``launched`` is in seconds after the boot.

    ``standby``: the successor is started first, and put on standby.
    """

    def __init__(self, place: Place, *, launched: float, standby: bool) -> None:
        self._clock = asyncio.get_running_loop().time
        self._place = place
        self._launched = launched
        self._standby = standby
        self._program: int | None = None
        self.log = ReplayedLog(read_at=self.since_boot)
        catalog = catalog_file.builtin()
        self.env = PipelineEnv(
            store=Documents(),  # type: ignore[arg-type]
            timeouts=Timeouts(),
            monotonic=self._clock,
            now=self.now,
            catalog=catalog,
            pods=outside.Pods(*(_pod(ref) for ref in (TRAINER, MONITOR))),
        )
        self.decisions = self.env.restarts = Decisions(self)
        self._runtime = test_exits.Runtime()
        self._emitter = FindingEmitter(
            emit=self.env.queue.submit,
            classify=catalog.classify,
            known_before=KnownGpus(),
            on_inventory=lambda _: None,
            limits=catalog.limits.gpu,
        )
        self._populate()

    def _populate(self) -> None:
        env, place = self.env, self._place
        env.devices.inventory = DeviceInventory(gpus=(outside.GPU, OTHER_GPU), complete=True)
        elsewhere = {TRAINER, MONITOR} - set(place.holders) - {place.faulty}
        env.holders.allocations = Allocations(
            items=tuple(
                Allocation(ref.pod.namespace, ref.pod.name, ref.name, frozenset({gpu.uuid}))
                for gpu, refs in ((outside.GPU, place.holders), (OTHER_GPU, elsewhere))
                for ref in refs
            ),
            known=True,
        )
        for ref in (TRAINER, MONITOR):
            env.events.run(ref, name=f"{ref.name}-0", created_at=int(BOOT * 1e9))

    def since_boot(self) -> float:
        return self._launched + self._clock() - LAUNCH

    def now(self) -> float:
        return BOOT + self.since_boot()

    def facts(self, request: Request) -> admission.Facts:
        target = self._running(request.target)
        return admission.Facts(
            target=request.target,
            cause=request.cause(),
            pod=self.env.pods.pods()[request.target.pod.uid],
            runtime=admission.RuntimeFacts(
                state=target.state,
                exit_code=None if target.state is ContainerState.RUNNING else 1,
                started_at=target.created_at / 1e9,
                sandbox_ready=True,
                container=target.id,
            ),
            owner=admission.OwnerFacts(),
        )

    def _running(self, ref: ContainerRef) -> ContainerSummary:
        """Return the newest container of a name."""
        return max((view for view in self.env.events.containers() if view.ref == ref), key=lambda view: view.attempt)

    async def replace(self, ref: ContainerRef, *, may_start: Callable[[], bool]) -> bool:
        """Stop a container and start its successor, in this order or the other, as long as that took.

        Return whether the successor was started.
        """
        old = self._running(ref)
        if self._standby:
            await self._start_after(old)
            await asyncio.sleep(STANDBY)
            await self._stop(old)
            return True
        await self._stop(old)
        if may_start():
            await self._start_after(old)
            return True
        return False

    async def _stop(self, old: ContainerSummary) -> None:
        self._runtime.ended.add(old.id)
        await asyncio.sleep(STOPPED)
        if old.ref == self._place.faulty:
            self._end_process()
        self.env.events.stop(old.id)

    async def _start_after(self, old: ContainerSummary) -> None:
        await asyncio.sleep(STARTED)
        attempt, now = old.attempt + 1, int(self.now() * 1e9)
        self.env.events.run(old.ref, name=f"{old.ref.name}-{attempt}", created_at=now, attempt=attempt)

    def receive(self, message: Message) -> None:
        """Have the message arrive now."""
        match message:
            case Launch(pid):
                self._program = pid
                where = self._running(self._place.faulty).id if self._place.faulty is not None else None
                self.env.processes.add(pid, container=where)
            case Line(raw):
                self.log.print(raw)
            case Event(code):
                self._emitter.xid(XidEvent(self.now(), code, outside.GPU.uuid, outside.GPU.pci))
            case Exit():
                self._exit()

    def _exit(self) -> None:
        """End the program and with it its container, unless the agent was faster."""
        assert self._program is not None
        process = self.env.processes.known.get(self._program)
        if process is not None and process.container is not None:
            self._end_process()
            self.env.events.exit(process.container, code=1, at=int(self.now() * 1e9))

    def _end_process(self) -> None:
        if self._program is not None and self.env.processes.known.pop(self._program, None) is not None:
            self.env.processes.ends[self._program].set()

    @contextlib.asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        """Run the agent's parts from the sources to the decisions."""
        notes = kernel_logs.Notes()
        source = kernel_log.KernelLogSource(
            Path("/dev/kmsg"),
            boot_id=kernel_logs.BOOT,
            watched_since=0.0,
            catalog=catalog_file.builtin(),
            emit=self.env.queue.submit,
            report=notes.report,
            cursors=notes,
            meter=notes,
            sysfs=Path("/nonexistent"),
            open_log=lambda _: self.log,
            offset=lambda: BOOT,
        )
        exits = Exits(
            restarts=self.decisions,  # type: ignore[arg-type]
            pods=self.env.pods,
            runtime=self._runtime,
            ends=test_exits.Ends(),
            rounds=test_exits.Rounds(),
            device_facts=DeviceFacts(
                holders=self.env.holders, verdict_store=self.env.verdict_store, devices=self.env.devices
            ),
            now=self.now,
        )
        async with running(self.env), self.env.events.subscribe() as steps:
            tasks = [asyncio.create_task(source.run()), asyncio.create_task(exits.run(steps))]
            yield
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


def _may_start(request: Request) -> bool:
    return admission.by_device(request.cause()) is None


def _pod(ref: ContainerRef) -> PodView:
    trainer = ContainerSpec(ref.name, ContainerRole.MAIN, running=True, holds_devices=True)
    return builders.pod(ref=ref.pod, containers=(trainer,))


async def replay(messages: Sequence[Timed], *, place: Place, launched: float, standby: bool = False) -> Decisions:
    """Have the agent receive the messages; return its decisions, those of the seconds after included."""
    node = Node(place, launched=launched, standby=standby)
    async with node.watched():
        for at, message in messages:
            await asyncio.sleep(LAUNCH + at - asyncio.get_running_loop().time())
            node.receive(message)
        await asyncio.sleep(AFTERWARDS)
        assert node.env.queue.idle()
    return node.decisions
