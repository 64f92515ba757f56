"""The NVML worker process: ``python -m agent.sources.nvml.worker``, started and stopped by ``NvmlSource``.

Three threads. The main one reads requests and beats, and never calls NVML, so it can always say which call hangs
and always end. One thread polls and answers queries, one waits for events. Closing stdin ends the process; signals
that a terminal or a service manager sends to the whole group do not, because killing an NVML client in the middle
of a call can wedge a GPU. Imports nothing but pynvml and small standard modules: it lives next to every workload.
"""

import argparse
import os
import queue
import select
import signal
import sys
import threading
import time
from dataclasses import dataclass, fields

from agent.model.devices import Gpu, GpuUuid
from agent.sources.nvml import protocol, reader
from agent.sources.nvml.calls import Calls
from agent.sources.nvml.events import EventPump
from agent.sources.nvml.outcomes import Failure, ReadError, Value
from agent.sources.nvml.protocol import Condition, EndReason

STOP_GRACE = 2.0  # seconds that an NVML call may still take when the worker has been told to stop
NUDGE_GAP = 0.1  # seconds between polls that events ask for, so that a storm of them costs little
REARM_FIRST, REARM_LIMIT = 0.5, 60.0  # seconds before an event set that failed is made once more


@dataclass(frozen=True, slots=True)
class Options:
    """In seconds, as ``agent.sources.nvml.source.Periods`` says."""

    poll_period: float
    recheck_period: float
    hang_deadline: float


class Outbox:
    """Messages to the agent. An agent that is gone ends the worker."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._lock = threading.Lock()

    def send(self, message: protocol.Message) -> None:
        """Write one message as a whole, whichever thread it comes from."""
        line = memoryview(protocol.encode(message))
        with self._lock:
            try:
                while line:
                    line = line[os.write(self._fd, line) :]
            except BrokenPipeError:
                os._exit(0)


class Stop:
    """In the inbox: end."""


class Nudge:
    """In the inbox: an event says that a poll would find something new."""


@dataclass(frozen=True, slots=True)
class Broken:
    """In the inbox: the event set cannot be waited on any more."""

    failure: Failure


Letter = protocol.Query | Stop | Nudge | Broken
Inbox = queue.SimpleQueue[Letter]


class Poller:
    """The thread that owns NVML: initialises it, polls, answers, and keeps the event set on the right GPUs."""

    def __init__(self, *, nvml: reader.Reader, inbox: Inbox, outbox: Outbox, options: Options) -> None:
        self._nvml = nvml
        self._inbox = inbox
        self._outbox = outbox
        self._options = options
        self._pump: EventPump | None = None
        self._stopping = False
        self._last_poll = self._next_poll = 0.0
        self._broken_set: frozenset[GpuUuid] | None = None
        self._rearm_at = 0.0
        self._rearm_wait = REARM_FIRST

    def run(self) -> None:
        """Work until stopped, or until another nvmlInit is needed; say why and end."""
        ended = self._init() or self._poll_until_ended()
        if self._pump is not None:
            self._pump.stop()
        self._nvml.ask("nvmlShutdown")
        if ended is not None:
            self._outbox.send(ended)

    def _init(self) -> protocol.Ended | None:
        while not self._stopping:
            outcome = self._nvml.init()
            if isinstance(outcome, Value):
                return None
            if not (isinstance(outcome, ReadError) and outcome.code == reader.DRIVER_NOT_LOADED):
                return _ended(outcome, EndReason.INIT_FAILED)
            self._outbox.send(protocol.DriverAbsent())
            self._next_poll = time.monotonic() + self._options.recheck_period
            self._read_letters()
        return None

    def _poll_until_ended(self) -> protocol.Ended | None:
        while not self._stopping:
            outcome = self._nvml.snapshot()
            self._last_poll = time.monotonic()  # its end: however slow the driver, there is time for letters
            self._next_poll = self._last_poll + self._options.poll_period
            if not isinstance(outcome, Value):
                return _ended(outcome, EndReason.NO_ANSWER)
            self._arm(outcome.value)  # before the agent hears of it: who knows a GPU gets its events
            self._outbox.send(outcome.value)
            self._read_letters()
        return None

    def _read_letters(self) -> None:
        """Serve the inbox until the next poll is due."""
        while not self._stopping and (wait := self._next_poll - time.monotonic()) > 0:
            try:
                letter = self._inbox.get(timeout=wait)
            except queue.Empty:
                return
            self._read(letter)

    def _read(self, letter: Letter) -> None:
        match letter:
            case Stop():
                self._stopping = True
            case Nudge():
                self._next_poll = min(self._next_poll, max(time.monotonic(), self._last_poll + NUDGE_GAP))
            case Broken(failure=failure):
                sys.stderr.write(f"waiting for NVML events failed ({failure}); looking at each GPU\n")
                self._drop_pump()
                self._next_poll = time.monotonic()
            case protocol.Query(request=request, uuids=uuids):
                devices = tuple(self._nvml.device(uuid) for uuid in uuids)
                self._outbox.send(protocol.DevicesAnswer(devices=devices, request=request))

    def _arm(self, snapshot: protocol.Snapshot) -> None:
        """Have every GPU that answers in the event set; a set that still works keeps the others as well."""
        answering = [slot.gpu for slot in snapshot.slots if slot.condition is Condition.ANSWERS and slot.gpu]
        uuids = frozenset(gpu.uuid for gpu in answering)
        if self._pump is not None and uuids <= self._pump.gpus:
            return
        if uuids == self._broken_set and time.monotonic() < self._rearm_at:
            self._next_poll = min(self._next_poll, self._rearm_at)
            return
        if self._pump is not None:
            self._pump.stop()
        self._pump = self._new_pump(answering)

    def _new_pump(self, gpus: list[Gpu]) -> EventPump:
        pump = EventPump(
            nvml=self._nvml,
            on_xid=self._outbox.send,
            on_change=lambda: self._inbox.put(Nudge()),
            on_broken=lambda failure: self._inbox.put(Broken(failure)),
        )
        pump.start(gpus)
        return pump

    def _drop_pump(self) -> None:
        """Give up a broken set. The same GPUs are tried again later each time: a bad set fails at once, for ever."""
        if self._pump is None:
            return
        self._rearm_wait = (
            REARM_FIRST if self._pump.gpus != self._broken_set else min(self._rearm_wait * 2, REARM_LIMIT)
        )
        self._rearm_at = time.monotonic() + self._rearm_wait
        self._broken_set = self._pump.gpus
        self._pump.stop()
        self._pump = None


def main() -> None:
    """Run the worker on this process's stdin and stdout."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    threading.excepthook = _die
    options = _parse()
    outbox = Outbox(_take_stdout())
    outbox.send(protocol.Beat())
    import pynvml

    inbox: Inbox = queue.SimpleQueue()
    calls = Calls(
        deadline=options.hang_deadline,
        announce=lambda call: outbox.send(protocol.Beat(call=call)),
        came_back=lambda: inbox.put(Nudge()),  # what was known before the hang is too old
    )
    nvml = reader.Reader(pynvml=pynvml, calls=calls)
    poller = Poller(nvml=nvml, inbox=inbox, outbox=outbox, options=options)
    thread = threading.Thread(target=_run_to_exit, args=(poller,), name="nvml-poller", daemon=True)
    thread.start()
    _serve_stdin(inbox=inbox, calls=calls, beat_period=options.hang_deadline / 4)
    inbox.put(Stop())
    thread.join(STOP_GRACE)
    os._exit(0)  # past a hanging call, which would hold up a normal exit for ever


