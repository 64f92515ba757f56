"""Waiting for events, in this process: which events are registered, and the cost of a failing wait."""

import contextlib
import queue
import threading
import time
from collections.abc import Iterator

import pytest

from hack.fakenvml import control
from hack.fakenvml.control import FakeNvml
from kubemend.agent.model.findings import FindingKind
from kubemend.agent.sources.nvml import events, poller, protocol, reader
from kubemend.agent.sources.nvml.calls import Failure, Lost, ReadError, Value
from kubemend.agent.sources.nvml.events import EventPump
from kubemend.common.components import ComponentState
from tests.unit.sources.nvml.conftest import NEVER, PATIENCE, Start
from tests.unit.sources.nvml.in_process import Nvml

WAIT, REGISTER = "nvmlEventSetWait", "nvmlDeviceRegisterEvents"


class Pumped:
    """An event pump on all GPUs, and its reports."""

    def __init__(self, nvml: Nvml) -> None:
        self.reported: queue.SimpleQueue[protocol.XidEvent | protocol.DeviceEvent] = queue.SimpleQueue()
        self.changes: queue.SimpleQueue[None] = queue.SimpleQueue()
        self.broken: queue.SimpleQueue[Failure] = queue.SimpleQueue()
        self.pump = EventPump(
            nvml=nvml.reader,
            on_event=self.reported.put,
            on_change=lambda: self.changes.put(None),
            on_broken=self.broken.put,
        )
        self.pump.start([slot.gpu for slot in nvml.poll().slots if slot.gpu is not None])


def test_lost_gpu_ends_the_wait_instead_of_spinning(fake: FakeNvml, nvml: Nvml) -> None:
    """Other tools' defect 2: any error of the wait was retried immediately and indefinitely, using a whole core."""
    pumped = Pumped(nvml)

    fake.lost(gpu=3)

    assert isinstance(pumped.broken.get(timeout=PATIENCE), Lost)
    pumped.pump.stop()
    assert nvml.calls.made[WAIT] <= 1 + PATIENCE * 1000 / events.WAIT_MS  # one at a time, each until its timeout
    assert pumped.broken.empty()


@contextlib.contextmanager
def quick_polls(nvml: Nvml) -> Iterator[Iterator[protocol.Snapshot]]:
    """Run a poller that polls every 20 ms; yield its snapshots."""
    sent, inbox = queue.SimpleQueue[protocol.Message](), queue.SimpleQueue[poller.Letter]()
    polling = poller.Poller(
        nvml=nvml.reader,
        inbox=inbox,
        send=sent.put,
        options=protocol.Options(poll_period=0.02, full_period=NEVER, recheck_period=NEVER, hang_deadline=NEVER),
    )

    def snapshots() -> Iterator[protocol.Snapshot]:
        while True:
            message = sent.get(timeout=PATIENCE)
            assert isinstance(message, protocol.Snapshot)
            yield message

    thread = threading.Thread(target=polling.run)
    thread.start()
    try:
        yield snapshots()
    finally:
        inbox.put(poller.Stop())
        thread.join(PATIENCE)
    assert not thread.is_alive()


def test_set_that_cannot_be_created_is_created_later(fake: FakeNvml, nvml: Nvml) -> None:
    """Otherwise only polls and the kernel log would show the GPUs' faults, until the agent's end."""
    others = []
    while isinstance(created := nvml.reader.ask("nvmlEventSetCreate"), Value):
        others.append(created.value)

    with quick_polls(nvml) as snapshots:
        assert set(next(snapshots).without_events) == {control.gpu_uuid(number) for number in range(8)}
        nvml.reader.ask("nvmlEventSetFree", others[0])
        until = time.monotonic() + PATIENCE
        while next(snapshots).without_events:
            assert time.monotonic() < until


async def test_gpu_whose_events_cannot_be_registered_degrades_the_component_until_they_are(
    fake: FakeNvml, start: Start
) -> None:
    fake.error(REGISTER, reader.UNKNOWN, gpu=2)
    env = start()
    status = await env.status(ComponentState.DEGRADED)
    assert status.message == f"GPU {control.gpu_uuid(2)}: its events do not arrive, only polls show it"

    fake.error(REGISTER, 0, gpu=2)
    await env.status(ComponentState.READY)
    fake.xid(gpu=2, code=94)
    assert (await env.finding(FindingKind.XID)).code == "94"


def test_gpu_that_supports_no_events_lacks_none(fake: FakeNvml, nvml: Nvml) -> None:
    fake.supported_events(0, gpu=1)
    with quick_polls(nvml) as snapshots:
        assert next(snapshots).without_events == ()
    assert nvml.calls.made[REGISTER] == 7


