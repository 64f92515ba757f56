"""The thread that owns NVML, in this process: its actions during a poll, and after it."""

import queue
import threading
from collections.abc import Iterator

import pytest

from hack.fakenvml.control import gpu_uuid
from kubemend.agent.model.devices import DeviceId
from kubemend.agent.sources.nvml import poller, protocol
from kubemend.agent.sources.nvml.poller import Poller, PollRequest, Stop
from tests.unit.sources.nvml.conftest import NEVER, PATIENCE
from tests.unit.sources.nvml.in_process import Nvml


class Polling:
    """A poller on the fake that polls only on request; ``start`` it when its inbox is filled."""

    def __init__(self, nvml: Nvml) -> None:
        self.inbox: poller.Inbox = queue.SimpleQueue()
        self._sent: queue.SimpleQueue[protocol.Message] = queue.SimpleQueue()
        options = protocol.Options(poll_period=NEVER, full_period=NEVER, recheck_period=NEVER, hang_deadline=NEVER)
        work = Poller(nvml=nvml.reader, inbox=self.inbox, send=self._sent.put, options=options)
        self.thread = threading.Thread(target=work.run)

    def next(self) -> protocol.Message:
        """Wait for the next message."""
        return self._sent.get(timeout=PATIENCE)


@pytest.fixture
def polling(nvml: Nvml) -> Iterator[Polling]:
    """A poller; it is stopped after the test."""
    polling = Polling(nvml)
    yield polling
    polling.inbox.put(Stop())
    polling.thread.join(PATIENCE)
    assert not polling.thread.is_alive()


def test_query_is_answered_in_the_middle_of_a_poll(polling: Polling) -> None:
    polling.inbox.put(protocol.Query(request=7, uuids=(DeviceId(gpu_uuid(5)),)))
    polling.thread.start()

    first, second = polling.next(), polling.next()

    assert isinstance(first, protocol.DevicesAnswer)
    assert first.request == 7
    assert isinstance(second, protocol.Snapshot)
    assert len(second.slots) == 8


def test_event_during_a_poll_triggers_another(polling: Polling) -> None:
    polling.inbox.put(PollRequest())
    polling.thread.start()

    assert isinstance(polling.next(), protocol.Snapshot)
    assert isinstance(polling.next(), protocol.Snapshot)


def test_first_poll_and_event_polls_are_full(polling: Polling) -> None:
    polling.thread.start()
    first = polling.next()
    polling.inbox.put(PollRequest())

    fulls = [first]
    while len(fulls) < 2:
        snapshot = polling.next()
        assert isinstance(snapshot, protocol.Snapshot)
        fulls += [snapshot] if snapshot.slots[0].vitals is not None and snapshot.slots[0].vitals.full else []

    assert isinstance(first, protocol.Snapshot)
    assert all(slot.vitals is not None and slot.vitals.full for slot in first.slots)