def _run_to_exit(poller: Poller) -> None:
    """Run the poller as the life of the process: it ends with it, whatever the main thread is waiting for."""
    poller.run()
    os._exit(0)


def _die(failed: threading.ExceptHookArgs) -> None:
    """End the process when a thread fails: a worker that only looks alive would be a false green."""
    threading.__excepthook__(failed)
    os._exit(1)


def _serve_stdin(*, inbox: Inbox, calls: Calls, beat_period: float) -> None:
    """Hand requests on and beat, until stdin is closed."""
    pending = b""
    while True:
        ready, _, _ = select.select([0], [], [], min(beat_period, calls.until_due()))
        if not ready:
            calls.check()
            continue
        chunk = os.read(0, 65536)
        if not chunk:
            return
        *lines, pending = (pending + chunk).split(b"\n")
        for line in lines:
            message = protocol.decode(line)
            if isinstance(message, protocol.Query):
                inbox.put(message)


def _take_stdout() -> int:
    """Keep stdout for messages alone: what a library prints goes to stderr."""
    private = os.dup(1)
    os.dup2(2, 1)
    return private


def _ended(failure: Failure, otherwise: EndReason) -> protocol.Ended:
    if isinstance(failure, ReadError):
        reasons = {
            reader.LIBRARY_NOT_FOUND: EndReason.LIBRARY_NOT_FOUND,
            reader.LIB_RM_VERSION_MISMATCH: EndReason.VERSION_MISMATCH,
        }
        return protocol.Ended(reason=reasons.get(failure.code, otherwise), detail=failure.text)
    return protocol.Ended(reason=otherwise, detail=str(failure))


def _parse() -> Options:
    parser = argparse.ArgumentParser(description="Internal: the NVML worker of the kubemend agent.")
    for option in fields(Options):
        parser.add_argument(f"--{option.name.replace('_', '-')}", type=float, required=True)
    return Options(**vars(parser.parse_args()))


if __name__ == "__main__":
    main()