def test_failing_set_is_recreated_with_growing_delay(fake: FakeNvml, nvml: Nvml) -> None:
    """Other tools' defect 2, for an error of the driver and not of a GPU: retries do not clear it."""
    fake.error("nvmlEventSetWait_v2", reader.UNKNOWN, gpu=0)
    polls = 40
    with quick_polls(nvml) as snapshots:
        for _ in range(polls):
            next(snapshots)

    assert nvml.calls.made["nvmlEventSetCreate"] < polls / 2
    assert nvml.calls.made[WAIT] < polls / 2


@pytest.mark.parametrize(
    ("event", "kind"),
    [
        pytest.param(events.GPU_UNAVAILABLE, protocol.DeviceEventKind.GPU_UNAVAILABLE, id="unavailable"),
        pytest.param(events.FATAL_POISON, protocol.DeviceEventKind.MEMORY_POISONED, id="fatal-poison"),
    ],
)
def test_events_with_meaning_are_reported(
    fake: FakeNvml, nvml: Nvml, event: int, kind: protocol.DeviceEventKind
) -> None:
    pumped = Pumped(nvml)

    fake.event(event, gpu=2)
    reported = pumped.reported.get(timeout=PATIENCE)
    pumped.pump.stop()

    assert isinstance(reported, protocol.DeviceEvent)
    assert (reported.kind, reported.uuid) == (kind, control.gpu_uuid(2))


@pytest.mark.parametrize(
    "event",
    [
        pytest.param(events.DOUBLE_BIT_ECC, id="double-bit-ecc"),
        pytest.param(events.MIG_CONFIG_CHANGE, id="mig"),
        pytest.param(events.DRAM_RETIREMENT, id="retirement"),
        pytest.param(events.DRAM_RETIREMENT_FAILURE, id="retirement-failure"),
        pytest.param(events.NON_FATAL_POISON, id="non-fatal-poison"),
        pytest.param(events.RECOVERY_ACTION, id="recovery-action"),
    ],
)
def test_all_other_events_trigger_a_poll(fake: FakeNvml, nvml: Nvml, event: int) -> None:
    pumped = Pumped(nvml)

    fake.event(event, gpu=2)
    pumped.changes.get(timeout=PATIENCE)
    pumped.pump.stop()

    assert pumped.reported.empty()


@pytest.mark.parametrize(
    "event",
    [
        pytest.param(control.EVENT_CLOCK, id="clock"),
        pytest.param(control.EVENT_POWER_SOURCE, id="power-source"),
        pytest.param(control.EVENT_CORRECTED_ECC_STORM, id="corrected-ecc-storm"),
    ],
)
def test_events_that_only_cost_polls_are_not_registered(fake: FakeNvml, nvml: Nvml, event: int) -> None:
    pumped = Pumped(nvml)

    fake.event(event, gpu=2)
    fake.xid(gpu=2, code=48)  # events arrive in their order
    reported = pumped.reported.get(timeout=PATIENCE)
    pumped.changes.get(timeout=PATIENCE)
    pumped.pump.stop()

    assert isinstance(reported, protocol.XidEvent)
    assert pumped.changes.empty()


def test_fake_changes_clocks_only_for_those_that_registered_for_it(fake: FakeNvml, nvml: Nvml) -> None:
    """An H100 reports it several times a second."""
    handle, created = nvml.reader.ask("nvmlDeviceGetHandleByIndex", 0), nvml.reader.ask("nvmlEventSetCreate")
    assert isinstance(handle, Value)
    assert isinstance(created, Value)

    nvml.reader.ask("nvmlDeviceRegisterEvents", handle.value, events.XID, created.value)
    without = nvml.reader.ask(WAIT, created.value, events.WAIT_MS)
    nvml.reader.ask("nvmlDeviceRegisterEvents", handle.value, control.EVENT_CLOCK, created.value)
    with_them = [nvml.reader.ask(WAIT, created.value, events.WAIT_MS) for _ in range(3)]

    assert isinstance(without, ReadError)
    assert without.code == reader.TIMEOUT
    assert [each.value.eventType for each in with_them if isinstance(each, Value)] == [control.EVENT_CLOCK] * 3


def test_only_supported_events_are_registered(fake: FakeNvml, nvml: Nvml) -> None:
    fake.supported_events(events.XID, gpu=0)
    pumped = Pumped(nvml)

    fake.event(events.GPU_UNAVAILABLE, gpu=0)
    fake.xid(gpu=0, code=48)
    reported = pumped.reported.get(timeout=PATIENCE)
    pumped.pump.stop()

    assert isinstance(reported, protocol.XidEvent)
