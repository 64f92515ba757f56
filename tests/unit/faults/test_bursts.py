"""Two programs fault at once or one after the other, on one GPU or two: each container is restarted once.

The lines may come late, after NVML's events, which name no process, and again, after a restart of the log.
"""

import asyncio
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import pytest

from kubemend.agent.model.devices import Gpu
from kubemend.agent.model.workloads import Allocation, Allocations, ContainerRef, ContainerSummary
from kubemend.agent.sources.nvml.protocol import XidEvent
from tests import virtual_time
from tests.fakes import outside
from tests.unit.faults import replayed
from tests.unit.faults.replayed import LAUNCH, OTHER_GPU, PLACES, Decisions, Line
from tests.unit.faults.test_pipeline import MONITOR, TRAINER

LAUNCHED: Final = 100.0
ADDRESSES: Final = {outside.GPU: "PCI:0000:41:00", OTHER_GPU: "PCI:0000:42:00"}
BURSTS: Final[Mapping[str, Sequence[tuple[float, int, bool]]]] = {
    "memory": ((0.0, 31, True),),
    "address": ((0.0, 13, False), (0.0001, 13, False), (0.004, 13, True)),
    "stack": ((0.0, 13, False), (0.0001, 13, False), (0.004, 43, True)),
}
"""The lines of a fault as an H100 printed them: seconds after the first, the code, and whether the process is named."""

EVENT_AFTER: Final = 0.08
FIRST, SECOND = 900, 901


@dataclass(frozen=True)
class Layout:
    """Where the two programs run (None: in no pod), and the GPU of each. Their containers hold it."""

    first: ContainerRef
    second: ContainerRef | None
    other_gpu: bool

    @property
    def gpus(self) -> tuple[Gpu, Gpu]:
        return outside.GPU, OTHER_GPU if self.other_gpu else outside.GPU

    @property
    def faulty(self) -> list[ContainerRef]:
        return sorted({each for each in (self.first, self.second) if each is not None}, key=lambda each: each.name)


LAYOUTS: Final = {
    "a GPU each": Layout(TRAINER, MONITOR, other_gpu=True),
    "one GPU": Layout(TRAINER, MONITOR, other_gpu=False),
    "one container, two GPUs": Layout(TRAINER, TRAINER, other_gpu=True),
    "one container, one GPU": Layout(TRAINER, TRAINER, other_gpu=False),
    "one in no pod": Layout(TRAINER, None, other_gpu=False),
}


class Node(replayed.Node):
    """A node with both programs; each ends with its container."""

    def __init__(self, layout: Layout, *, standby: bool) -> None:
        super().__init__(PLACES["sole-holder"], launched=LAUNCHED, standby=standby)
        refs = (layout.first, layout.second)
        held = {(ref, gpu) for ref, gpu in zip(refs, layout.gpus, strict=True) if ref is not None}
        self.env.holders.allocations = Allocations(
            items=tuple(
                Allocation(ref.pod.namespace, ref.pod.name, ref.name, frozenset({gpu.uuid})) for ref, gpu in held
            ),
            known=True,
        )
        for pid, ref in zip((FIRST, SECOND), refs, strict=True):
            self.env.processes.add(pid, container=self._running(ref).id if ref is not None else None)

    def event(self, code: int, gpu: Gpu) -> None:
        self._emitter.xid(XidEvent(self.now(), code, gpu.uuid, gpu.pci))

    async def _stop(self, old: ContainerSummary) -> None:
        self._runtime.ended.add(old.id)
        await asyncio.sleep(replayed.STOPPED)
        processes = self.env.processes
        for pid in [pid for pid, facts in processes.known.items() if facts.container == old.id]:
            del processes.known[pid]
            processes.ends[pid].set()
        self.env.events.stop(old.id)


Arrival = tuple[float, Line | tuple[int, Gpu] | None]
"""Seconds after the launch, and a line, an event of NVML, or None: the log restarts, and its lines are read again."""


def arrivals(burst: str, *, pid: int, gpu: Gpu, at: float, late: float) -> Iterator[Arrival]:
    """Yield the lines of a fault at that moment, which are read so much later, and its event."""
    for after, code, named in BURSTS[burst]:
        text = f"{code}, pid={pid}, name=python3, Ch 00000001" if named else f"{code}, Graphics Exception: ESR"
        stamp = int((LAUNCHED + at + after) * 1e6)
        seq = 2 * stamp + (pid == SECOND)
        yield at + after + late, Line(f"4,{seq},{stamp},-;NVRM: Xid ({ADDRESSES[gpu]}): {text}".encode())
    yield at + EVENT_AFTER, (BURSTS[burst][-1][1], gpu)


def read_again(messages: Sequence[Arrival], *, after: float | None) -> Sequence[Arrival]:
    """Return the messages in their order, with a restart of the log so long after its last line; None: without one."""
    ordered = sorted(messages, key=lambda each: each[0])
    lines = [each for each in ordered if isinstance(each[1], Line)]
    if after is None:
        return ordered
    at = lines[-1][0] + after
    return sorted([*ordered, (at, None), *((at, line) for _, line in lines)], key=lambda each: each[0])


async def played(layout: Layout, messages: Sequence[Arrival], *, standby: bool) -> tuple[Decisions, Node]:
    node = Node(layout, standby=standby)
    async with node.watched():
        for at, message in messages:
            await asyncio.sleep(max(0.0, LAUNCH + at - asyncio.get_running_loop().time()))
            match message:
                case None:
                    node.log.restart()
                case Line():
                    node.receive(message)
                case (code, gpu):
                    node.event(code, gpu)
        await asyncio.sleep(replayed.AFTERWARDS)
        assert node.env.queue.idle()
    return node.decisions, node


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("gap", [0.0, 0.3])
def test_each_container_of_a_fault_is_restarted_once(layout: str, gap: float) -> None:
    where = LAYOUTS[layout]
    choices = itertools.product(BURSTS, BURSTS, (0.0, 0.15), (False, True))
    for number, (first, second, late, standby) in enumerate(choices):
        again = 1.5 if number // 4 % 2 else None
        messages = [
            *arrivals(first, pid=FIRST, gpu=where.gpus[0], at=0.1, late=late),
            *arrivals(second, pid=SECOND, gpu=where.gpus[1], at=0.1 + gap, late=late),
        ]
        made, node = virtual_time.run(played(where, read_again(messages, after=again), standby=standby))
        admitted = sorted(made.admitted, key=lambda each: each.name)
        assert admitted == where.faulty, (first, second, late, again, standby)
        left = set(node.env.verdict_store.active_faults(outside.GPU.uuid))
        assert bool(left) == (where.second is None), "only the process in no pod still runs"
