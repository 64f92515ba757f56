"""The worker thread that owns NVML: it polls, answers queries, and keeps the event set on the right GPUs."""

import collections
import queue
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from kubemend.agent.model.devices import DeviceId, Gpu
from kubemend.agent.sources.nvml import protocol, reader
from kubemend.agent.sources.nvml.calls import Failure, ReadError, Value
from kubemend.agent.sources.nvml.events import EventPump
from kubemend.agent.sources.nvml.protocol import Condition, EndReason

NUDGE_GAP = 0.1  # seconds between polls triggered by events, so that a storm of events costs little
FULL_GAP = 1.0  # the same for full polls
REARM_FIRST, REARM_LIMIT = 0.5, 60.0
"""Seconds before an event set is recreated that failed, or in which a GPU's events could not be registered."""


class Stop:
    """Inbox message: end."""


class PollRequest:
    """Inbox message: an event means that a poll would find a change."""


@dataclass(frozen=True, slots=True)
class Broken:
    """Inbox message: the event set can no longer be waited on."""

    failure: Failure


Letter = protocol.Query | Stop | PollRequest | Broken
Inbox = queue.SimpleQueue[Letter]


class Poller:
    """Initialises NVML, polls and answers queries until stopped. ``send`` accepts messages from any thread."""

    def __init__(
        self, *, nvml: reader.Reader, inbox: Inbox, send: Callable[[protocol.Message], None], options: protocol.Options
    ) -> None:
        self._nvml = nvml
        self._inbox = inbox
        self._send = send
        self._options = options
        self._pump: EventPump | None = None
        self._stopping = False
        self._deferred: collections.deque[Letter] = collections.deque()
        self._last_poll = self._next_poll = 0.0
        self._last_full = self._next_full = 0.0
        self._broken_set: frozenset[DeviceId] | None = None
        self._rearm_at = 0.0
        self._rearm_wait = REARM_FIRST
        self._retry_at = 0.0
        self._retry_wait = REARM_FIRST

    def run(self) -> None:
        """Work until stopped, or until another nvmlInit is needed; then send the reason and end."""
        ended = self._init() or self._poll_until_ended()
        if self._pump is not None:
            self._pump.stop()
        self._nvml.ask("nvmlShutdown")
        if ended is not None:
            self._send(ended)

    def _init(self) -> protocol.Ended | None:
        while not self._stopping:
            outcome = self._nvml.init()
            if isinstance(outcome, Value):
                return None
            if not (isinstance(outcome, ReadError) and outcome.code == reader.DRIVER_NOT_LOADED):
                return _ended(outcome, EndReason.INIT_FAILED)
            self._send(protocol.DriverAbsent())
            self._next_poll = time.monotonic() + self._options.recheck_period
            self._read_letters()
        return None

    def _poll_until_ended(self) -> protocol.Ended | None:
        while not self._stopping:
            full = time.monotonic() >= self._next_full
            outcome = self._nvml.snapshot(full=full, between=self._answer_waiting)
            self._last_poll = time.monotonic()  # at its end, so that even with a slow driver there is time for letters
            if full:
                self._last_full, self._next_full = self._last_poll, self._last_poll + self._options.full_period
            self._next_poll = min(self._last_poll + self._options.poll_period, self._next_full)
            if not isinstance(outcome, Value):
                return _ended(outcome, EndReason.NO_ANSWER)
            silent = self._arm(outcome.value)  # before sending: events of a GPU that the agent knows are then delivered
            self._send(replace(outcome.value, without_events=tuple(sorted(silent))))
            self._read_letters()
        return None

    def _read_letters(self) -> None:
        """Process the inbox until the next poll is due."""
        while not self._stopping and (wait := self._next_poll - time.monotonic()) > 0:
            try:
                letter = self._deferred.popleft() if self._deferred else self._inbox.get(timeout=wait)
            except queue.Empty:
                return
            self._read(letter)

    def _answer_waiting(self) -> None:
        """Answer waiting queries in the middle of a poll. Other letters wait until the poll ends."""
        while not self._inbox.empty():  # no other thread removes letters
            letter = self._inbox.get()
            if isinstance(letter, protocol.Query):
                self._read(letter)
            else:
                self._deferred.append(letter)

    def _read(self, letter: Letter) -> None:
        match letter:
            case Stop():
                self._stopping = True
            case PollRequest():
                self._next_full = min(self._next_full, self._last_full + FULL_GAP)
                self._next_poll = min(self._next_poll, self._last_poll + NUDGE_GAP)
            case Broken(failure=failure):
                sys.stderr.write(f"waiting for NVML events failed ({failure}); polling each GPU\n")
                self._drop_pump()
                self._next_poll = time.monotonic()
            case protocol.Query(request=request, uuids=uuids):
                devices = tuple(self._nvml.device(uuid) for uuid in uuids)
                self._send(protocol.DevicesAnswer(devices=devices, request=request))

    def _arm(self, snapshot: protocol.Snapshot) -> frozenset[DeviceId]:
        """Keep every GPU that answers in the event set; a set that still works keeps the others as well.

        Return the GPUs whose events do not arrive although the driver has some for them.
        """
        answering = [slot.gpu for slot in snapshot.slots if slot.condition is Condition.ANSWERS and slot.gpu]
        uuids = frozenset(gpu.uuid for gpu in answering)
        silent = uuids - (self._pump.gpus - self._pump.failed) if self._pump is not None else uuids
        is_retry_due = bool(silent) and time.monotonic() >= self._retry_at
        if self._pump is not None and uuids <= self._pump.gpus and not is_retry_due:
            return silent
        if uuids == self._broken_set and time.monotonic() < self._rearm_at:
            self._next_poll = min(self._next_poll, self._rearm_at)
            return silent
        if self._pump is not None:
            self._pump.stop()
        self._pump = self._new_pump(answering)
        self._retry_wait = min(2 * self._retry_wait, REARM_LIMIT) if self._pump.failed else REARM_FIRST
        self._retry_at = time.monotonic() + self._retry_wait
        return uuids if uuids == self._broken_set else self._pump.failed  # the same set broke: it is not proven yet

    def _new_pump(self, gpus: list[Gpu]) -> EventPump:
        pump = EventPump(
            nvml=self._nvml,
            on_event=self._send,
            on_change=lambda: self._inbox.put(PollRequest()),
            on_broken=lambda failure: self._inbox.put(Broken(failure)),
        )
        pump.start(gpus)
        return pump

    def _drop_pump(self) -> None:
        """Drop a broken set.

        The delay before the same GPUs are retried doubles, because a bad set fails immediately each time.
        """
        if self._pump is None:
            return
        self._rearm_wait = (
            REARM_FIRST if self._pump.gpus != self._broken_set else min(self._rearm_wait * 2, REARM_LIMIT)
        )
        self._rearm_at = time.monotonic() + self._rearm_wait
        self._broken_set = self._pump.gpus
        self._pump.stop()
        self._pump = None


def _ended(failure: Failure, otherwise: EndReason) -> protocol.Ended:
    if isinstance(failure, ReadError):
        reasons = {
            reader.LIBRARY_NOT_FOUND: EndReason.LIBRARY_NOT_FOUND,
            reader.LIB_RM_VERSION_MISMATCH: EndReason.VERSION_MISMATCH,
        }
        return protocol.Ended(reason=reasons.get(failure.code, otherwise), detail=failure.text)
    return protocol.Ended(reason=otherwise, detail=str(failure))
